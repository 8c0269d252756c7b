"""The data fidelity D(y, z) between a sinogram y and a projection z = A x: its value, its gradient, its curvature, and
its convex conjugate with the proximal map, which primal-dual iterations need.

D depends on the noise, not on the operator. An `InverseProblem` combines operator and fidelity: grad_x D(y, A x) = A' grad_z D.
"""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from bayescade.errors import UserError


class Fidelity(ABC):
    """D(y, z) >= 0, convex in z, zero where z = y."""

    @abstractmethod
    def value(
        self,
        sinogram: Tensor,  # (batch, ...) y
        projection: Tensor,  # (batch, ...) z
    ) -> Tensor:
        """D(y, z) of each image, (batch,)."""

    @abstractmethod
    def gradient(
        self,
        sinogram: Tensor,  # (batch, ...) y
        projection: Tensor,  # (batch, ...) z
    ) -> Tensor:
        """The derivative of D(y, z) with respect to z, of the shape of z."""

    @abstractmethod
    def curvature(
        self,
        sinogram: Tensor,  # (batch, ...) y
    ) -> Tensor:
        """The second derivative of D(y, z) with respect to each bin of z, at z = y; of the shape of y."""

    def conjugate(
        self,
        sinogram: Tensor,  # (batch, ...) y
        dual: Tensor,  # (batch, ...) p
    ) -> Tensor:
        """D*(p) = sup over z of <p, z> - D(y, z) for each image, (batch,); infinite if there is no upper bound."""
        raise UserError(f"{type(self).__name__} has no conjugate, which total variation needs")

    def prox_conjugate(
        self,
        sinogram: Tensor,  # (batch, ...) y
        dual: Tensor,  # (batch, ...) p
        step: Tensor | float,  # s: a number, or a tensor that broadcasts to p, with one number per image
    ) -> Tensor:
        """argmin over q of D*(q) + 1/(2 s) ||q - p||^2, of the shape of p."""
        raise UserError(f"{type(self).__name__} has no proximal map, which total variation needs")

    def select(
        self,
        selected: Tensor,  # (batch,) bool
    ) -> "Fidelity":
        """The fidelity for the selected images of a batch: `self`, unless it stores values of each image."""
        return self

    def mean_curvature(
        self,
        sinogram: Tensor,  # (batch, ...) y
    ) -> Tensor | float:
        """The mean of the curvature over the bins: a number, or a tensor (batch, 1, ...) with one number per image."""
        curvature = self.curvature(sinogram)
        return curvature.mean(tuple(range(1, curvature.ndim)), keepdim=True)


def _sum_per_image(terms: Tensor) -> Tensor:
    return terms.flatten(1).sum(1)


