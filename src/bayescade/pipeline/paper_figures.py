"""The figures of `bayescade benchmark paper`, from the same models, noise and seed as its table.

Maps of uncertainty for few views and for a limited arc; an image with a word (out of distribution) and without it, on one
scale; the learned methods side by side on the Shepp-Logan phantom.
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
IMAGE = 3  # of the test set, for maps and for the word


@dataclasses.dataclass(frozen=True)
class Bench:
    """How images are scanned and reconstructed for a figure."""

    case: str
    models: Mapping[str, str]  # method -> model, learned ones only
    samples: int
    seed: int
    device: torch.device
    settings: Sequence[str] = ()  # "key=value", of the learned methods

    def result(self, method: str, truth: Tensor, index: int) -> Reconstruction:
        """The reconstruction of one image, with the noise that the table gives to that index of the test set."""
        geometry = case_geometry(self.case)
        clean = ray_transform(geometry, self.device)(truth.to(self.device))
        sinogram = add_noise(clean, NOISE, seed=self.seed, first=index)
        settings = self.settings if method in self.models else PAPER_SETTINGS.get(method, ())
        model = load_model(self.models.get(method, method), geometry, settings=settings, device=self.device)
        return dataclasses.replace(model(sinogram, samples=self.samples, seed=self.seed), truth=truth)

    def scan(self) -> str:
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
    """Makes the figures for which there are models; a figure of the same models and seed is not made again."""
    wanted: list[tuple[str, Callable[[Bench, Path], None], Bench]] = []
    for case in CASES:
        of_case = {method: model for (method, known), (model, _) in models.items() if known == case}
        bench = Bench(case, of_case, samples, seed, device, settings)
        if BAYESIAN in of_case:
            wanted += [(f"maps_{case}", draw_maps, bench), (f"text_{case}", draw_text, bench)]
        if len(of_case) > 1:
            wanted.append((f"shepp-logan_{case}", draw_side_by_side, bench))
    with progress("figures", len(wanted)) as advance:
        for name, draw, bench in wanted:
            hashes = {method: models[method, bench.case][1] for method in bench.models}
            key = json.dumps([name, hashes, samples, seed, settings, __version__], sort_keys=True)
            path, stamp = folder / f"{name}.png", folder / "cells" / f"figure_{name}.json"
            if not (path.exists() and stamp.exists() and read_text(stamp) == key):
                draw(bench, path)
                write_text(stamp, key)
            advance(1)
    return [str(folder / f"{name}.png") for name, _, _ in wanted]


def draw_maps(bench: Bench, path: Path) -> None:
    """An ellipse image and the Shepp-Logan phantom: image, error, and maps of uncertainty."""
    rows = []
    for truth, index in ((example(), IMAGE), (shepp_logan.generate(1), ellipses.PAPER_TEST)):
        result = bench.result(BAYESIAN, truth, index)
        rows.append(named(reconstruction_panels(result), result))
    draw_panels(rows, path, result.geometry, f"BDGD+ from {bench.scan()} with 1 % noise, {bench.samples} samples")


def draw_text(bench: Bench, path: Path) -> None:
    """The same image without and with a word, the same noise, everything on one scale."""
    clean = example()
    rows = []
    for truth in (clean, text.written(clean)):
        result = bench.result(BAYESIAN, truth, IMAGE)
        rows.append(named(reconstruction_panels(result), result))
    title = f"BDGD+ from {bench.scan()}: an image like those it was trained on, and one that is not"
    draw_panels(rows, path, result.geometry, title)


def draw_side_by_side(bench: Bench, path: Path) -> None:
    """The Shepp-Logan phantom by FBP and by the learned methods, and their errors on one scale."""
    truth = shepp_logan.generate(1)
    images: list[Panel | None] = [Panel("truth", truth[0, 0].numpy())]
    errors: list[Panel | None] = [None]
    for method in ("fbp", *bench.models):
        result = bench.result(method, truth, ellipses.PAPER_TEST)
        image = result.image[0, 0].cpu().numpy()
        images.append(Panel(f"{method}, {decibels(result)}", image))
        error = Panel(f"error of {method}", image - truth[0, 0].numpy(), "error")
        errors.append(error if method != "fbp" else None)  # FBP's error would hide the others'
    draw_panels([images, errors], path, result.geometry, f"Shepp-Logan from {bench.scan()} with 1 % noise")


def example() -> Tensor:
    """An ellipse image of the paper's test set, (1, 1, 128, 128)."""
    return ellipses.paper_test()[IMAGE : IMAGE + 1]


def named(panels: list[Panel], result: Reconstruction) -> list[Panel]:
    """The panels with the PSNR over the reconstruction."""
    truth, image, *rest = panels
    return [truth, dataclasses.replace(image, title=f"BDGD+, {decibels(result)}"), *rest]


def decibels(result: Reconstruction) -> str:
    """The PSNR in words."""
    assert result.truth is not None
    return f"{image_scores(result.image, result.truth)['psnr'][0]:.2f} dB"
