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
    """Checks shapes, values in [0, 1], and that an image depends only on the seed and on its index."""
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
    settings: Any = None,  # default: the default settings of the noise model
    *,
    device: torch.device | str = "cpu",
) -> None:
    """Checks shapes, that the numbers are finite, that the noise of a sinogram depends only on its generator, that the input
    is not changed, and that settings can be written to JSON and read back."""
    settings = noise_model.Settings() if settings is None else settings
    sinogram = 1 + random_numbers((4, 1, 8, 13), torch.float32, device, 0).abs()
    before = sinogram.clone()

    def noisy(first: int, seed: int) -> Tensor:
        generators = [torch.Generator().manual_seed(seed + index) for index in range(first, 4)]
        result: Tensor = noise_model.add(sinogram[first:], settings, generators=generators)
        return result

    batch = noisy(0, seed=1)
    assert torch.equal(sinogram, before), "the noise model changed the sinogram it was given"
    expect_shape("add", batch, sinogram)
    assert batch.dtype == sinogram.dtype, f"expected {sinogram.dtype}, got {batch.dtype}"
    assert batch.device == sinogram.device, f"expected {sinogram.device}, got {batch.device}"
    assert bool(torch.isfinite(batch).all()), "expected finite numbers"
    expect_close("the same generators", noisy(0, seed=1), batch, 0)
    expect_close("the same generators in another batch", noisy(2, seed=1), batch[2:], 1e-6)
    assert not torch.equal(noisy(0, seed=9), batch), "expected different noise from different generators"
    values = json.loads(json.dumps(dataclasses.asdict(settings)))
    assert settings_from(type(settings), values) == settings, f"settings: {values} does not give {settings}"
    assert noise_model.describe(settings).strip(), "describe: expected a description, got an empty text"
