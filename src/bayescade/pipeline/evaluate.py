"""`bayescade evaluate`: simulates scans of new ellipse images or of given images, reconstructs and scores them."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from bayescade import __version__
from bayescade.calibration.calibrate import Calibration
from bayescade.calibration.store import BOOTSTRAP
from bayescade.data.noise import Noise, noise_from_json
from bayescade.data.simulate import Scans, chunks, scan_set
from bayescade.data.sources import file_source, image_source
from bayescade.devices import choose_device
from bayescade.figures.report import REPORT_FILES, Page, write_report
from bayescade.inference.pooling import concatenated
from bayescade.methods._bootstrap import Bootstrapped
from bayescade.models import geometry_of, is_for_any_scan, load_model, model_folder, model_scan
from bayescade.physics.geometry import Geometry
from bayescade.pipeline.reconstruct import OWN, Request, Worker
from bayescade.pipeline.reliability import outcomes_of, reliability, verdict
from bayescade.pipeline.scan_geometry import choose_geometry
from bayescade.pipeline.scores import Scores, mean, result_scores, uncertainty_row
from bayescade.pipeline.simulate import choose_count
from bayescade.progress import Advance, progress, quiet
from bayescade.results import Reconstruction, Reconstructor, joined
from bayescade.storage.files import check_folder
from bayescade.storage.manifest import read_manifest
from bayescade.uncertainty.outcomes import Outcome

SHOWN = 20  # images of which the report shows three


def evaluate(
    model: str,
    *,
    case: str | None = None,  # name of a standard scan, e.g. sparse-32
    geometry_file: str | None = None,
    truth: str | None = None,  # an image file to scan instead of new ellipse images
    images: int | None = None,
    noise: Noise | None = None,  # default: the noise of the model's training, or 1 % Gaussian noise
    seed: int = 0,
    samples: int = 100,
    settings: Sequence[str] = (),
    calibrate: str = "off",  # or auto, or a number of scans: intervals as those of `reconstruct`
    uncertainty: str = OWN,  # or bootstrap
    report: str | None = None,  # folder for a page, its figures and its scores
    device: str = "auto",
) -> dict[str, Any]:
    """Computes one row of scores; with `report` also writes a page with figures."""
    request = Request(model, samples, seed, settings, calibrate=calibrate, uncertainty=uncertainty, device=device)
    if report is not None:
        check_folder(report, *REPORT_FILES)
    name, geometry = model_geometry(model, case, geometry_file)
    scan_noise = noise or model_noise(model)
    torch_device = choose_device(device)
    if truth is None:
        source = image_source("ellipses", geometry.image_shape, seed=seed, split="test", device=torch_device)
    else:
        source = file_source(truth, geometry.image_shape)
    count = choose_count(images, source.count, default=100)
    scans = scan_set(source, geometry, scan_noise, seed=seed, count=count, device=torch_device)
    worker: Worker | None = None
    if calibrate != "off":
        worker = Worker(request, geometry, scan_noise)
    method = load_model(model, geometry, settings=settings, device=torch_device)
    if uncertainty == BOOTSTRAP:
        method = Bootstrapped(method, geometry, scan_noise, torch_device)
    with progress(f"scoring {model} on {name}", count) as advance:
        results = worker.results(scans.sinogram) if worker else in_batches(method, scans, geometry, samples, seed)
        scored = collected(results, scans.truth, outcomes=report is not None, advance=advance)
    scores = scored.scores
    row = score_row(model, name, count, scores, scored.result.warning)
    if row["uncertainty"] is not None:
        row["uncertainty"]["causes"] = scored.causes
    if truth is None:
        shepp_logan = image_source("shepp-logan", geometry.image_shape, seed=seed, device=torch_device)
        phantom_scans = scan_set(shepp_logan, geometry, scan_noise, seed=seed, count=1, device=torch_device)
        phantom_scores, phantom_result = score(method, phantom_scans, geometry, samples=samples, seed=seed)
        row["psnr_shepp_logan"] = mean(phantom_scores["psnr"])
        row["warning"] = row["warning"] or phantom_result.warning
    answer = {"rows": [row], "seed": seed, "data_range": 1.0}
    if report is not None:
        page = page_of(request, row, scored, scan_noise, only_calibration(worker))
        answer["report"] = str(write_report(report, scored.result, page))
    return answer


def only_calibration(worker: Worker | None) -> Calibration | None:
    """The calibration of all scans; None if there is none, or several."""
    found = list(worker.calibrations.values()) if worker is not None else []
    return found[0] if len(found) == 1 else None


def page_of(
    request: Request, row: dict[str, Any], scored: "Scored", noise: Noise, calibration: Calibration | None
) -> Page:
    """The contents of the report."""
    intervals = calibration.intervals if calibration is not None else None
    found = reliability(scored.outcomes, intervals) if scored.outcomes else None
    conditions = {
        "bayescade": __version__,
        "model": request.model,
        "scan": f"{row['case']}, simulated on the grid of the reconstruction",
        "noise": noise.describe(),
        "images": str(row["images"]),
        "samples": str(request.samples),
        "seed": str(request.seed),
        "settings": ", ".join(request.settings) or "none",
        "calibration": intervals.guarantee() if intervals is not None else "none",
        "warnings": row["warning"] or "none",
    }
    words = verdict(row["uncertainty"], found)
    if found is None:
        return Page(row, scored.scores, words, conditions)
    return Page(row, scored.scores, words, conditions, found.curves, found.regions, found.strata)


def model_geometry(model: str, case: str | None, geometry_file: str | None) -> tuple[str, Geometry]:
    """Name and geometry of the requested scan; if none is requested, of the scan of the model's training.

    A method without training needs a request. A trained model rejects a scan that differs from that of its training.
    """
    training_scan = model_scan(model) if case is None and geometry_file is None else None
    return training_scan or choose_geometry(case, geometry_file)


def model_noise(model: str) -> Noise:
    """The noise of a model's training; 1 % Gaussian noise for a method without training and for models for any scan."""
    folder = model_folder(model)
    if folder is None:
        return Noise()
    manifest = read_manifest(folder)
    if is_for_any_scan(manifest):
        return Noise()
    geometry_of(model, manifest)  # raises an error if the model was not trained for a scan
    return noise_from_json(manifest.settings["noise"])


