"""Counted photons: Poisson noise of the counts, electronic noise, and the logarithm that gives line integrals."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.fidelity import check_photons


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of counted photons."""

    photons: float = 1e5  # mean count of a bin without an object
    attenuation: float = 0.02  # per unit length, for an image value of 1; water: about 0.02 per millimetre
    electronic: float = 0.0  # standard deviation of the electronic noise, in counts

    def __post_init__(self) -> None:
        check_photons(self.photons, self.attenuation)
        if not 0 <= self.electronic <= 1e9:
            raise UserError(f"setting electronic: expected a number from 0 to 1e9 (counts), got {self.electronic}")


def add(
    sinogram: Tensor,  # (batch, 1, views, bins), without noise
    settings: Settings,
    *,
    generators: Sequence[torch.Generator],  # one CPU generator for each sinogram of the batch
) -> Tensor:
    """The line integrals of counted photons: -ln(N / photons) / attenuation, N ~ Poisson(photons e^(-attenuation A x)).

    With electronic noise, N is the count plus a normal number. A count below 0.5 is replaced by 0.5.
    """
    pairs = zip(sinogram.split(1), generators, strict=True)
    return torch.cat([_add_to_one(single, settings, generator) for single, generator in pairs])


def _add_to_one(sinogram: Tensor, settings: Settings, generator: torch.Generator) -> Tensor:
    line_integrals = sinogram.to(generator.device, torch.float64)
    expected = settings.photons * torch.exp(-settings.attenuation * line_integrals)
    counts = torch.poisson(expected, generator=generator)
    if settings.electronic:
        counts += settings.electronic * torch.randn(counts.shape, generator=generator, dtype=counts.dtype)
    counts = counts.clamp_min(0.5)
    return (-torch.log(counts / settings.photons) / settings.attenuation).to(sinogram.device, sinogram.dtype)


def describe(settings: Settings) -> str:
    """The noise in a few words."""
    mantissa, exponent = f"{settings.photons:e}".split("e")
    text = f"{float(mantissa):g}e{int(exponent)} photons per bin"
    return text + (f", {settings.electronic:g} counts of electronic noise" if settings.electronic else "")
