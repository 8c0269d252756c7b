"""Checks of methods and metrics."""

from collections.abc import Callable

import torch
from torch import Tensor

from bayescade.physics.geometry import Geometry
from bayescade.results import Reconstruction, Reconstructor
from bayescade.testing._compare import random_numbers


def check_metric(
    metric: Callable[[Tensor, Tensor, float], Tensor],
    reference: Callable[[Tensor, Tensor, float], float],  # the metric of one image, (height, width)
    *,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> None:
    """Checks that a metric gives one number per image, equal to the number of the reference, for two data ranges."""
    truth = random_numbers((3, 1, 24, 31), torch.float64, "cpu", seed).abs()
    image = truth + 0.1 * random_numbers((3, 1, 24, 31), torch.float64, "cpu", seed + 1)
    for data_range in (1.0, 3.0):
        values = metric(image, truth, data_range)
        assert values.shape == (3,), f"expected one number per image, got shape {tuple(values.shape)}"
        for value, x, t in zip(values.tolist(), image, truth, strict=True):
            expected = reference(x[0], t[0], data_range)
            assert abs(value - expected) <= tolerance * max(1, abs(expected)), f"expected {expected}, got {value}"


def check_method(
    method: Reconstructor,
    geometry: Geometry,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Reconstruction:
    """Checks shapes, that the image is finite and the same for the same seed, and that the sinogram is not changed."""
    sinogram = random_numbers((2, 1, *geometry.sinogram_shape), torch.float32, device, seed).abs()
    before = sinogram.clone()
    result, again = method(sinogram, samples=3, seed=1), method(sinogram, samples=3, seed=1)
    assert torch.equal(sinogram, before), "the method changed the sinogram it was given"
    assert tuple(result.image.shape) == (2, 1, *geometry.image_shape), f"image: got shape {tuple(result.image.shape)}"
    assert bool(torch.isfinite(result.image).all()), "image: expected finite numbers"
    assert torch.equal(result.image, again.image), "expected the same image for the same seed"
    assert result.geometry == geometry.to_json(), "geometry: expected the geometry of the scan in the result"
    for name in ("aleatoric", "epistemic"):
        variance = getattr(result, name)
        assert variance is None or bool((variance >= 0).all()), f"{name}: expected variances of at least 0"
    return result
