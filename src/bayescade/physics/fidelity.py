"""The data fidelity D(y, z) between a sinogram y and a projection z = A x: its value and its gradient.

It depends on the noise, not on the operator: `image_gradient` puts the two together, grad_x D(y, A x) = A' grad_z D.
"""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.noise import check_photons
from bayescade.physics.operator import LinearOperator


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
        """The derivative of D(y, z) with respect to z, like z."""

    def image_gradient(
        self,
        operator: LinearOperator,
        sinogram: Tensor,  # (batch, *range_shape)
        image: Tensor,  # (batch, *domain_shape)
    ) -> Tensor:
        """A' grad_z D(y, A x), like the image."""
        return operator.adjoint(self.gradient(sinogram, operator.forward(image)))


def _per_image(terms: Tensor) -> Tensor:
    return terms.flatten(1).sum(1)


@final
class LeastSquares(Fidelity):
    """D = 1/2 ||z - y||^2, the likelihood of Gaussian noise of one variance (the paper)."""

    def value(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        return _per_image((projection - sinogram) ** 2) / 2

    def gradient(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        return projection - sinogram


@final
class WeightedLeastSquares(Fidelity):
    """D = 1/2 sum w (z - y)^2; the weights are inverse variances, zero for a dead bin."""

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
        return _per_image(self.weights * (projection - sinogram) ** 2) / 2

    def gradient(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        return self.weights * (projection - sinogram)


@final
class PoissonLikelihood(Fidelity):
    """Counted photons, N ~ Poisson(n e^(-m z)), n = `photons`, m = `attenuation`, y = -ln(N / n) / m.

    D = n sum e^(-m z) + e^(-m y) (m (z - y) - 1): the negative log-likelihood less its least value, at z = y.
    """

    def __init__(self, photons: float, attenuation: float = 0.02):
        check_photons(photons, attenuation)
        self.photons = photons
        self.attenuation = attenuation

    def value(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        excess = self.attenuation * (projection - sinogram)
        measured = torch.exp(-self.attenuation * sinogram)
        return self.photons * _per_image(measured * (torch.expm1(-excess) + excess))

    def gradient(self, sinogram: Tensor, projection: Tensor) -> Tensor:
        excess = self.attenuation * (projection - sinogram)
        measured = torch.exp(-self.attenuation * sinogram)
        return -self.photons * self.attenuation * measured * torch.expm1(-excess)
