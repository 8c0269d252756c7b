"""`bayescade evaluate`: simulates scans of new ellipse images or of given images, reconstructs and scores them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bayescade.data.noise import Noise, noise_from_json
from bayescade.data.simulate import Scans, chunks, scan_set
from bayescade.data.sources import file_source, image_source
from bayescade.devices import choose_device
from bayescade.figures.report import REPORT_FILES, write_report
from bayescade.models import geometry_of, is_for_any_scan, load_model, model_folder, model_scan
from bayescade.physics.geometry import Geometry
from bayescade.pipeline.reconstruct import check_samples
from bayescade.pipeline.scan_geometry import choose_geometry
from bayescade.pipeline.scores import Scores, mean, result_scores, uncertainty_row
from bayescade.pipeline.simulate import choose_count
from bayescade.progress import Advance, progress, quiet
from bayescade.results import Reconstruction, Reconstructor, joined
from bayescade.seeds import check_seed
from bayescade.storage.files import check_folder
from bayescade.storage.manifest import read_manifest


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
    report: str | None = None,  # folder for a page, its figure and its scores
    device: str = "auto",
) -> dict[str, Any]:
    """Computes one row of scores; with `report` also writes a page with figures."""
    check_samples(samples)
    check_seed(seed)
    if report is not None:
        check_folder(report, *REPORT_FILES)
    name, geometry = model_geometry(model, case, geometry_file)
    scan_noise = noise or model_noise(model)
    torch_device = choose_device(device)
    method = load_model(model, geometry, settings=settings, device=torch_device)

    if truth is None:
        source = image_source("ellipses", geometry.image_shape, seed=seed, split="test", device=torch_device)
    else:
        source = file_source(truth, geometry.image_shape)
    count = choose_count(images, source.count, default=100)
    scans = scan_set(source, geometry, scan_noise, seed=seed, count=count, device=torch_device)
    with progress(f"scoring {model} on {name}", count) as advance:
        scores, result = score(method, scans, geometry, samples=samples, seed=seed, advance=advance)
    row = score_row(model, name, count, scores, result.warning)
    if truth is None:
        shepp_logan = image_source("shepp-logan", geometry.image_shape, seed=seed, device=torch_device)
        phantom_scans = scan_set(shepp_logan, geometry, scan_noise, seed=seed, count=1, device=torch_device)
        phantom_scores, phantom_result = score(method, phantom_scans, geometry, samples=samples, seed=seed)
        row["psnr_shepp_logan"] = mean(phantom_scores["psnr"])
        row["warning"] = row["warning"] or phantom_result.warning
    answer = {"rows": [row], "seed": seed, "data_range": 1.0}
    if report is not None:
        answer["report"] = str(write_report(report, result, scores, row))
    return answer


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


def score(
    method: Reconstructor,
    scans: Scans,
    geometry: Geometry,
    *,
    samples: int,
    seed: int,
    advance: Advance = quiet,
) -> tuple[Scores, Reconstruction]:
    """Scores of every image, and the reconstructions of the first batch, with the warnings of all batches."""
    scores: Scores = {}
    first_result: Reconstruction | None = None
    warnings: list[str] = []
    for first, count in chunks(geometry, len(scans.truth)):
        result = method(scans.sinogram[first : first + count], samples=samples, seed=seed, index=first)
        for name, values in result_scores(result, scans.truth[first : first + count]).items():
            scores.setdefault(name, []).extend(values)
        first_result = first_result or dataclasses.replace(result, truth=scans.truth[first : first + count])
        warnings += [result.warning] if result.warning else []
        advance(count)
    assert first_result is not None
    return scores, dataclasses.replace(first_result, warning=joined(warnings))


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
