"""Limited arcs: do the errors lie where the data cannot see, and do the samples differ there?

P = A'A (A'A + lambda)^-1 takes the part of an image that the data see; lambda is the variance of the noise over that of the
image values, shown over a decade.

    python examples/seen_and_unseen.py --images 10

prints the shares of the energy of errors, and of the deviations of the samples from their mean, in the seen part, in the unseen
part, and in the cross term between them.
"""

import argparse

import numpy as np
import torch
from torch import Tensor

from bayescade.data.noise import common_noise
from bayescade.data.objects import seen_whole
from bayescade.data.scanner import Scanner
from bayescade.data.simulate import scan_set
from bayescade.data.sources import Source, image_source
from bayescade.models import load_model
from bayescade.physics.cases import case_geometry
from bayescade.projectors import ray_transform
from bayescade.uncertainty.seen import shares

SCANNER = Scanner(grid_factor=2, rays_per_bin=2)
DECADE = (10**-0.5, 1.0, 10**0.5)
VALUE_STD = 0.25  # of image values
NOISE = 0.01


def line(name: str, operator: object, images: Tensor, factor: float, noise_variance: float) -> str:
    """The mean shares of images, weighted by their energy."""
    ratio = factor * noise_variance / VALUE_STD**2
    energy = images.square().sum((1, 2, 3))
    weights = (energy / energy.sum()).tolist()
    found = shares(operator, images, ratio)  # type: ignore[arg-type]
    means = [
        sum(w * getattr(s, part) for w, s in zip(weights, found, strict=True)) for part in ("seen", "unseen", "cross")
    ]
    return f"| {name} | {ratio:.2g} | " + " | ".join(f"{mean:.0%}" for mean in means) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="any")
    parser.add_argument("--cases", nargs="+", default=["limited-90", "limited-150", "sparse-32"])
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--samples", type=int, default=8)
    options = parser.parse_args()
    print("| images | lambda | seen | unseen | cross term |\n|---|---|---|---|---|")
    for case in options.cases:
        geometry = case_geometry(case)
        phantoms = image_source("ellipses", geometry.image_shape, seed=0, split="validation")
        objects = Source(lambda first, n, f: seen_whole(phantoms.images(first, n, f), [geometry] * n), None, None)  # noqa: B023
        scans = scan_set(objects, geometry, common_noise(NOISE), seed=0, count=options.images, scanner=SCANNER)
        model = load_model(options.model, geometry)
        samples = model.sample_images(scans.sinogram, samples=options.samples, seed=0)  # type: ignore[attr-defined]
        mean = samples.mean(0)
        deviations = (samples - mean).flatten(0, 1)
        operator = ray_transform(geometry)
        noise_variance = float(np.square(NOISE * float(scans.sinogram.abs().mean())))
        for factor in DECADE:
            print(line(f"{case}: errors", operator, mean - scans.truth, factor, noise_variance), flush=True)
            print(line(f"{case}: deviations", operator, deviations, factor, noise_variance), flush=True)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
