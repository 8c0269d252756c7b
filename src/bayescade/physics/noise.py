"""Measurement noise. Chance comes in by `generator`."""

import torch
from torch import Tensor

from bayescade.errors import UserError


def gaussian_noise(
    sinogram: Tensor,  # (batch, 1, views, bins), without noise
    relative: float = 0.01,
    *,
    generator: torch.Generator,
) -> Tensor:
    """The sinogram plus Gaussian noise of standard deviation `relative` times the mean |A x| of each image (the paper)."""
    draw = torch.randn(sinogram.shape, generator=generator, dtype=sinogram.dtype, device=generator.device)
    return scaled_noise(sinogram, relative, draw.to(sinogram.device))


def scaled_noise(
    sinogram: Tensor,  # (batch, 1, views, bins), without noise
    relative: float,
    draw: Tensor,  # like the sinogram: standard normals
) -> Tensor:
    """The sinogram plus the draw times `relative` times the mean |A x| of each image."""
    check_relative(relative)
    return sinogram + relative * sinogram.abs().mean(dim=(-3, -2, -1), keepdim=True) * draw


def poisson_noise(
    sinogram: Tensor,  # (batch, 1, views, bins), without noise
    photons: float,
    attenuation: float = 0.02,
    *,
    generator: torch.Generator,
) -> Tensor:
    """The sinogram as counted photons show it: -ln(N / photons) / attenuation with N ~ Poisson(photons e^(-attenuation A x)).

    `photons` arrive at a bin when nothing is in the way; `attenuation` is that of an image value of 1 over a length of 1
    (water is about 0.02 per millimetre). A bin that counts nothing is taken as half a photon.
    """
    check_photons(photons, attenuation)
    expected = photons * torch.exp(-attenuation * sinogram.to(generator.device, torch.float64))
    counts = torch.poisson(expected, generator=generator).clamp_min(0.5)
    return (-torch.log(counts / photons) / attenuation).to(sinogram.device, sinogram.dtype)


def check_relative(relative: float) -> None:
    """Raises unless it is a level of relative noise."""
    if not 0 <= relative <= 1e6:
        raise UserError(f"noise: expected a number of at least 0 (0.01 is 1 %), got {relative}")


def check_photons(photons: float, attenuation: float) -> None:
    """Raises unless photons can be counted so."""
    if not 1 <= photons <= 1e15:
        raise UserError(f"photons: expected a positive count per bin from 1 to 1e15, e.g. 1e5, got {photons}")
    if not 1e-9 <= attenuation <= 1e9:
        raise UserError(f"attenuation: expected a positive number, e.g. 0.02, got {attenuation}")
