"""`bayescade benchmark any`: compares a model for any scan with total variation (TV), on many scans and objects.

A row of the table has two cells, stored in two files: TV with FBP, and the model. So TV is not computed again for another
model. A cell holds a number for every image; the row and the summary are computed from the cells (`any_table`).
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from bayescade import __version__, phantoms, plugins
from bayescade.data.images import read_images
from bayescade.data.objects import seen_whole
from bayescade.data.scanner import Scanner
from bayescade.data.simulate import Scans, chunks, scan_batches
from bayescade.data.sources import Source, image_source
from bayescade.data.splits import split_seed
from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.metrics.psnr import psnr
from bayescade.models import is_for_any_scan, load_model, model_folder
from bayescade.pipeline.any_rows import PATIENTS, Row, all_rows
from bayescade.pipeline.any_table import markdown, summary, table_row
from bayescade.pipeline.cells import cell_file_name, read_cell, write_cell
from bayescade.pipeline.reconstruct import check_samples
from bayescade.pipeline.scores import DATA_RANGE, finite
from bayescade.pipeline.tv_choice import choose_constant, tv_images, validation_score
from bayescade.progress import Advance, progress
from bayescade.projectors import ray_transform
from bayescade.results import Reconstructor, joined
from bayescade.seeds import check_seed
from bayescade.storage.files import check_folder, make_folder, write_json, write_text
from bayescade.storage.manifest import model_hash, read_manifest
from bayescade.uncertainty.scores import quantile

SCANNER = Scanner(grid_factor=3, rays_per_bin=2)  # otherwise ideal
VALIDATION, TEST = "validation", "test"  # splits
LEVEL = 0.9  # of the intervals whose coverage is in the table
OBJECT = 0.01  # pixels with a larger true value belong to the object
TV_CALLS = 20_000  # of the operator in a cell of TV, about
MOST_IMAGES = 1000
TV_VALUES = ("psnr", "fbp_psnr", "constant", "tried", "at_end", "unconverged", "validation_images", "seconds")
MODEL_VALUES = ("psnr", "square_error", "variance", "object_pixels", "covered", "seconds_per_image", "warning")


@dataclasses.dataclass(frozen=True)
class AnyBenchmark:
    """What `benchmark any` computes."""

    model: str = "any"  # a model for any scan, or a method for any geometry
    images: int = 20  # test images of a row
    samples: int = 10  # Monte-Carlo samples of the model
    validation_images: int = 8  # scans of a row that choose the constant of TV
    patients: str | None = None  # an image file, values in [0, 1]: first half for validation, second half for the test
    rows: str = ""  # only rows whose name has this part
    seed: int = 0
    out: str | None = None  # folder of cells, table.md and table.json
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("images", "validation_images"):
            if not 1 <= getattr(self, name) <= MOST_IMAGES:
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{option}: expected a whole number from 1 to {MOST_IMAGES}, got {getattr(self, name)}")
        check_samples(self.samples)
        check_seed(self.seed)


@dataclasses.dataclass(frozen=True)
class Bench:
    """A request, and what all its cells share."""

    request: AnyBenchmark
    device: torch.device
    patients: Tensor | None  # (images, 1, height, width)
    folder: Path | None  # of the cells; None: they are not stored
    model_key: str  # hash of the weights and of how they are sampled; the name of a method without weights


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell of the table: how it is computed, and where it is stored."""

    row: Row
    key: str  # JSON text of everything that the cell depends on
    path: Path | None
    names: tuple[str, ...]  # of its values
    compute: Callable[[Bench, Row], dict[str, Any]]

    def is_stored(self) -> bool:
        """Whether the cell was computed by an earlier run."""
        return self.path is not None and self.path.exists()


def benchmark_any(
    request: AnyBenchmark,
    rows: Sequence[Row] | None = None,  # default: all rows of `any_rows`
) -> dict[str, Any]:
    """The rows and the summary; with `out`, also writes table.md and table.json.

    Cells that an earlier run stored in `out` are not computed again.
    """
    if request.out is not None:
        check_folder(request.out, "table.json", "table.md")
    chosen = chosen_rows(rows if rows is not None else all_rows(), request.rows)
    bench = Bench(
        request,
        choose_device(request.device),
        read_patients(request.patients) if request.patients is not None else None,
        make_folder(Path(request.out) / "cells") if request.out is not None else None,
        model_key_of(request.model),
    )
    cells = {row.name: (tv_cell(bench, row), model_cell(bench, row)) for row in chosen if has_images(bench, row)}
    missing = sum(not cell.is_stored() for pair in cells.values() for cell in pair)
    table = []
    with progress("benchmark any: cells", missing) as advance:
        for row in chosen:
            values = [values_of(bench, cell, advance) for cell in cells.get(row.name, ())]
            table.append(table_row(row, *values))
    answer = {
        **{name: getattr(request, name) for name in ("model", "images", "samples", "validation_images", "seed")},
        "data_range": DATA_RANGE,
        "rows": table,
        "summary": summary(table),
    }
    if request.out is not None:
        write_text(Path(request.out) / "table.md", markdown(answer))
        write_json(Path(request.out) / "table.json", answer)
    return answer


