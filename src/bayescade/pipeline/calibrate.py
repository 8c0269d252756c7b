"""`bayescade calibrate`: fits intervals to simulated scans of one geometry and noise, and stores them for `reconstruct`."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayescade.calibration.calibrate import calibrate
from bayescade.calibration.examine import LEAST_BINS, LEAST_VIEWS, Bootstrap, Examiner, can_examine
from bayescade.calibration.simulated import ScanKind
from bayescade.calibration.store import BOOTSTRAP, key_of, save
from bayescade.data.noise import Noise
from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.pipeline.reconstruct import OWN, check_samples, check_uncertainty, sample_count
from bayescade.pipeline.scan_geometry import choose_geometry
from bayescade.progress import progress
from bayescade.seeds import check_seed
from bayescade.uncertainty.intervals import LEVELS

LARGEST = 3.0  # attenuation of the largest line integral of a scan, where counted photons need one


@dataclasses.dataclass(frozen=True)
class CalibrationRequest:
    """What `bayescade calibrate` was asked for."""

    model: str
    case: str | None = None
    geometry_file: str | None = None
    images: int = 500
    alpha: float = 0.1
    delta: float | None = None
    noise: Noise | None = None  # default: 1 % Gaussian noise
    samples: int | None = None  # as for `reconstruct`
    largest: float | None = (
        None  # largest line integral of the scans, for counted photons; by default LARGEST / attenuation
    )
    seed: int = 0
    settings: Sequence[str] = ()
    uncertainty: str = OWN  # or bootstrap
    out: str | None = None  # a folder; default: the cache
    device: str = "auto"

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_samples(sample_count(self.samples, self.model, self.uncertainty))
        if self.largest is not None and not 0 < self.largest < math.inf:
            raise UserError(f"--largest: expected a positive number, got {self.largest:g}")
        check_uncertainty(self.uncertainty)
        if round(1 - self.alpha, 9) not in LEVELS:
            choices = ", ".join(f"{1 - level:.4g}" for level in LEVELS)
            raise UserError(f"--alpha: expected one of {choices}, got {self.alpha:g}")
        if self.delta is not None and not 0 < self.delta < 1:
            raise UserError(f"--delta: expected a probability between 0 and 1, got {self.delta:g}")


def calibrate_model(request: CalibrationRequest) -> dict[str, Any]:
    """Calibrates a model for a scan; gives where it was stored and what it guarantees."""
    _, geometry = choose_geometry(request.case, request.geometry_file)
    if not can_examine(geometry):
        raise UserError(
            f"calibration: expected a scan of at least {LEAST_VIEWS} views and {LEAST_BINS} bins, got {geometry.views} "
            f"views and {geometry.bins} bins"
        )
    noise = request.noise or Noise()
    examiner = Examiner(
        request.model,
        geometry,
        samples=sample_count(request.samples, request.model, request.uncertainty),
        settings=request.settings,
        device=choose_device(request.device),
        bootstrap=Bootstrap(noise) if request.uncertainty == BOOTSTRAP else None,
    )
    if not examiner.has_variance:
        raise UserError(
            f"model '{request.model}' has no error bars to calibrate; give it some: --uncertainty bootstrap"
        )
    largest = request.largest
    if largest is None and noise.model == "poisson":
        largest = LARGEST / noise.settings.attenuation
    kind = ScanKind(geometry, noise, largest)
    worker, level = examiner.for_calibration(), round(1 - request.alpha, 9)
    with progress(f"calibrating {request.model}", request.images) as advance:
        calibration = calibrate(
            worker, kind, images=request.images, seed=request.seed, delta=request.delta, level=level, advance=advance
        )
    intervals = calibration.intervals
    assert intervals is not None
    key = key_of(examiner, kind, request.delta, level)
    path = save(key, calibration, Path(request.out) if request.out is not None else None)
    return {
        "out": str(path),
        "images": intervals.images,
        "seconds": calibration.seconds,
        "guarantee": intervals.guarantee(),
        "calibration": intervals.to_json(),
    }
