"""`bayescade reconstruct`: reads a scan file with one or thousands of scans, writes a result file."""

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from bayescade.calibration.assess import assessed
from bayescade.calibration.calibrate import Calibration
from bayescade.calibration.examine import Bootstrap, Examiner, can_examine
from bayescade.calibration.simulated import ScanKind
from bayescade.calibration.store import BOOTSTRAP, calibration_for
from bayescade.consistency.centre import STATED
from bayescade.data.noise import Noise, noise_or_estimate
from bayescade.data.preprocess import with_centre
from bayescade.data.scan import ScanReader
from bayescade.data.simulate import chunks
from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.methods._bootstrap import Bootstrapped
from bayescade.models import ANY, ANY_MODEL, dedicated_model, load_model
from bayescade.physics.geometry import Geometry
from bayescade.pipeline.scores import mean, result_scores, uncertainty_row
from bayescade.progress import message, progress
from bayescade.results import Reconstruction, ResultWriter
from bayescade.seeds import check_seed
from bayescade.storage.arrays import check_suffix
from bayescade.storage.files import check_other_file, check_writable

DEFAULT_SAMPLES = {ANY: 8, ANY_MODEL: 8}  # of other models: OTHER_SAMPLES
OTHER_SAMPLES, BOOTSTRAP_SAMPLES = 100, 20
OWN = "own"
CALIBRATION_IMAGES = 100
MOST_SECONDS = 300  # a calibration that takes longer is not begun unless it is asked for


@dataclasses.dataclass(frozen=True)
class Request:
    """What `bayescade reconstruct` was asked for."""

    model: str = ANY  # `any` works for every scan
    samples: int | None = None  # None: 8 for a model for any scan, 100 for others
    seed: int = 0
    settings: Sequence[str] = ()
    # auto: the stated centre of rotation is checked and corrected; stated: it is used as it is; or the bin of the centre.
    center: str = "auto"
    calibrate: str = "auto"  # auto: a stored calibration, or a new one; off; or the number of its scans
    uncertainty: str = OWN  # own: the variances of the model; or bootstrap
    device: str = "auto"

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_samples(self.sample_count)
        if self.center not in ("auto", "stated"):
            number_of("--center", self.center, "auto, stated or a position on the detector in bins, e.g. 255.5")
        if self.calibrate not in ("auto", "off") and not self.calibrate.isdecimal():
            raise UserError(f"--calibrate: expected auto, off or a number of scans, got '{self.calibrate}'")
        check_uncertainty(self.uncertainty)

    @property
    def sample_count(self) -> int:
        """The number of samples, or of the replicates of a bootstrap."""
        if self.samples is None and self.uncertainty == BOOTSTRAP:
            return BOOTSTRAP_SAMPLES
        return self.samples if self.samples is not None else DEFAULT_SAMPLES.get(self.model, OTHER_SAMPLES)

    def geometry(self, stated: Geometry) -> Geometry:
        """The geometry of the scans, with the requested centre."""
        return stated if self.center in ("auto", "stated") else with_centre(stated, float(self.center))


