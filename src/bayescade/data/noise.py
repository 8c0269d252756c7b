"""The noise of a scan: the name of a noise model and its settings. In files it is JSON, in one of two forms:

{"model": "gaussian", "relative": 0.01}                       the new form
{"relative": 0.01, "photons": 0.0, "attenuation": 0.02}       the old form, without a model name; it can still be read
"""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bayescade import noise as noise_models
from bayescade import plugins
from bayescade.config import load_settings, settings_from
from bayescade.data.noise_estimate import std_through_object
from bayescade.errors import UserError
from bayescade.noise import gaussian, poisson
from bayescade.seeds import derived_seed


@dataclasses.dataclass(frozen=True)
class Noise:
    """A noise model and its settings; 1 % Gaussian noise by default."""

    model: str = "gaussian"  # a plugin of `bayescade.noise`
    settings: Any = dataclasses.field(default_factory=gaussian.Settings)  # of the class `Settings` of the plugin

    @functools.cached_property
    def plugin(self) -> ModuleType:
        """The noise model, looked up once."""
        return plugins.load(noise_models, self.model)

    def __post_init__(self) -> None:
        expected = self.plugin.Settings
        if not isinstance(self.settings, expected):
            raise UserError(f"noise model '{self.model}': expected its Settings, got {self.settings!r}")
        if any(field.name == "model" for field in dataclasses.fields(expected)):
            raise UserError(f"noise model '{self.model}': a setting cannot be called 'model'; rename it")

    def describe(self) -> str:
        """The noise in a few words."""
        return str(self.plugin.describe(self.settings))

    def to_json(self) -> dict[str, Any]:
        """The model and its settings as JSON values."""
        return {"model": self.model, **dataclasses.asdict(self.settings)}


def common_noise(relative: float = 0.01, photons: float = 0.0, attenuation: float = 0.02) -> Noise:
    """The noise of the options `--noise` and `--photons`: Poisson noise if `photons` is not 0, otherwise Gaussian noise."""
    gaussian_settings = gaussian.Settings(relative)  # checks `relative`, also for Poisson noise
    if photons:
        return Noise("poisson", poisson.Settings(photons, attenuation))
    return Noise("gaussian", gaussian_settings)


def noise_model(name: str, settings: Sequence[str] = ()) -> Noise:
    """The noise model of this name, with settings "key=value"."""
    return Noise(name, load_settings(plugins.load(noise_models, name).Settings, overrides=settings))


def noise_from_json(values: Any) -> Noise:
    """The noise of a manifest or a scan file, in the new or the old form."""
    if not isinstance(values, Mapping):
        raise UserError(f'noise: expected {{"model": ..., key: value}}, got {values!r:.60}')
    if "model" not in values:
        old = settings_from(_OldForm, values)
        return common_noise(old.relative, old.photons, old.attenuation)
    settings = {key: value for key, value in values.items() if key != "model"}
    name = str(values["model"])
    return Noise(name, settings_from(plugins.load(noise_models, name).Settings, settings))


@dataclasses.dataclass(frozen=True)
class _OldForm:
    relative: float = 0.01
    photons: float = 0.0  # 0: Gaussian noise
    attenuation: float = 0.02


def noise_from_text(text: str) -> Noise:
    """The noise of JSON text."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"noise: expected JSON text, got {text!r:.60}") from None
    return noise_from_json(values)


def noise_or_estimate(
    stated: Noise | None,
    sinogram: Tensor,  # (batch, 1, views, bins)
) -> tuple[Noise, float]:
    """The noise that a scan file states, or Gaussian noise estimated from the data; and the largest value of the data.

    An estimate is rounded to half powers of 2 of one per cent, so that similar scans have the same.
    """
    largest = float(sinogram.amax((1, 2, 3)).median())
    if stated is not None:
        return stated, largest
    relative = std_through_object(sinogram) / sinogram.abs().mean((1, 2, 3)).clamp_min(1e-30)
    steps = round(2 * math.log2(max(float(relative.median()), 1e-5) / 0.01))
    return common_noise(float(f"{0.01 * 2 ** (steps / 2):.3g}")), largest


def add_noise(
    sinogram: Tensor,  # (batch, 1, views, bins), without noise
    noise: Noise,
    *,
    seed: int,
    first: int = 0,  # index of the first sinogram; the noise of a sinogram depends only on `seed` and on its index
) -> Tensor:
    """The sinograms with noise. Random numbers are made on the CPU, so that every device gives the same data."""
    generators = [
        torch.Generator().manual_seed(derived_seed(seed, "noise", index))
        for index in range(first, first + len(sinogram))
    ]
    noisy: Tensor = noise.plugin.add(sinogram, noise.settings, generators=generators)
    if noisy.shape != sinogram.shape:
        raise UserError(
            f"noise model '{noise.model}': expected sinograms of shape {tuple(sinogram.shape)}, got {tuple(noisy.shape)}"
        )
    return noisy
