"""The figures of `bayescade benchmark paper`, from the same models, noise and seed as its table.

Maps of uncertainty for few views and for a limited arc; an image with a word (out of distribution) and without it, in
the same colours; the learned methods side by side on the Shepp-Logan phantom.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bayescade import __version__
from bayescade.data.noise import add_noise
from bayescade.figures.panels import Panel, draw_panels, reconstruction_panels
from bayescade.models import load_model
from bayescade.phantoms import ellipses, shepp_logan, text
from bayescade.physics.cases import case_geometry
from bayescade.pipeline.paper_table import NOISE, PAPER_SETTINGS
from bayescade.pipeline.scores import image_scores
from bayescade.progress import progress
from bayescade.projectors import ray_transform
from bayescade.results import Reconstruction
from bayescade.storage.files import read_text, write_text

CASES = ("sparse-32", "limited-90")
BAYESIAN = "bdgd-plus"  # the method whose uncertainty is drawn
IMAGE = 3  # index in the test set of the image for `draw_maps` and `draw_text`


@dataclasses.dataclass(frozen=True)
class Bench:
    """How images are scanned and reconstructed for a figure."""

    case: str
    models: Mapping[str, str]  # learned method -> model
    samples: int
    seed: int
    device: torch.device
    settings: Sequence[str] = ()  # "key=value", for the learned methods

    def result(self, method: str, truth: Tensor, index: int) -> Reconstruction:
        """The reconstruction of one image, with the noise that the table uses for this index of the test set."""
        geometry = case_geometry(self.case)
        clean = ray_transform(geometry, self.device)(truth.to(self.device))
        sinogram = add_noise(clean, NOISE, seed=self.seed, first=index)
        settings = self.settings if method in self.models else PAPER_SETTINGS.get(method, ())
        model = load_model(self.models.get(method, method), geometry, settings=settings, device=self.device)
        return dataclasses.replace(model(sinogram, samples=self.samples, seed=self.seed), truth=truth)

    def scan_text(self) -> str:
        """The scan in words."""
        views = case_geometry(self.case).views
        return f"{views} views" if self.case.startswith("sparse") else f"{views} views of [0, {views}) degrees"


def paper_figures(
    models: Mapping[tuple[str, str], tuple[str, str]],  # (method, case) -> model and its hash
    folder: Path,
    *,
    samples: int,
    seed: int,
    device: torch.device,
    settings: Sequence[str] = (),
) -> list[str]:
    """Writes the figures for which there are models, and gives their paths.

    A figure is made again only if the models, samples, seed, settings or version changed.
    """
    wanted: list[tuple[str, Callable[[Bench, Path], None], Bench]] = []
    for case in CASES:
        case_models = {method: model for (method, model_case), (model, _) in models.items() if model_case == case}
        bench = Bench(case, case_models, samples, seed, device, settings)
        if BAYESIAN in case_models:
            wanted += [(f"maps_{case}", draw_maps, bench), (f"text_{case}", draw_text, bench)]
        if len(case_models) > 1:
            wanted.append((f"shepp-logan_{case}", draw_side_by_side, bench))
    with progress("figures", len(wanted)) as advance:
        for name, draw, bench in wanted:
            hashes = {method: models[method, bench.case][1] for method in bench.models}
            key = json.dumps([name, hashes, samples, seed, settings, __version__], sort_keys=True)
            path, key_path = folder / f"{name}.png", folder / "cells" / f"figure_{name}.json"
            if not (path.exists() and key_path.exists() and read_text(key_path) == key):
                draw(bench, path)
                write_text(key_path, key)
            advance(1)
    return [str(folder / f"{name}.png") for name, _, _ in wanted]


def draw_maps(bench: Bench, path: Path) -> None:
    """An ellipse image and the Shepp-Logan phantom: image, error, and maps of uncertainty."""
    rows = []
    for truth, index in ((example_image(), IMAGE), (shepp_logan.generate(1), ellipses.PAPER_TEST)):
        result = bench.result(BAYESIAN, truth, index)
        rows.append(with_psnr(reconstruction_panels(result), result))
    draw_panels(rows, path, result.geometry, f"BDGD+ from {bench.scan_text()} with 1 % noise, {bench.samples} samples")


def draw_text(bench: Bench, path: Path) -> None:
    """The same image without and with a word, with the same noise and the same colour limits."""
    clean = example_image()
    rows = []
    for truth in (clean, text.written(clean)):
        result = bench.result(BAYESIAN, truth, IMAGE)
        rows.append(with_psnr(reconstruction_panels(result), result))
    title = f"BDGD+ from {bench.scan_text()}: an image like those it was trained on, and one that is not"
    draw_panels(rows, path, result.geometry, title)


def draw_side_by_side(bench: Bench, path: Path) -> None:
    """The Shepp-Logan phantom by FBP and by the learned methods, and the errors of the learned methods."""
    truth = shepp_logan.generate(1)
    images: list[Panel | None] = [Panel("truth", truth[0, 0].numpy())]
    errors: list[Panel | None] = [None]
    for method in ("fbp", *bench.models):
        result = bench.result(method, truth, ellipses.PAPER_TEST)
        image = result.image[0, 0].cpu().numpy()
        images.append(Panel(f"{method}, {psnr_text(result)}", image))
        error = Panel(f"error of {method}", image - truth[0, 0].numpy(), "error")
        # On a shared scale, the large error of FBP would hide the errors of the other methods.
        errors.append(error if method != "fbp" else None)
    draw_panels([images, errors], path, result.geometry, f"Shepp-Logan from {bench.scan_text()} with 1 % noise")


def example_image() -> Tensor:
    """An ellipse image of the paper's test set, (1, 1, 128, 128)."""
    return ellipses.paper_test()[IMAGE : IMAGE + 1]


def with_psnr(panels: list[Panel], result: Reconstruction) -> list[Panel]:
    """The panels, with the PSNR in the title of the reconstruction."""
    truth, image, *rest = panels
    return [truth, dataclasses.replace(image, title=f"BDGD+, {psnr_text(result)}"), *rest]


def psnr_text(result: Reconstruction) -> str:
    """The PSNR of the first image, as text."""
    assert result.truth is not None
    return f"{image_scores(result.image, result.truth)['psnr'][0]:.2f} dB"