def number_of(option: str, text: str, expected: str) -> float:
    """The number of an option; raises if it is none."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{option}: expected {expected}, got '{text}'")
    return number


def reconstruct(scan: str, out: str, request: Request) -> dict[str, Any]:
    """Writes a result file; gives a summary, with scores if the scan file has the truth."""
    check_suffix(out)
    check_writable(out)
    check_other_file(out, scan)
    start = time.perf_counter()
    with ScanReader(scan) as reader, ResultWriter(out) as writer:
        worker = Worker(request, request.geometry(reader.geometry), reader.noise())
        worker.prepare(reader.read(0, 1).sinogram)
        with progress(f"reconstructing by {request.model}", reader.count) as advance:
            for first, number in worker.parts(reader.count):
                batch = reader.read(first, number)
                result = worker(batch.sinogram, first)
                if batch.truth is not None:
                    scores = result_scores(result, batch.truth)
                    result = dataclasses.replace(result, truth=batch.truth, scores=scores)
                writer.append(result)
                advance(number)
    return {
        "out": str(Path(out)),
        "model": request.model,
        "images": reader.count,
        "samples": request.sample_count,
        "seconds": time.perf_counter() - start,
        "warning": writer.warning,
        "warnings": writer.lists["warnings"],
        "notes": writer.lists["notes"],
        "calibration": worker.sentence,
        "dedicated": dedicated_model(reader.geometry) if request.model in (ANY, ANY_MODEL) else None,
        **{name: mean(values) for name, values in writer.scores.items() if ":" not in name},
        "uncertainty": uncertainty_row(writer.scores),
    }


class Worker:
    """Reconstructs the scans of a file: one by one with all checks, or in batches where a scan is too small for them."""

    def __init__(self, request: Request, geometry: Geometry, noise: Noise | None):
        self.request, self.geometry, self.stated_noise = request, geometry, noise
        self.device = choose_device(request.device)
        self.calibration: Calibration | None = None
        self.sentence: str | None = None
        self.examiner: Examiner | None = None
        self.method = None
        bootstrap = Bootstrap(noise) if request.uncertainty == BOOTSTRAP else None
        if can_examine(geometry):
            self.examiner = Examiner(
                request.model,
                geometry,
                samples=request.sample_count,
                settings=request.settings,
                device=self.device,
                stated_std=STATED if request.center == "auto" else 0.0,
                bootstrap=bootstrap,
            )
        else:
            self.method = load_model(request.model, geometry, settings=request.settings, device=self.device)
            if bootstrap is not None:
                self.method = Bootstrapped(self.method, geometry, bootstrap.noise, self.device)

    def parts(self, count: int) -> list[tuple[int, int]]:
        """The scans that are read at once: (index of the first, number)."""
        return (
            [(index, 1) for index in range(count)] if self.examiner is not None else list(chunks(self.geometry, count))
        )

    def prepare(self, first: Tensor) -> None:
        """Finds or makes the calibration for these scans; the first scan (1, 1, views, bins) says how long that takes."""
        if self.examiner is None or self.request.calibrate == "off":
            return
        images = CALIBRATION_IMAGES if self.request.calibrate == "auto" else int(self.request.calibrate)
        at_most = MOST_SECONDS if self.request.calibrate == "auto" else math.inf
        self.calibration = calibration_for(
            self.examiner, self.kind(first), first, images=images, at_most=at_most, say=message
        )

    def kind(self, first: Tensor) -> ScanKind:
        """The simulated scans for a calibration."""
        noise, largest = noise_or_estimate(self.stated_noise, first)
        return ScanKind(self.geometry, noise, largest)

    def __call__(self, sinogram: Tensor, index: int) -> Reconstruction:
        """The results of scans; `index` is that of the first."""
        return self.both(sinogram, index)[1]

    def both(self, sinogram: Tensor, index: int) -> tuple[Reconstruction, Reconstruction]:
        """The results of scans as the model says them, and calibrated, with warnings."""
        request = self.request
        if self.examiner is None:
            assert self.method is not None
            result = self.method(sinogram, samples=request.sample_count, seed=request.seed, index=index)
            return result, result
        examined = self.examiner(sinogram, noise=self.stated_noise, seed=request.seed, index=index)
        result = assessed(examined, sinogram, self.calibration)
        self.sentence = result.calibration
        return examined.result, result

    def results(self, sinogram: Tensor) -> Iterator[tuple[Reconstruction, Reconstruction]]:
        """The results of `both` for the parts of a tensor of scans."""
        for first, number in self.parts(len(sinogram)):
            yield self.both(sinogram[first : first + number], first)


def check_samples(samples: int) -> None:
    """Raises an error unless the number of Monte-Carlo samples is from 1 to 1000000."""
    if not 1 <= samples <= 1_000_000:
        raise UserError(f"--samples: expected a whole number from 1 to 1000000, got {samples}")


def check_uncertainty(name: str) -> None:
    """Raises an error unless it is known where variances come from."""
    if name not in (OWN, BOOTSTRAP):
        raise UserError(f"--uncertainty: expected {OWN} or {BOOTSTRAP}, got '{name}'")
