"""Counted photons: Poisson noise of the counts, and the logarithm that turns counts into line integrals."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from bayescade.physics.fidelity import check_photons


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of counted photons."""

    photons: float = 1e5  # mean count of a bin without an object
    attenuation: float = 0.02  # per unit length, for an image value of 1; water: about 0.02 per millimetre

    def __post_init__(self) -> None:
        check_photons(self.photons, self.attenuation)


def add(
    sinogram: Tensor,  # (batch, 1, views, bins), without noise
    settings: Settings,
    *,
    generators: Sequence[torch.Generator],  # one CPU generator for each sinogram of the batch
) -> Tensor:
    """The line integrals of counted photons: -ln(N / photons) / attenuation, N ~ Poisson(photons e^(-attenuation A x)).

    A count of 0 is replaced by 0.5.
    """
    pairs = zip(sinogram.split(1), generators, strict=True)
    return torch.cat([_add_to_one(single, settings, generator) for single, generator in pairs])


def _add_to_one(sinogram: Tensor, settings: Settings, generator: torch.Generator) -> Tensor:
    line_integrals = sinogram.to(generator.device, torch.float64)
    expected = settings.photons * torch.exp(-settings.attenuation * line_integrals)
    counts = torch.poisson(expected, generator=generator).clamp_min(0.5)
    return (-torch.log(counts / settings.photons) / settings.attenuation).to(sinogram.device, sinogram.dtype)


def describe(settings: Settings) -> str:
    """The noise in a few words."""
    mantissa, exponent = f"{settings.photons:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)} photons per bin"
