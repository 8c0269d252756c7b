"""`bayescade benchmark shift`: does the uncertainty hold where a scan is not what the model was made for, or does it warn?

A row is a kind of fault or of objects (`shift_rows`). Its scans pass the same steps as in `bayescade reconstruct`, with a
calibration for clean scans. A cell holds numbers for every image, and is stored; the table is computed from the cells.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from bayescade import __version__
from bayescade.calibration.assess import assessed
from bayescade.calibration.calibrate import Calibration
from bayescade.calibration.examine import Bootstrap, Examined, Examiner
from bayescade.calibration.simulated import MORE_BORDER, ScanKind, largest_integrals
from bayescade.calibration.store import BOOTSTRAP, calibration_for, key_of
from bayescade.consistency.moments import border_bins
from bayescade.data.noise import Noise, common_noise
from bayescade.data.objects import measured_with_border
from bayescade.data.scanner import Scanner, no_errors
from bayescade.data.simulate import scans_with_these_errors
from bayescade.data.sources import Source, image_source
from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.metrics.psnr import psnr
from bayescade.physics.geometry import Geometry
from bayescade.pipeline.benchmark_any import patients_of_split, read_patients
from bayescade.pipeline.cells import cell_file_name, read_cell, write_cell
from bayescade.pipeline.reconstruct import OWN, check_samples, check_uncertainty
from bayescade.pipeline.scan_geometry import choose_geometry
from bayescade.pipeline.shift_rows import ATTENUATION, CLEAN, PATIENTS, RAYS, SEALED, Shift, all_shifts
from bayescade.pipeline.shift_table import markdown, summary, table_row
from bayescade.progress import message, progress
from bayescade.results import Reconstruction
from bayescade.seeds import check_seed, derived_seed
from bayescade.storage.files import check_folder, make_folder, write_json, write_text
from bayescade.uncertainty.intervals import FEWEST, LEVEL, LEVELS, Intervals, fit_intervals, image_loss, mean_width
from bayescade.uncertainty.outcomes import Outcome, outcome, region_ratios
from bayescade.uncertainty.scores import interval_score
from bayescade.uncertainty.strata import steps

SPLIT = "test"
DATA_RANGE = 1.0
REGION = 8  # pixels: edge of the regions that must not be wrong without a warning
FAR, LARGE = 5.0, 0.05  # claimed standard deviations, and part of the data range: a region that is wrong
FEW_SCANS = 100  # of calibrations for the rows with another geometry or noise
STEEP = 0.1  # the pixels with the largest gradients of the truth: this part of all
OBJECT = 0.01  # of the data range: pixels with a larger true value belong to the object
ONE_STD = 0.68  # level of an interval of one standard deviation
LARGEST = 71.0  # pixels: the largest line integral of an ellipse image, the mean of 200 validation images
PARTS = ("aleatoric", "epistemic", "epistemic_symmetries", "geometry_variance")
CELL_VALUES = ("images", "oracle_width")
# Kinds of rows whose images by the stated and by the true centre are compared too.
COMPARED = ("centre", "clean")


@dataclasses.dataclass(frozen=True)
class ShiftBenchmark:
    """What `benchmark shift` computes."""

    model: str = "any"
    case: str | None = None  # by default sparse-32
    geometry_file: str | None = None
    images: int = 50  # of every row
    calibration_images: int = 500
    samples: int = 8
    uncertainty: str = OWN  # or bootstrap
    patients: str | None = None  # an image file, values in [0, 1]; its second half is the test
    rows: str = ""  # only rows whose name has this part
    sealed: bool = False  # the rows that nothing was chosen on
    seed: int = 0
    out: str | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        check_samples(self.samples)
        check_uncertainty(self.uncertainty)
        check_seed(self.seed)
        if not 1 <= self.images <= 1000:
            raise UserError(f"--images: expected a whole number from 1 to 1000, got {self.images}")

    def geometry(self) -> tuple[str, Geometry]:
        """Name and geometry of the scans."""
        return choose_geometry(self.case or (None if self.geometry_file else "sparse-32"), self.geometry_file)


def benchmark_shift(request: ShiftBenchmark, shifts: Sequence[Shift] | None = None) -> dict[str, Any]:
    """The rows and the summary; with `out`, also writes table.md and table.json."""
    if request.out is not None:
        check_folder(request.out, "table.json", "table.md")
    bench = Bench(request)
    chosen = bench.chosen(shifts if shifts is not None else SEALED if request.sealed else all_shifts())
    cells = {}
    with progress("benchmark shift: rows", len(chosen)) as advance:
        for shift in chosen:
            cells[shift.name] = bench.cell(shift)
            advance(1, shift.name)
    clean = cells.get(CLEAN.name) or bench.cell(CLEAN)
    table = [table_row(shift, cells[shift.name], clean) for shift in chosen]
    answer = {
        **{
            name: getattr(request, name)
            for name in ("model", "uncertainty", "images", "calibration_images", "samples", "seed")
        },
        "case": bench.case,
        "rows": table,
        "summary": summary(table),
    }
    if request.out is not None:
        write_text(Path(request.out) / "table.md", markdown(answer))
        write_json(Path(request.out) / "table.json", answer)
    return answer


Prepared = tuple[Examiner, Calibration]


class Bench:
    """A request, and what its rows share."""

    def __init__(self, request: ShiftBenchmark):
        self.request = request
        self.device = choose_device(request.device)
        self.case, self.geometry = request.geometry()
        self.patients = read_patients(request.patients) if request.patients is not None else None
        self.folder = make_folder(Path(request.out) / "cells") if request.out is not None else None
        self._prepared: dict[tuple[Geometry, Noise], Prepared] = {}

    def chosen(self, shifts: Sequence[Shift]) -> list[Shift]:
        """The rows whose name has the requested part, and whose images are there."""
        rows = [shift for shift in shifts if self.request.rows in shift.name]
        rows = [shift for shift in rows if shift.objects != PATIENTS or self.patients is not None]
        if not rows:
            raise UserError(f"--rows: expected a part of the name of a row, e.g. 'centre', got '{self.request.rows}'")
        return rows

    def prepared(self, geometry: Geometry, noise: Noise, largest: float | None) -> Prepared:
        """The examiner of a geometry, and its calibration."""
        key = (geometry, noise)
        if key not in self._prepared:
            self._prepared[key] = self._prepare(geometry, noise, largest)
        return self._prepared[key]

    def _prepare(self, geometry: Geometry, noise: Noise, largest: float | None) -> Prepared:
        request = self.request
        bootstrap = Bootstrap(noise) if request.uncertainty == BOOTSTRAP else None
        examiner = Examiner(request.model, geometry, samples=request.samples, device=self.device, bootstrap=bootstrap)
        usual = geometry == self.geometry and noise == common_noise()
        images = request.calibration_images if usual else min(request.calibration_images, FEW_SCANS)
        kind = ScanKind(geometry, noise, largest)
        example = torch.rand(1, 1, *geometry.sinogram_shape)
        return examiner, calibration_for(examiner, kind, example, images=images, say=message)

    def source(self, shift: Shift) -> Source:
        """The objects of a row."""
        shape, seed = self.geometry.image_shape, self.request.seed
        if shift.objects != PATIENTS:
            return image_source(shift.objects, shape, seed=seed, split=SPLIT, device=self.device)
        assert self.patients is not None
        stored = patients_of_split(self.patients, "test").to(self.device)

        def images(first: int, count: int, supersample: int) -> Tensor:
            size = [edge * supersample for edge in shape]
            return interpolate(stored[first : first + count], size=size, mode="bilinear", align_corners=False)

        return Source(images, len(stored), None)

    def cell(self, shift: Shift) -> dict[str, Any]:
        """The numbers of a row: stored ones, or computed now."""
        examiner, _ = self.prepared(shift.stated(self.geometry), common_noise(), None)
        text = {
            "version": __version__,
            "row": shift.name,
            "images": self.request.images,
            "calibration_images": self.request.calibration_images,
            "samples": self.request.samples,
            "seed": self.request.seed,
            "patients": None if self.patients is None or shift.objects != PATIENTS else float(self.patients.sum()),
            "calibration": key_of(examiner, ScanKind(self.geometry, common_noise())),
        }
        key = json.dumps(text, sort_keys=True)
        path = self.folder / cell_file_name(shift.name, key) if self.folder is not None else None
        if path is not None and path.exists():
            return read_cell(path, key, CELL_VALUES)
        values = self.computed(shift)
        if path is not None:
            write_cell(path, key, values)
        return values

    def computed(self, shift: Shift) -> dict[str, Any]:
        """The numbers of a row."""
        source = self.source(shift)
        count = min(self.request.images, source.count or self.request.images)
        records, outcomes = [], []
        examiner, calibration = self.prepared(
            shift.stated(self.geometry), shift.stated_noise(LARGEST), LARGEST if shift.photons is not None else None
        )
        intervals = calibration.intervals
        with progress(shift.name, count) as advance:
            for index in range(count):
                scan = self.scan(shift, source, index)
                examined = examiner(scan.sinogram, noise=scan.stated, seed=self.request.seed, index=index)
                result = assessed(examined, scan.sinogram, calibration)
                outcomes.append(outcome(examined.result, scan.truth, shift.objects))
                record = image_record(result, examined.result, scan.truth, outcomes[-1], intervals)
                if shift.kind in COMPARED:
                    record |= self.compared(examiner, scan, index)
                record |= centre_record(examined, scan.shift)
                records.append(record)
                advance(1)
        return {"images": records, "oracle_width": oracle_width(outcomes)}

    def scan(self, shift: Shift, source: Source, index: int) -> "FaultyScan":
        """One scan of a row."""
        rng = shift.generator(self.request.seed, index)
        geometry = self.geometry
        image = source.images(index, 1, shift.grid)
        if shift.objects_change is not None:
            image = shift.objects_change(image, rng)
        image = measured_with_border(image, geometry, border_bins(geometry.bins) + MORE_BORDER)
        errors = shift.errors(geometry, rng) if shift.errors is not None else no_errors(geometry)
        scanner = Scanner(grid_factor=shift.grid, rays_per_bin=RAYS, attenuation=ATTENUATION)
        largest = float(largest_integrals(image, geometry)) if shift.photons is not None else LARGEST
        seed = derived_seed(self.request.seed, "shift scans")
        scans = scans_with_these_errors(image, [geometry], scanner, [errors], shift.scan_noise(largest), seed, [index])
        sinogram = scans.sinogram
        if shift.change is not None:
            sinogram = shift.change(sinogram, geometry, rng)
        lost = (geometry.bins - shift.stated(geometry).bins) // 2
        sinogram = sinogram[..., lost : geometry.bins - lost]
        return FaultyScan(sinogram, scans.truth, float(errors.centre), shift.stated_noise(largest))

    def compared(self, examiner: Examiner, scan: "FaultyScan", index: int) -> dict[str, float]:
        """PSNR with the stated centre, and with the true one."""
        values = {}
        for name, shift in (("psnr_stated", 0.0), ("psnr_known", scan.shift)):
            result = examiner.with_centre(scan.sinogram, shift, seed=self.request.seed, index=index)
            values[name] = psnr_of(result, scan.truth)
        return values


@dataclasses.dataclass(frozen=True)
class FaultyScan:
    """A scan with its truth."""

    sinogram: Tensor  # (1, 1, views, bins)
    truth: Tensor  # (1, 1, height, width)
    shift: float  # bins, of the centre
    stated: Noise  # as the file states it


def image_record(
    result: Reconstruction,  # calibrated
    raw: Reconstruction,  # before calibration
    truth: Tensor,
    summary: Outcome,  # of `raw`
    intervals: Intervals | None,
) -> dict[str, Any]:
    """The numbers of one image."""
    truth = truth.to(result.image)
    error = (result.image - truth).double()
    record: dict[str, Any] = {
        "psnr": psnr_of(result, truth),
        "claimed": float(result.variance.double().mean().sqrt()),
        "claimed_raw": summary.claimed,
        "found": summary.found,
        "warned": bool(result.warnings and result.warnings[0]),
        "causes": [str(item["cause"]) for item in (result.warnings or [[]])[0]],
        "noted": bool(result.notes and result.notes[0]),
        "parts": {name: mean_of(getattr(result, name)) for name in PARTS},
    }
    if intervals is not None:
        assert result.upper is not None
        multipliers = [row[LEVELS.index(LEVEL)] for row in intervals.multipliers]
        half = (result.upper - result.image).double()
        record |= {
            "coverage": 1 - image_loss(summary, intervals.groups, multipliers),
            "coverage_object": covered(error, half, truth > OBJECT * DATA_RANGE),
            "coverage_steep": covered(error, half, steep_pixels(truth)),
            "width": mean_width(summary, intervals.groups, multipliers),
            "interval_score": interval_score(error.flatten(), half.flatten(), LEVEL),
            "locally_wrong": locally_wrong(error[0, 0], result.variance.double()[0, 0], intervals),
        }
    return record


def psnr_of(result: Reconstruction, truth: Tensor) -> float:
    """The PSNR of one image."""
    return float(psnr(result.image, truth.to(result.image), DATA_RANGE))


def mean_of(values: Tensor | None) -> float | None:
    """The mean of a map; None if there is none."""
    return float(values.double().mean()) if values is not None else None


def covered(error: Tensor, half: Tensor, chosen: Tensor) -> float | None:
    """The share of the chosen pixels whose error is at most half the width of their interval; None without pixels."""
    return float((error.abs() <= half)[chosen].double().mean()) if bool(chosen.any()) else None


def steep_pixels(truth: Tensor) -> Tensor:
    """The tenth of the pixels with the largest gradients of the truth."""
    gradient = steps(truth)
    return gradient >= gradient.flatten().quantile(1 - STEEP)


def locally_wrong(error: Tensor, variance: Tensor, intervals: Intervals) -> bool:
    """Whether a mean over 8 x 8 pixels is off by more than FAR of its standard deviations and by LARGE of the range."""
    size = min(REGION, *error.shape)
    std = intervals.region_multiplier(size**2, ONE_STD)
    ratios = region_ratios(error, variance, size)
    means = avg_pool2d(error[None, None], size).abs().flatten()
    return bool(((ratios > FAR * std) & (means > LARGE * DATA_RANGE)).any())


def centre_record(examined: Examined, true_shift: float) -> dict[str, Any]:
    """The estimate of the centre and its error, in bins."""
    centre = examined.centre
    return {
        "centre_error": float(centre.shift) - true_shift,
        "centre_std": float(centre.std),
        "estimate_error": float(centre.estimate) - true_shift,
        "estimate_std": float(centre.estimate_std),
        "centre_known": bool(centre.known.all()),
    }


def oracle_width(outcomes: Sequence[Outcome]) -> float | None:
    """The mean width of intervals that are calibrated on these images themselves."""
    if len(outcomes) < FEWEST:
        return None
    oracle = fit_intervals(outcomes)
    multipliers = [row[LEVELS.index(LEVEL)] for row in oracle.multipliers]
    return sum(mean_width(one, oracle.groups, multipliers) for one in outcomes) / len(outcomes)