def chosen_rows(rows: Sequence[Row], part: str) -> list[Row]:
    """The rows whose name has this part; raises if there are none, or if the phantom of a row is unknown."""
    chosen = [row for row in rows if part in row.name]
    if not chosen:
        raise UserError(
            f"--rows: expected a part of the name of a row, e.g. 'ellipses-views-32' or 'patients', got '{part}'"
        )
    known = plugins.names(phantoms)
    for row in chosen:
        if row.objects != PATIENTS and row.objects not in known:
            raise UserError(f"row {row.name}: {plugins.unknown('phantom', row.objects, known)}")
    return chosen


def model_key_of(name: str) -> str:
    """What the results of a model depend on; raises if the model is not for any scan."""
    folder = model_folder(name)
    if folder is None:
        return name
    manifest = read_manifest(folder)
    if not is_for_any_scan(manifest):
        raise UserError(
            f"--model: expected a model for any scan, got '{name}', which is for {manifest.case}; train one: "
            "bayescade train bdgd-plus --preset any --out RUN"
        )
    return model_hash(manifest)


def read_patients(path: str) -> Tensor:
    """The images of a file, at least two, with values in [0, 1]."""
    images = read_images(path)
    least, largest = float(images.min()), float(images.max())
    if len(images) < 2:
        raise UserError(f"{path}: expected at least 2 images, half of them for validation, got {len(images)}")
    if least < 0 or largest > 1:
        raise UserError(f"{path}: expected values from 0 to 1, got {least:g} to {largest:g}; scale the images")
    return images


def has_images(bench: Bench, row: Row) -> bool:
    """Whether there are images of the objects of a row."""
    return row.objects != PATIENTS or bench.patients is not None


def image_count(bench: Bench, row: Row, split: str) -> int:
    """The number of images of a row; of patients, at most those of the file."""
    wanted = bench.request.images if split == TEST else bench.request.validation_images
    if row.objects != PATIENTS:
        return wanted
    assert bench.patients is not None
    return min(wanted, len(patients_of_split(bench.patients, split)))


def patients_of_split(images: Tensor, split: str) -> Tensor:
    """The first half of the images for validation, the second half for the test."""
    half = len(images) // 2
    return images[half:] if split == TEST else images[:half]


def object_source(bench: Bench, row: Row, split: str) -> Source:
    """The objects of a row, cut off outside the circle that every view sees whole, as in a training."""
    shape = row.geometry.image_shape
    if row.objects == PATIENTS:
        assert bench.patients is not None
        source = patient_source(patients_of_split(bench.patients, split), shape)
    else:
        source = image_source(row.objects, shape, seed=bench.request.seed, split=split, device=bench.device)

    def images(first: int, count: int, supersample: int) -> Tensor:
        return seen_whole(source.images(first, count, supersample), [row.geometry] * count)

    return Source(images, source.count, None)


def patient_source(stored: Tensor, shape: tuple[int, int]) -> Source:
    """Stored images, interpolated to the pixels of the object."""

    def images(first: int, count: int, supersample: int) -> Tensor:
        size = [pixels * supersample for pixels in shape]
        chosen = stored[first : first + count]
        return interpolate(chosen, size, mode="bilinear", align_corners=False, antialias=True).clamp(0, 1)

    return Source(images, len(stored), None)


def row_scans(bench: Bench, row: Row, split: str) -> Scans:
    """The scans of a row; scan i depends on the seed, the split and i only."""
    seed = split_seed(bench.request.seed, split)
    source, count = object_source(bench, row, split), image_count(bench, row, split)
    batches = list(
        scan_batches(source, row.geometry, row.noise, seed=seed, count=count, scanner=SCANNER, device=bench.device)
    )
    return Scans(torch.cat([batch.sinogram for batch in batches]), torch.cat([batch.truth for batch in batches]))


def tv_cell(bench: Bench, row: Row) -> Cell:
    """The cell of TV and FBP."""
    validation_images = image_count(bench, row, VALIDATION)
    key = cell_key(bench, row, method="tv", validation_images=validation_images)
    return Cell(row, key, cell_path(bench, f"tv_{row.name}", key), TV_VALUES, compute_tv)


def model_cell(bench: Bench, row: Row) -> Cell:
    """The cell of the model."""
    key = cell_key(bench, row, method=bench.model_key, samples=bench.request.samples)
    return Cell(row, key, cell_path(bench, f"model_{row.name}", key), MODEL_VALUES, compute_model)


