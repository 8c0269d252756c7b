"""`bayescade reconstruct`: reads a scan file with one or thousands of scans, writes a result file."""

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescade.calibration.assess import NOT_CALIBRATED, assessed
from bayescade.calibration.calibrate import Calibration
from bayescade.calibration.examine import LEAST_BINS, LEAST_VIEWS, Bootstrap, Examiner, can_examine
from bayescade.calibration.simulated import ScanKind
from bayescade.calibration.store import BOOTSTRAP, calibration_for, data_key
from bayescade.consistency.centre import STATED
from bayescade.consistency.centre_fit import shifted
from bayescade.data.noise import Noise, noise_or_estimate
from bayescade.data.preprocess import with_centre
from bayescade.data.scan import ScanReader
from bayescade.data.simulate import chunks
from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.methods._bootstrap import Bootstrapped
from bayescade.models import ANY, ANY_MODEL, dedicated_model, is_for_any_scan, load_model, model_folder
from bayescade.physics.geometry import Geometry
from bayescade.pipeline.scores import mean, result_scores, uncertainty_row
from bayescade.progress import message, progress
from bayescade.results import Reconstruction, ResultWriter
from bayescade.seeds import check_seed
from bayescade.storage.arrays import check_suffix
from bayescade.storage.files import check_other_file, check_writable
from bayescade.storage.manifest import read_manifest

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
        return sample_count(self.samples, self.model, self.uncertainty)


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
        worker = Worker(request, reader.geometry, reader.noise())
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
        self.request, self.stated_noise = request, noise
        self.device = choose_device(request.device)
        self.geometry, self.moved = geometry_and_shift(request, geometry)
        self.sentence: str | None = None
        self.calibrations: dict[str, Calibration] = {}
        self.examiner: Examiner | None = None
        self.method = None
        bootstrap = Bootstrap(noise) if request.uncertainty == BOOTSTRAP else None
        if can_examine(self.geometry):
            self.examiner = Examiner(
                request.model,
                self.geometry,
                samples=request.sample_count,
                settings=request.settings,
                device=self.device,
                stated_std=STATED if request.center == "auto" else 0.0,
                bootstrap=bootstrap,
            )
        else:
            self.method = load_model(request.model, self.geometry, settings=request.settings, device=self.device)
            if bootstrap is not None:
                self.method = Bootstrapped(self.method, self.geometry, bootstrap.noise, self.device)
        if request.calibrate.isdecimal():
            self.check_calibration()

    def check_calibration(self) -> None:
        """Raises unless the intervals that were asked for can be calibrated."""
        if self.examiner is None:
            raise UserError(
                f"--calibrate: expected a scan of at least {LEAST_VIEWS} views and {LEAST_BINS} bins, got "
                f"{self.geometry.views} views and {self.geometry.bins} bins; use --calibrate auto"
            )
        if not self.examiner.has_variance:
            raise UserError(
                f"--calibrate: model '{self.request.model}' has no error bars; give it some: --uncertainty bootstrap"
            )

    def parts(self, count: int) -> list[tuple[int, int]]:
        """The scans that are read at once: (index of the first, number)."""
        return (
            [(index, 1) for index in range(count)] if self.examiner is not None else list(chunks(self.geometry, count))
        )

    def kind(self, sinogram: Tensor) -> ScanKind:
        """The simulated scans for the calibration of a scan (1, 1, views, bins)."""
        noise, largest = noise_or_estimate(self.stated_noise, sinogram)
        return ScanKind(self.geometry, noise, largest if largest > 0 else None)

    def calibration(self, sinogram: Tensor) -> Calibration | None:
        """The calibration for scans of this kind: a stored or a new one; the scan says how long a new one takes."""
        if self.examiner is None or self.request.calibrate == "off" or not bool((sinogram > 0).any()):
            return None
        kind = self.kind(sinogram)
        key = json.dumps(data_key(self.examiner, kind), sort_keys=True)
        if key not in self.calibrations:
            images = CALIBRATION_IMAGES if self.request.calibrate == "auto" else int(self.request.calibrate)
            at_most = MOST_SECONDS if self.request.calibrate == "auto" else math.inf
            self.calibrations[key] = calibration_for(
                self.examiner, kind, sinogram, images=images, at_most=at_most, say=message
            )
        self.examiner.errors = self.calibrations[key].errors
        return self.calibrations[key]

    def __call__(self, sinogram: Tensor, index: int) -> Reconstruction:
        """The results of scans; `index` is that of the first."""
        return self.both(sinogram, index)[1]

    def both(self, sinogram: Tensor, index: int) -> tuple[Reconstruction, Reconstruction]:
        """The results of scans as the model says them, and calibrated, with warnings."""
        request = self.request
        if self.moved:
            sinogram = shifted(sinogram.double(), torch.tensor([self.moved])).to(sinogram)
        if self.examiner is None:
            assert self.method is not None
            result = self.method(sinogram, samples=request.sample_count, seed=request.seed, index=index)
            if result.aleatoric is not None:
                result = dataclasses.replace(result, calibration=NOT_CALIBRATED.format(model=result.model))
                self.sentence = result.calibration
            return result, result
        calibration = self.calibration(sinogram)
        examined = self.examiner(sinogram, noise=self.stated_noise, seed=request.seed, index=index)
        result = assessed(examined, sinogram, calibration)
        self.sentence = result.calibration
        return examined.result, result

    def results(self, sinogram: Tensor) -> Iterator[tuple[Reconstruction, Reconstruction]]:
        """The results of `both` for the parts of a tensor of scans."""
        for first, number in self.parts(len(sinogram)):
            yield self.both(sinogram[first : first + number], first)


def geometry_and_shift(request: Request, stated: Geometry) -> tuple[Geometry, float]:
    """The geometry for the model, and by how many bins the data are moved before.

    A model for one scan has its geometry: where the user gives another centre, its data are moved instead.
    """
    if request.center in ("auto", "stated"):
        return stated, 0.0
    geometry = with_centre(stated, float(request.center))
    folder = model_folder(request.model)
    if folder is None or is_for_any_scan(read_manifest(folder)):
        return geometry, 0.0
    return stated, (geometry.offset - stated.offset) / stated.bin_width


def sample_count(samples: int | None, model: str, uncertainty: str) -> int:
    """The number of samples, if one is given; otherwise the default of the model or of the bootstrap."""
    if samples is not None:
        return samples
    return BOOTSTRAP_SAMPLES if uncertainty == BOOTSTRAP else DEFAULT_SAMPLES.get(model, OTHER_SAMPLES)


def check_samples(samples: int) -> None:
    """Raises an error unless the number of Monte-Carlo samples is from 1 to 1000000."""
    if not 1 <= samples <= 1_000_000:
        raise UserError(f"--samples: expected a whole number from 1 to 1000000, got {samples}")


def check_uncertainty(name: str) -> None:
    """Raises an error unless it is known where variances come from."""
    if name not in (OWN, BOOTSTRAP):
        raise UserError(f"--uncertainty: expected {OWN} or {BOOTSTRAP}, got '{name}'")
