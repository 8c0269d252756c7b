"""`bayescade benchmark sources`: does each part of the variance follow its cause, and only that?

The same objects are scanned with other noise, with a centre of rotation that is known less well (and told so to the model),
and, if a model is given that was trained on fewer images, reconstructed by that. Each part should grow where its cause does, by
as much as the squared error does.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescade.calibration.simulated import CLEAN, ScanKind, SimulatedScan, simulated_scans
from bayescade.data.noise import common_noise
from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.methods._any_scan import AnyScanReconstructor
from bayescade.models import load_model
from bayescade.physics.geometry import Geometry
from bayescade.pipeline.reconstruct import check_samples
from bayescade.pipeline.scan_geometry import choose_geometry
from bayescade.progress import progress
from bayescade.results import Reconstruction, Reconstructor
from bayescade.seeds import check_seed
from bayescade.storage.files import check_folder, make_folder, write_json, write_text

SPLIT = "test"
NOISE = 0.01
PARTS = ("aleatoric", "epistemic", "geometry")


@dataclasses.dataclass(frozen=True)
class SourcesBenchmark:
    """What `benchmark sources` computes."""

    model: str = "any"
    fewer: str | None = None  # the same model, trained on fewer images
    case: str | None = None  # by default sparse-32
    geometry_file: str | None = None
    images: int = 20
    samples: int = 8
    seed: int = 0
    out: str | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        check_samples(self.samples)
        check_seed(self.seed)
        if not 1 <= self.images <= 1000:
            raise UserError(f"--images: expected a whole number from 1 to 1000, got {self.images}")


@dataclasses.dataclass(frozen=True)
class Cause:
    """One row: how it differs from the first one."""

    name: str
    noise: float = NOISE
    centre: float = 0.0  # bins: standard deviation of the error of the centre, which the model is told
    fewer: bool = False  # the model that was trained on fewer images


CAUSES = (
    Cause("1 % noise, exact centre"),
    Cause("noise x 2", noise=2 * NOISE),
    Cause("noise x 4", noise=4 * NOISE),
    Cause("centre within 0.1 bins", centre=0.1),
    Cause("centre within 0.3 bins", centre=0.3),
    Cause("centre within 1 bin", centre=1.0),
    Cause("trained on fewer images", fewer=True),
)


def benchmark_sources(request: SourcesBenchmark) -> dict[str, Any]:
    """The rows; with `out`, also writes table.md and table.json."""
    if request.out is not None:
        check_folder(request.out, "table.json", "table.md")
    case, geometry = choose_geometry(
        request.case or (None if request.geometry_file else "sparse-32"), request.geometry_file
    )
    rows = []
    chosen = [cause for cause in CAUSES if request.fewer is not None or not cause.fewer]
    with progress("benchmark sources", len(chosen) * request.images) as advance:
        for cause in chosen:
            method, numbers = method_of(request, cause, geometry), []
            for scan in scans(request, cause, geometry):
                result = method(scan.sinogram, samples=request.samples, seed=request.seed, index=scan.index)
                numbers.append(record(result, scan.truth))
                advance(1, cause.name)
            rows.append({"row": cause.name, **mean_record(numbers)})
    answer = {
        **{name: getattr(request, name) for name in ("model", "fewer", "images", "samples", "seed")},
        "case": case,
        "rows": rows,
    }
    if request.out is not None:
        make_folder(request.out)
        write_text(Path(request.out) / "table.md", markdown(answer))
        write_json(Path(request.out) / "table.json", answer)
    return answer


def scans(request: SourcesBenchmark, cause: Cause, geometry: Geometry) -> list[SimulatedScan]:
    """The scans of a row: the same objects in all rows."""
    scanner = dataclasses.replace(CLEAN, centre_error=cause.centre)
    kind = ScanKind(geometry, common_noise(cause.noise), scanner=scanner)
    return list(simulated_scans(kind, request.images, seed=request.seed, split=SPLIT))


def method_of(request: SourcesBenchmark, cause: Cause, geometry: Geometry) -> Reconstructor:
    """The model of a row, with the stated centre, whose uncertainty it is told if it can use it."""
    name = request.fewer if cause.fewer and request.fewer is not None else request.model
    method = load_model(name, geometry, device=choose_device(request.device))
    if not method.has_variance:
        raise UserError(f"model '{name}' has no error bars; one that has: any")
    if isinstance(method, AnyScanReconstructor):
        return method.model.bound(geometry, centre_std=cause.centre)
    return method


def record(result: Reconstruction, truth: Tensor) -> dict[str, float]:
    """Mean variances and squared error of an image."""
    zero = torch.zeros_like(result.image)
    parts = (result.aleatoric, result.epistemic, result.geometry_variance)
    values = {name: float((zero if part is None else part).mean()) for name, part in zip(PARTS, parts, strict=True)}
    return {**values, "found": float((result.image - truth.to(result.image)).square().mean())}


def mean_record(numbers: list[dict[str, float]]) -> dict[str, float]:
    """Roots of the means over images: errors, in image units."""
    means = {name: float(np.mean([values[name] for values in numbers])) for name in numbers[0]}
    claimed = sum(means[name] for name in PARTS)
    return {**{name: value**0.5 for name, value in means.items()}, "claimed": claimed**0.5}


def markdown(answer: dict[str, Any]) -> str:
    """The table in Markdown: errors in thousandths of the data range."""
    lines = [
        "| scans | found error | claimed | aleatoric | epistemic | geometry |",
        "|---|---|---|---|---|---|",
    ]
    for row in answer["rows"]:
        cells = [f"{1000 * row[name]:.2f}" for name in ("found", "claimed", *PARTS)]
        lines.append("| " + " | ".join([row["row"], *cells]) + " |")
    lines += [
        "",
        f"{answer['model']} for {answer['case']}, {answer['images']} scans of a row, {answer['samples']} samples; roots "
        "of mean squares over all pixels, in thousandths.",
        "",
    ]
    return "\n".join(lines)