def cell_key(bench: Bench, row: Row, **more: str | int) -> str:
    """JSON text of everything that a cell depends on."""
    key = {
        "row": row.name,
        "geometry": digest(row.geometry.to_json().encode()),
        "objects": objects_key(bench, row),
        "noise": row.noise.to_json(),
        "scanner": dataclasses.asdict(SCANNER),
        "images": image_count(bench, row, TEST),
        "seed": bench.request.seed,
        "version": __version__,
        **more,
    }
    return json.dumps(key, sort_keys=True)


def objects_key(bench: Bench, row: Row) -> str:
    """The name of the phantom of a row, or the start of a hash of the images of patients."""
    if row.objects != PATIENTS:
        return row.objects
    assert bench.patients is not None
    return digest(bench.patients.numpy().tobytes())


def digest(content: bytes) -> str:
    """The start of a hash."""
    return hashlib.sha256(content).hexdigest()[:16]


def cell_path(bench: Bench, name: str, key: str) -> Path | None:
    """The file of a cell; None without a folder."""
    return bench.folder / cell_file_name(name, key) if bench.folder is not None else None


def values_of(bench: Bench, cell: Cell, advance: Advance) -> dict[str, Any]:
    """The values of a cell: read from its file, or computed now and stored."""
    if cell.path is not None and cell.is_stored():
        return read_cell(cell.path, cell.key, cell.names)
    values = cell.compute(bench, cell.row)
    if cell.path is not None:
        write_cell(cell.path, cell.key, values)
    advance(1, cell.row.name)
    return values


def compute_tv(bench: Bench, row: Row) -> dict[str, Any]:
    """TV with the constant that is best for the validation scans, and FBP."""
    start = time.perf_counter()
    validation, test = row_scans(bench, row, VALIDATION), row_scans(bench, row, TEST)
    operator = ray_transform(row.geometry, bench.device, batch=len(test.truth), calls=TV_CALLS)
    choice = choose_constant(validation_score(operator, validation.sinogram, validation.truth))
    constants = torch.full((len(test.truth),), choice.constant)
    images, converged = tv_images(operator, test.sinogram, constants)
    return {
        "psnr": image_psnrs(images, test.truth),
        "fbp_psnr": image_psnrs(operator.fbp(test.sinogram), test.truth),
        "constant": choice.constant,
        "tried": choice.tried,
        "at_end": choice.at_end,
        "unconverged": int((~converged).sum()),
        "validation_images": len(validation.truth),
        "seconds": time.perf_counter() - start,
    }


def compute_model(bench: Bench, row: Row) -> dict[str, Any]:
    """The model: for every image its PSNR, mean squared error, mean predictive variance, and covered pixels of the object."""
    scans = row_scans(bench, row, TEST)
    method = load_model(bench.request.model, row.geometry, device=bench.device)
    assert isinstance(method, Reconstructor)
    method(scans.sinogram[:1], samples=1)  # what is prepared in the first call does not count as time of an image
    values: dict[str, list[Any]] = {name: [] for name in MODEL_VALUES[:5]}
    warnings, seconds = [], 0.0
    for first, count in chunks(row.geometry, len(scans.truth)):
        part, truth = scans.sinogram[first : first + count], scans.truth[first : first + count]
        start = time.perf_counter()
        result = method(part, samples=bench.request.samples, seed=bench.request.seed, index=first)
        image = result.image.cpu()  # waits for the device
        seconds += time.perf_counter() - start
        warnings += [result.warning] if result.warning else []
        variance = result.variance.cpu() if result.aleatoric is not None and result.epistemic is not None else None
        for name, numbers in image_values(image, variance, truth.cpu()).items():
            values[name] += numbers
    return {**values, "seconds_per_image": seconds / len(scans.truth), "warning": joined(warnings)}


def image_psnrs(images: Tensor, truth: Tensor) -> list[float | None]:
    """The PSNR of every image; None for an image that is not finite."""
    return [finite(value) for value in psnr(images, truth, DATA_RANGE).tolist()]


def image_values(
    image: Tensor,  # (batch, 1, height, width)
    variance: Tensor | None,  # (batch, 1, height, width); None for a method without uncertainty
    truth: Tensor,  # (batch, 1, height, width)
) -> dict[str, list[float | None]]:
    """For every image: PSNR, mean squared error, mean variance, pixels of the object, and how many of them are covered."""
    error = (image - truth).double()
    is_object = truth > OBJECT
    means = error.square().mean((1, 2, 3))
    values: dict[str, list[float | None]] = {
        "psnr": image_psnrs(image, truth),
        "square_error": [finite(value) for value in means.tolist()],
        "object_pixels": is_object.sum((1, 2, 3)).tolist(),
        "variance": [None] * len(image),
        "covered": [None] * len(image),
    }
    if variance is not None:
        covered = (error.abs() <= quantile(LEVEL) * variance.double().sqrt()) & is_object
        values["variance"] = [finite(value) for value in variance.double().mean((1, 2, 3)).tolist()]
        values["covered"] = covered.sum((1, 2, 3)).tolist()
    return values
