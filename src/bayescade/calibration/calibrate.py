"""A calibration: intervals, the test for unusual scans and the errors of the centre, for one model, geometry and noise."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import torch

from bayescade.calibration.examine import Examiner
from bayescade.calibration.simulated import ScanKind, SimulatedScan, simulated_scans
from bayescade.consistency.centre import CentreErrors, centre_errors
from bayescade.consistency.p_values import UnusualScans
from bayescade.errors import UserError
from bayescade.progress import Advance, quiet
from bayescade.uncertainty.intervals import FEWEST, LEVEL, Intervals, fit_intervals
from bayescade.uncertainty.outcomes import outcome

SPLIT = "calibration"
LEAST_CLEAN = 200  # scans for the test of unusual scans; more than are reconstructed, if those are fewer
CENTRE_SCANS = 60  # of them, for the errors of the centre
DATA_AT_ONCE = 20  # scans whose symptoms are computed at once


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What simulated scans of one geometry and noise taught."""

    intervals: Intervals | None  # None: only the data were looked at, without reconstructions
    unusual: UnusualScans
    errors: CentreErrors
    seconds: float  # how long it took

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "intervals": self.intervals.to_json() if self.intervals is not None else None,
            "unusual": self.unusual.to_json(),
            "centre": dict(self.errors.factors),
            "seconds": round(self.seconds, 1),
        }

    @classmethod
    def from_json(cls, values: Any) -> "Calibration":
        """The calibration of `to_json`."""
        return cls(
            Intervals.from_json(values["intervals"]) if values["intervals"] is not None else None,
            UnusualScans.from_json(values["unusual"]),
            CentreErrors({str(name): float(factor) for name, factor in values["centre"].items()}),
            float(values["seconds"]),
        )


def calibrate(
    examiner: Examiner,
    kind: ScanKind,
    *,
    images: int,
    seed: int = 0,
    delta: float | None = None,  # None: intervals hold on average; else with probability 1 - delta
    level: float = LEVEL,  # of the intervals
    advance: Advance = quiet,  # called with the number of scans that were reconstructed
) -> Calibration:
    """Calibrates a model for the scans of a kind; the examiner gets the errors of the centre."""
    if images < FEWEST:
        raise UserError(f"calibration: expected at least {FEWEST} scans, got {images}")
    start = time.perf_counter()
    clean = clean_scans(examiner, kind, max(images, LEAST_CLEAN), seed)
    outcomes, found = [], []
    for scan in clean[:images]:
        examined = examiner(scan.sinogram, noise=kind.noise, seed=seed, index=scan.index)
        outcomes.append(outcome(examined.result, scan.truth, scan.family))
        found.append(examined.symptoms)
        advance(1)
    found += symptoms_of(examiner, kind, clean[images:])
    return Calibration(
        fit_intervals(outcomes, delta, level), UnusualScans.fit(found), examiner.errors, time.perf_counter() - start
    )


def calibrate_data(examiner: Examiner, kind: ScanKind, *, seed: int = 0) -> Calibration:
    """The test for unusual scans and the errors of the centre alone: no scan is reconstructed, which takes seconds."""
    start = time.perf_counter()
    found = symptoms_of(examiner, kind, clean_scans(examiner, kind, LEAST_CLEAN, seed))
    return Calibration(None, UnusualScans.fit(found), examiner.errors, time.perf_counter() - start)


def clean_scans(examiner: Examiner, kind: ScanKind, count: int, seed: int) -> list[SimulatedScan]:
    """Clean scans; the first of them give the examiner the errors of the centre."""
    clean = list(simulated_scans(kind, count, seed=seed, split=SPLIT, device=examiner.device))
    first = clean[:CENTRE_SCANS]
    shifts = torch.tensor([scan.shift for scan in first], dtype=torch.float64)
    sinograms = torch.cat([scan.sinogram for scan in first]).cpu()
    examiner.errors = centre_errors(examiner.field, sinograms, shifts)
    return clean


def symptoms_of(examiner: Examiner, kind: ScanKind, scans: Sequence[SimulatedScan]) -> list[dict[str, float]]:
    """The symptoms of scans from the data alone."""
    found = []
    for first in range(0, len(scans), DATA_AT_ONCE):
        some = torch.cat([scan.sinogram for scan in scans[first : first + DATA_AT_ONCE]])
        found += examiner.data_only(some, kind.noise)[1]
    return found
