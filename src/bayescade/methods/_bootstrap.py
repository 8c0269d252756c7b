"""Error bars for every method: an equivariant parametric bootstrap (Tachella and Pereyra 2024).

The reconstruction x of a scan is taken for the truth. It is turned and shifted by a little, scanned with new noise, and
reconstructed; the error of that is known. The mean over such replicates, moved back, is the predicted squared error:

    v = mean over g, n of  M_g^-1 (f(A M_g x + n) - M_g x)^2

with the method f, movements M_g and noise n. Movements matter: without them an image that the method likes would be
reconstructed too well, because the errors of x, streaks for example, are taken for the object and fit the scan. Movements
under which a scan is invariant would add nothing for a method that is equivariant: angles and shifts are therefore no
symmetries of the pixel grid. The noise-only part is the variance of f(A x + n) over the noise.
"""

import dataclasses
import math
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from bayescade.data.noise import Noise, add_noise, noise_or_estimate
from bayescade.physics.geometry import Geometry
from bayescade.projectors import ray_transform
from bayescade.results import Reconstruction, Reconstructor
from bayescade.seeds import derived_seed

AT_ONCE = 8  # replicates
LEAST = 1e-6  # of the largest value of the image: standard deviations are at least this


@dataclasses.dataclass(frozen=True)
class Movements:
    """How far an image is moved at most, to either side."""

    degrees: float = 20.0
    pixels: float = 3.0  # in x and in y


@final
class Bootstrapped(Reconstructor):
    """A method with the variance of a bootstrap; `samples` is the number of replicates.

    `aleatoric` is the predicted squared error and `noise` the part of it that noise alone causes; nothing is epistemic.
    """

    has_variance = True

    def __init__(
        self,
        method: Reconstructor,
        geometry: Geometry,
        noise: Noise | None,  # None: it is estimated from the data
        device: torch.device | str = "cpu",
        movements: Movements = Movements(),
    ):
        self.method, self.geometry, self.noise, self.movements = method, geometry, noise, movements
        self.operator = ray_transform(geometry, device)
        self.name, self.data_shape = method.name, method.data_shape

    @property
    def parameters(self) -> int:
        return self.method.parameters

    def reconstruct(self, data: Tensor, *, samples: int, seed: int, index: int) -> Reconstruction:
        result = self.method(data, samples=1, seed=seed, index=index)
        variances, noises = [], []
        for number, image in enumerate(result.image):
            noise, _ = noise_or_estimate(self.noise, data[number : number + 1])
            variance, of_noise = self.variances(
                image[None], noise, samples, derived_seed(seed, "bootstrap", index + number)
            )
            variances.append(variance)
            noises.append(of_noise)
        variance = torch.cat(variances)
        return dataclasses.replace(
            result,
            aleatoric=variance,
            epistemic=torch.zeros_like(variance),
            epistemic_symmetries=None,
            noise=torch.minimum(torch.cat(noises), variance),
            samples=samples,
            seed=seed,
        )

    def variances(self, image: Tensor, noise: Noise, samples: int, seed: int) -> tuple[Tensor, Tensor]:
        """The predicted squared error of an image (1, 1, height, width), and the variance that noise alone causes."""
        generator = torch.Generator().manual_seed(seed)
        unit = 2 * torch.rand(samples, 3, generator=generator) - 1
        angles, shifts = unit[:, 0] * math.radians(self.movements.degrees), unit[:, 1:] * self.movements.pixels
        total = torch.zeros_like(image)
        still: list[Tensor] = []
        for first in range(0, samples, AT_ONCE):
            part = slice(first, min(first + AT_ONCE, samples))
            count = len(angles[part])
            objects = moved(image.expand(count, -1, -1, -1), angles[part], shifts[part])
            error = self.replicates(objects, noise, seed, first) - objects
            total += moved_back(error.square(), angles[part], shifts[part]).sum(0, keepdim=True)
            still.append(self.replicates(image, noise, seed, samples + first, count))
        least = (LEAST * float(image.abs().max())) ** 2
        of_noise = torch.cat(still).var(0, keepdim=True) if samples > 1 else torch.zeros_like(image)
        return (total / samples).clamp_min(least), of_noise

    def replicates(self, objects: Tensor, noise: Noise, seed: int, first: int, count: int | None = None) -> Tensor:
        """Reconstructions of new scans of the objects; `first` is the index of their noise."""
        clean = self.operator(objects)
        clean = clean.expand(count, -1, -1, -1) if count is not None else clean
        noisy = add_noise(clean, noise, seed=seed, first=first)
        return self.method(noisy, samples=1, seed=seed, index=first).image


def moved(images: Tensor, angles: Tensor, shifts: Tensor) -> Tensor:
    """Every image (batch, 1, height, width) turned by its angle in radians, then shifted by its (x, y) in pixels."""
    x, y = coordinates(images)
    x, y = x - shifts[:, :1, None].to(x), y - shifts[:, 1:, None].to(y)
    return sampled(images, *turned(x, y, -angles), mode="bicubic")


def moved_back(images: Tensor, angles: Tensor, shifts: Tensor) -> Tensor:
    """The inverse movement, of images that stay positive; beyond the edge the nearest pixel counts."""
    x, y = turned(*coordinates(images), angles)
    x, y = x + shifts[:, :1, None].to(x), y + shifts[:, 1:, None].to(y)
    return sampled(images, x, y, mode="bilinear", padding="border")


def coordinates(images: Tensor) -> tuple[Tensor, Tensor]:
    """x and y of the pixels in pixels from the middle, each (1, height, width): x along the first axis of an image."""
    height, width = images.shape[-2:]
    x = torch.arange(height, device=images.device, dtype=images.dtype) - (height - 1) / 2
    y = torch.arange(width, device=images.device, dtype=images.dtype) - (width - 1) / 2
    return x[None, :, None].expand(1, height, width), y[None, None, :].expand(1, height, width)


def turned(x: Tensor, y: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """Points turned around the middle, (batch, height, width)."""
    cos, sin = (values.to(x)[:, None, None] for values in (angles.cos(), angles.sin()))
    return cos * x - sin * y, sin * x + cos * y


def sampled(images: Tensor, x: Tensor, y: Tensor, mode: str, padding: str = "zeros") -> Tensor:
    """The values of the images at points in pixels from the middle."""
    height, width = images.shape[-2:]
    grid = torch.stack([2 * y / width, 2 * x / height], -1)
    return grid_sample(images, grid, mode=mode, padding_mode=padding, align_corners=False)