@dataclasses.dataclass(frozen=True)
class Scored:
    """Scores of every image, and what the report shows."""

    scores: Scores
    result: Reconstruction  # the first images, at most SHOWN or one batch, with the warnings of all
    outcomes: list[Outcome]  # of every image, before calibration; empty without variances, or if not asked for
    causes: dict[str, int]  # cause of a warning -> number of images


# Results of consecutive images: as the model gives them, and calibrated.
Results = Iterable[tuple[Reconstruction, Reconstruction]]


def score(
    method: Reconstructor,
    scans: Scans,
    geometry: Geometry,
    *,
    samples: int,
    seed: int,
    advance: Advance = quiet,
) -> tuple[Scores, Reconstruction]:
    """Scores of every image, and the reconstructions of the first images, with the warnings of all."""
    scored = collected(in_batches(method, scans, geometry, samples, seed), scans.truth, advance=advance)
    return scored.scores, scored.result


def in_batches(
    method: Reconstructor, scans: Scans, geometry: Geometry, samples: int, seed: int
) -> Iterator[tuple[Reconstruction, Reconstruction]]:
    """The results of a method, which are not calibrated."""
    for first, count in chunks(geometry, len(scans.truth)):
        result = method(scans.sinogram[first : first + count], samples=samples, seed=seed, index=first)
        yield result, result


def collected(results: Results, truth: Tensor, *, outcomes: bool = False, advance: Advance = quiet) -> Scored:
    """Scores of consecutive images."""
    scores: Scores = {}
    kept: list[Reconstruction] = []
    warnings: list[str] = []
    found: list[Outcome] = []
    causes: dict[str, int] = {}
    first = 0
    for raw, result in results:
        true = truth[first : first + len(result.image)]
        for name, values in result_scores(result, true).items():
            scores.setdefault(name, []).extend(values)
        if outcomes and raw.aleatoric is not None:
            found += outcomes_of(raw, true)
        if first < SHOWN:
            kept.append(dataclasses.replace(result, truth=true))
        warnings += [result.warning] if result.warning else []
        for items in result.warnings or ():
            for cause in {str(item["cause"]) for item in items}:
                causes[cause] = causes.get(cause, 0) + 1
        first += len(true)
        advance(len(true))
    return Scored(scores, dataclasses.replace(concatenated(kept), warning=joined(warnings)), found, causes)


def score_row(model: str, case: str, images: int, scores: Scores, warning: str | None) -> dict[str, Any]:
    """A row in the answer of `evaluate` and of `benchmark paper`; its keys are part of the public JSON output."""
    return {
        "method": model,  # in `evaluate` the name of the model, e.g. bdgd-plus/sparse-32
        "case": case,
        "images": images,
        "status": "ok",
        "psnr": mean(scores["psnr"]),
        "psnr_shepp_logan": None,
        "ssim": mean(scores.get("ssim")),
        "rmse": mean(scores["rmse"]),
        "uncertainty": uncertainty_row(scores),
        "warning": warning,
    }
