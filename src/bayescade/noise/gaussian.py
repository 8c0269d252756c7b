"""Gaussian noise relative to the mean of the sinogram, as in the paper."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from bayescade.errors import UserError


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of Gaussian noise."""

    relative: float = 0.01  # standard deviation of the noise, divided by the mean of |A x| over the sinogram

    def __post_init__(self) -> None:
        if not 0 <= self.relative <= 1e6:
            raise UserError(f"noise: expected a number from 0 to 1e6 (0.01 is 1 %), got {self.relative}")


def add(
    sinogram: Tensor,  # (batch, 1, views, bins), without noise
    settings: Settings,
    *,
    generators: Sequence[torch.Generator],  # one CPU generator for each sinogram of the batch
) -> Tensor:
    """The sinograms plus normal noise of standard deviation `relative` times the mean of |A x| over each sinogram."""
    normals = torch.empty(sinogram.shape, dtype=sinogram.dtype)
    for values, generator in zip(normals, generators, strict=True):
        torch.randn(values.shape, generator=generator, out=values)
    mean = sinogram.abs().mean(dim=(-3, -2, -1), keepdim=True)
    return sinogram + settings.relative * mean * normals.to(sinogram.device)


def describe(settings: Settings) -> str:
    """The noise in a few words."""
    return f"{100 * settings.relative:g} % Gaussian noise"
