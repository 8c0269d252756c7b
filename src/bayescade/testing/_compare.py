"""Random inputs and comparisons that all checks use."""

import torch
from torch import Tensor


def random_numbers(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str, seed: int) -> Tensor:
    """Standard normals that depend on the seed only."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)


def expect_shape(what: str, result: Tensor, like: Tensor) -> None:
    """Raises unless `result` has the shape of `like`."""
    assert result.shape == like.shape, f"{what}: expected shape {tuple(like.shape)}, got {tuple(result.shape)}"


def expect_close(what: str, result: Tensor, expected: Tensor, tolerance: float) -> None:
    """Raises unless ||result - expected|| <= tolerance ||expected||, in the 2-norm."""
    error = float((result.detach().double() - expected.detach().double()).norm())
    scale = float(expected.detach().double().norm())
    assert error <= tolerance * max(scale, 1e-300), f"{what}: relative error {error / max(scale, 1e-300):.2e}"
