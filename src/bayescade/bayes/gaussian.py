"""Independent Gaussians, one per pixel, and the moments of functions of a Gaussian."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """Independent Gaussians, one per pixel; `variance` is None if no variance is predicted."""

    mean: Tensor  # (batch, 1, height, width)
    variance: Tensor | None  # broadcasts to the mean


def safe_sqrt(variance: Tensor) -> Tensor:
    """sqrt(v) for v >= 0, with derivative 0 instead of infinity at v = 0; no small number is added to v."""
    positive = variance > 0
    return torch.where(positive, torch.where(positive, variance, 1).sqrt(), 0)


def relu_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of max(0, z), z ~ N(m, s^2), in closed form.

    E = m F + s p, E2 = (m^2 + s^2) F + m s p with p and F the density and the distribution function of N(0, 1) at
    m / s. The variance is a sum of terms that do not cancel where m >> s:
    Var = s^2 F + m^2 F (1 - F) + m s p (1 - 2 F) - s^2 p^2.
    """
    std = safe_sqrt(variance)
    is_constant = std == 0
    ratio = mean / torch.where(is_constant, 1, std)
    below, above = torch.special.ndtr(-ratio), torch.special.ndtr(ratio)
    density = torch.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    output_mean = mean * above + std * density
    output_variance = variance * (above - density**2) + mean**2 * above * below + mean * std * density * (below - above)
    return torch.where(is_constant, mean.clamp_min(0), output_mean.clamp_min(0)), torch.where(
        is_constant, 0, output_variance.clamp_min(0)
    )


def expectation(
    function: Callable[[Tensor], Tensor],
    mean: Tensor,
    variance: Tensor,
    nodes: int = 12,
) -> Tensor:
    """E f(z), z ~ N(m, s^2), by Gauss-Hermite quadrature: exact for polynomials of degree below 2 * `nodes`."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    std = safe_sqrt(variance)
    total = torch.zeros_like(mean)
    for point, weight in zip(points.tolist(), (weights / weights.sum()).tolist(), strict=True):
        total = total.add(function(torch.add(mean, std, alpha=point)), alpha=weight)
    return total
