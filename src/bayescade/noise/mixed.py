"""Gaussian noise or counted photons, of a random level for every scan: noise for training.

The levels are log-uniform. Of counted photons, the largest attenuation of the scan is uniform between two limits, and so is
the standard deviation of the electronic noise, from 0 on.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.noise import gaussian, poisson
from bayescade.seeds import log_uniform


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of mixed noise."""

    least: float = 0.001  # of Gaussian noise, relative to the mean of the sinogram
    most: float = 0.05
    photon_share: float = 0.5  # probability of counted photons
    least_photons: float = 1e3
    most_photons: float = 1e6
    least_attenuation: float = 1.0  # the largest of a scan
    most_attenuation: float = 5.0
    electronic: float = 5.0  # largest standard deviation of the electronic noise, in counts

    def __post_init__(self) -> None:
        for low, high in (
            ("least", "most"),
            ("least_photons", "most_photons"),
            ("least_attenuation", "most_attenuation"),
        ):
            if not 0 < getattr(self, low) <= getattr(self, high) < 1e12:
                raise UserError(
                    f"setting {high}: expected a number of at least {low}, which is positive, got "
                    f"{low} {getattr(self, low):g} and {high} {getattr(self, high):g}"
                )
        if not 0 <= self.photon_share <= 1:
            raise UserError(f"setting photon_share: expected a number from 0 to 1, got {self.photon_share}")
        if not 0 <= self.electronic <= 1e6:
            raise UserError(f"setting electronic: expected a number from 0 to 1e6, got {self.electronic}")


def add(
    sinogram: Tensor,  # (batch, 1, views, bins), without noise
    settings: Settings,
    *,
    generators: Sequence[torch.Generator],  # one CPU generator for each sinogram of the batch
) -> Tensor:
    """The sinograms with noise, each with its own kind and level."""
    pairs = zip(sinogram.split(1), generators, strict=True)
    return torch.cat([_add_to_one(single, settings, generator) for single, generator in pairs])


def _add_to_one(sinogram: Tensor, settings: Settings, generator: torch.Generator) -> Tensor:
    kind, level, depth, electronic = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
    largest = float(sinogram.max())
    if kind >= settings.photon_share or largest <= 0:
        relative = log_uniform(settings.least, settings.most, level)
        return gaussian.add(sinogram, gaussian.Settings(relative), generators=[generator])
    attenuation = settings.least_attenuation + depth * (settings.most_attenuation - settings.least_attenuation)
    photons = log_uniform(settings.least_photons, settings.most_photons, level)
    chosen = poisson.Settings(photons, attenuation / largest, electronic * settings.electronic)
    return poisson.add(sinogram, chosen, generators=[generator])


def describe(settings: Settings) -> str:
    """The noise in a few words."""
    return (
        f"{100 * settings.least:g} to {100 * settings.most:g} % Gaussian noise or "
        f"{settings.least_photons:.0e} to {settings.most_photons:.0e} photons per bin"
    )
