"""Gaussian noise relative to the mean of the sinogram, as in the paper."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from bayescade.errors import UserError


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of Gaussian noise."""

    relative: float = 0.01  # standard deviation over the mean |A x| of the image

    def __post_init__(self) -> None:
        if not 0 <= self.relative <= 1e6:
            raise UserError(f"noise: expected a number of at least 0 (0.01 is 1 %), got {self.relative}")


def add(
    sinogram: Tensor,  # (batch, 1, views, bins), without noise
    settings: Settings,
    *,
    generators: Sequence[torch.Generator],  # one for each image, of the CPU
) -> Tensor:
    """The sinogram plus normal noise of standard deviation `relative` times the mean |A x| of the image."""
    normal = torch.empty(sinogram.shape, dtype=sinogram.dtype)
    for image, generator in zip(normal, generators, strict=True):
        torch.randn(image.shape, generator=generator, out=image)
    mean = sinogram.abs().mean(dim=(-3, -2, -1), keepdim=True)
    return sinogram + settings.relative * mean * normal.to(sinogram.device)


def describe(settings: Settings) -> str:
    """The noise in a few words."""
    return f"{100 * settings.relative:g} % Gaussian noise"