@final
class LeastSquares(Fidelity):
    """D = 1/2 ||z - y||^2, for Gaussian noise with the same variance in every bin (the paper)."""

    def value(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        return _sum_per_image((projection - sinogram) ** 2) / 2

    def gradient(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        return projection - sinogram

    def curvature(self, sinogram: Tensor) -> Tensor:
        return torch.ones_like(sinogram)

    def mean_curvature(self, sinogram: Tensor) -> float:
        return 1.0

    def conjugate(self, sinogram: Tensor, dual: Tensor) -> Tensor:
        return _sum_per_image(dual * (dual / 2 + sinogram))

    def prox_conjugate(self, sinogram: Tensor, dual: Tensor, step: Tensor | float) -> Tensor:
        return (dual - step * sinogram) / (1 + step)


@final
class WeightedLeastSquares(Fidelity):
    """D = 1/2 sum w (z - y)^2; the weights w are inverse variances, and zero for a defective bin."""

    def __init__(
        self,
        weights: Tensor,  # broadcasts to a sinogram
    ):
        if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
            raise UserError(
                f"weights: expected finite numbers of at least 0, got values from {float(weights.min()):g} "
                f"to {float(weights.max()):g}"
            )
        self.weights = weights

    def value(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        return _sum_per_image(self.weights * (projection - sinogram) ** 2) / 2

    def gradient(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        return self.weights * (projection - sinogram)

    def select(self, selected: Tensor) -> Fidelity:
        per_image = self.weights.ndim == 4 and len(self.weights) == len(selected) > 1
        return WeightedLeastSquares(self.weights[selected]) if per_image else self

    def curvature(self, sinogram: Tensor) -> Tensor:
        return self.weights.expand_as(sinogram)

    def conjugate(self, sinogram: Tensor, dual: Tensor) -> Tensor:
        for_zero = torch.where(dual == 0, 0.0, torch.inf).to(dual.dtype)  # a bin with weight 0 must have dual 0
        for_positive = dual * (dual / (2 * torch.where(self.weights > 0, self.weights, 1)) + sinogram)
        return _sum_per_image(torch.where(self.weights > 0, for_positive, for_zero))

    def prox_conjugate(self, sinogram: Tensor, dual: Tensor, step: Tensor | float) -> Tensor:
        return self.weights * (dual - step * sinogram) / (self.weights + step)


@final
class PoissonLikelihood(Fidelity):
    """Counted photons, N ~ Poisson(n e^(-m z)), n = `photons`, m = `attenuation`, y = -ln(N / n) / m.

    D = n sum e^(-m z) + e^(-m y) (m (z - y) - 1): the negative log-likelihood minus its minimum, which is at z = y.
    """

    def __init__(self, photons: float, attenuation: float = 0.02):
        check_photons(photons, attenuation)
        self.photons = photons
        self.attenuation = attenuation

    def value(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        excess = self.attenuation * (projection - sinogram)
        transmission = torch.exp(-self.attenuation * sinogram)
        return self.photons * _sum_per_image(transmission * (torch.expm1(-excess) + excess))

    def gradient(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        excess = self.attenuation * (projection - sinogram)
        transmission = torch.exp(-self.attenuation * sinogram)
        return -self.photons * self.attenuation * transmission * torch.expm1(-excess)

    def curvature(self, sinogram: Tensor) -> Tensor:
        return self.photons * self.attenuation**2 * torch.exp(-self.attenuation * sinogram)

    def conjugate(self, sinogram: Tensor, dual: Tensor) -> Tensor:
        # The supremum is at the z where the gradient of D is p: e^(-m z) = e^(-m y) (1 - r), r = p / (n m e^(-m y)), if r < 1.
        counts = self.photons * torch.exp(-self.attenuation * sinogram)
        r = dual / (self.attenuation * counts)
        terms = dual * sinogram + counts * (r + (1 - r) * torch.log1p(-r.clamp_max(1 - 1e-7)))
        return _sum_per_image(torch.where(r < 1, terms, torch.inf))

    def prox_conjugate(self, sinogram: Tensor, dual: Tensor, step: Tensor | float) -> Tensor:
        # By Moreau's identity the result is p - s z, where z solves n m (e^(-m y) - e^(-m z)) + s z = p. Let
        # c = (p - n m e^(-m y)) / s. The difference u = z - c solves m u e^(m u) = (n m^2 / s) e^(-m c), so
        # m u = omega(log(n m^2 / s) - m c).
        scale = self.photons * self.attenuation
        slope = scale * torch.exp(-self.attenuation * sinogram)
        c = (dual - slope) / step
        rate = torch.as_tensor(scale * self.attenuation / step, dtype=dual.dtype, device=dual.device)
        u = wright_omega(torch.log(rate) - self.attenuation * c) / self.attenuation
        return slope - step * u


def wright_omega(x: Tensor) -> Tensor:
    """The w > 0 with w + ln w = x (Corless and Jeffrey 2002), by Newton's method for ln w."""
    small = x < 1
    log_w = torch.where(
        small, x - torch.exp(x.clamp_max(1)) / (1 + torch.exp(x.clamp_max(1))), torch.log(x.clamp_min(1))
    )
    for _ in range(5):
        w = torch.exp(log_w)
        log_w = log_w - (w + log_w - x) / (w + 1)
    return torch.exp(log_w)


def check_photons(photons: float, attenuation: float) -> None:
    """Raises an error unless both numbers are in their range."""
    if not 1 <= photons <= 1e15:
        raise UserError(f"photons: expected a positive count per bin from 1 to 1e15, e.g. 1e5, got {photons}")
    if not 1e-9 <= attenuation <= 1e9:
        raise UserError(f"attenuation: expected a positive number from 1e-9 to 1e9, e.g. 0.02, got {attenuation}")
