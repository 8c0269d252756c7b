"""Measured scans without truth: reconstruct from every sixth view, and predict the views that were left out.

    python examples/left_out_views.py tooth --data DATA_FOLDER --model any --out OUT_FOLDER

The views left out are divided in turn: one part chooses the weight of total variation (TV), the other is the test. A test view
is predicted by the line integrals A x of an image. Its excess error is the mean squared difference to the measured values minus
the variance of the noise, which `noise_map` estimates; the model and TV are compared view by view. The interval of a ray is
that of A x_t plus noise over samples x_t of the model, which have their aleatoric noise.
"""

import argparse
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import torch
from measured_scans import load_scan
from torch import Tensor

from bayescade import load_model, ray_transform
from bayescade.data.noise_estimate import noise_map
from bayescade.data.preprocess import every_view, other_views
from bayescade.figures.panels import Panel, draw_panels
from bayescade.physics.geometry import Geometry
from bayescade.pipeline.scores import t_interval
from bayescade.storage.files import make_folder
from bayescade.uncertainty.scores import quantile

COARSEN = {"tooth": 5, "diamond": 1, "helsinki": 4}  # bins that are averaged
STEP = 6
CONSTANTS = [0.1 * 1.5**k for k in range(14)]  # of TV
LEVEL = 0.9


@dataclasses.dataclass(frozen=True)
class Views:
    """Views of a measured scan."""

    sinogram: Tensor  # (1, 1, views, bins)
    geometry: Geometry
    unit: str  # of its lengths

    def predicted(self, images: Tensor) -> Tensor:
        """A x of images (count, 1, height, width), (count, 1, views, bins)."""
        return ray_transform(self.geometry, images.device)(images)


def split_views(scan: str, folder: Path) -> tuple[Views, Views, Views]:
    """The views to reconstruct from, those that choose the weight of TV, and the test."""
    array, geometry, unit = load_scan(scan, folder, COARSEN[scan])
    sinogram = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))[None, None]
    others = other_views(sinogram, geometry, STEP)
    return (
        Views(*every_view(sinogram, geometry, STEP), unit),
        Views(*every_view(*others, 2), unit),
        Views(*other_views(*others, 2), unit),
    )


def excess(views: Views, image: Tensor, noise: Tensor) -> Tensor:
    """The excess error of every view, (views,): mean squared residual minus the variance of the noise."""
    residual = (views.predicted(image) - views.sinogram.to(image)).square()
    return (residual - noise.to(image).square()).mean((0, 1, 3)).double().cpu()


def tv_image(given: Views, chooser: Views, device: str) -> tuple[Tensor, float]:
    """The TV image with the constant that predicts the views of the chooser best, and the constant."""
    tried = []
    for constant in CONSTANTS:
        result = load_model("tv", given.geometry, settings=[f"constant={constant}"], device=device)(given.sinogram)
        error = float((chooser.predicted(result.image) - chooser.sinogram.to(result.image)).square().mean())
        tried.append((error, constant, result.image))
    _, constant, image = min(tried, key=lambda item: item[0])
    return image, constant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scan", choices=list(COARSEN))
    parser.add_argument("--data", type=Path, required=True, help="the folder with sino_tooth.npz and the others")
    parser.add_argument("--model", default="any", help="a model for any scan")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    given, chooser, test = split_views(options.scan, options.data)
    noise = noise_map(test.sinogram)
    model = load_model(options.model, given.geometry, device=options.device)
    result = model(given.sinogram, samples=options.samples)
    by_tv, constant = tv_image(given, chooser, options.device)
    model_excess, tv_excess = excess(test, result.image, noise), excess(test, by_tv, noise)
    differences = (model_excess - tv_excess).tolist()
    samples = model.sample_images(given.sinogram, samples=options.samples, seed=0, aleatoric=True)[:, 0]
    projected = test.predicted(samples)
    ray_std = (projected.var(0) + noise[0].to(projected).square()).sqrt()
    covered = (projected.mean(0) - test.sinogram[0].to(projected)).abs() <= quantile(LEVEL) * ray_std
    measured_power = float(test.sinogram.square().mean())
    answer = {
        "scan": options.scan,
        "views": given.geometry.views,
        "test_views": test.geometry.views,
        "noise": float(noise.square().mean().sqrt()) / math.sqrt(measured_power),
        "model_excess": math.sqrt(max(0.0, float(model_excess.mean())) / measured_power),
        "tv_excess": math.sqrt(max(0.0, float(tv_excess.mean())) / measured_power),
        "difference": float(np.mean(differences)) / measured_power,
        "interval": [end / measured_power for end in t_interval(differences) or ()],
        "tv_constant": constant,
        "coverage": float(covered.double().mean()),
    }
    print(json.dumps(answer))
    limit = float(np.quantile(by_tv.cpu().numpy(), 0.999))
    named = [("model", result.image), ("TV", by_tv)]
    panels = [Panel(name, image[0, 0].cpu().numpy().clip(0, limit)) for name, image in named]
    panels.append(Panel("predictive std", result.std[0, 0].cpu().numpy(), "std"))
    views = sum(part.geometry.views for part in (given, chooser, test))
    title = f"{options.scan}: {given.geometry.views} of {views} views; attenuation per {given.unit}"
    path = make_folder(options.out) / f"left_out_{options.scan}.png"
    draw_panels([panels], path, given.geometry.to_json(), title, given.unit)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
