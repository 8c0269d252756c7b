"""Checks of phantoms and noise models."""

import dataclasses
import json
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bayescade.config import settings_from
from bayescade.testing._compare import expect_close, expect_shape, random_numbers


def check_phantom(
    phantom: ModuleType, *, shape: tuple[int, int] = (24, 31), device: torch.device | str = "cpu"
) -> None:
    """Shapes, values in [0, 1], and images that depend on the seed and their index only."""
    images = phantom.generate(4, shape, seed=5, first=0, supersample=1, device=device)
    assert tuple(images.shape) == (4, 1, *shape), f"expected shape {(4, 1, *shape)}, got {tuple(images.shape)}"
    assert images.dtype == torch.float32, f"expected float32, got {images.dtype}"
    assert bool(((images >= 0) & (images <= 1)).all()), "expected values in [0, 1]"
    last = phantom.generate(2, shape, seed=5, first=2, supersample=1, device=device)
    assert torch.equal(last, images[2:]), "expected images that depend on the seed and their index only"
    fine = phantom.generate(1, shape, seed=5, first=0, supersample=2, device=device)
    expected = (1, 1, 2 * shape[0], 2 * shape[1])
    assert tuple(fine.shape) == expected, f"supersample=2: expected shape {expected}, got {tuple(fine.shape)}"


def check_noise(
    noise_model: ModuleType,
    settings: Any = None,  # default: its defaults
    *,
    device: torch.device | str = "cpu",
) -> None:
    """Shapes, finite numbers, noise that depends on the image's generator only, no change of the input, settings that go to
    JSON and back."""
    settings = noise_model.Settings() if settings is None else settings
    sinogram = 1 + random_numbers((4, 1, 8, 13), torch.float32, device, 0).abs()
    before = sinogram.clone()

    def noisy(first: int, seed: int) -> Tensor:
        generators = [torch.Generator().manual_seed(seed + index) for index in range(first, 4)]
        result: Tensor = noise_model.add(sinogram[first:], settings, generators=generators)
        return result

    together = noisy(0, seed=1)
    assert torch.equal(sinogram, before), "the noise model changed the sinogram it was given"
    expect_shape("add", together, sinogram)
    assert together.dtype == sinogram.dtype, f"expected {sinogram.dtype}, got {together.dtype}"
    assert together.device == sinogram.device, f"expected {sinogram.device}, got {together.device}"
    assert bool(torch.isfinite(together).all()), "expected finite numbers"
    expect_close("the same generators", noisy(0, seed=1), together, 0)
    expect_close("an image's noise in another batch", noisy(2, seed=1), together[2:], 1e-6)
    assert not torch.equal(noisy(0, seed=9), together), "expected other noise from other generators"
    values = json.loads(json.dumps(dataclasses.asdict(settings)))
    assert settings_from(type(settings), values) == settings, f"settings: {values} does not give {settings}"
    assert noise_model.describe(settings).strip(), "describe: expected a few words"
