"""An inverse problem: find the image x from data y = A x with noise. This file has what a method needs to know of it.

It has any linear operator and any fidelity. Images inside a method are in units of `scale`: u = x / scale. The gradient that
blocks see is that of the fidelity over its mean curvature h, for an operator of norm 1:

    gradient(u, y) = A' D'(y, scale A u) / (scale h ||A||^2),    D' the derivative of D(y, z) with respect to z,

which is A'(A u - y / scale) / ||A||^2 for least squares (equation 9 of the paper, divided by ||A||^2).
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.fidelity import Fidelity, LeastSquares
from bayescade.physics.operator import LinearOperator

Plane = Callable[[Tensor, Tensor], Tensor]  # (images, data) -> (images, 1, height, width)


@dataclasses.dataclass(frozen=True)
class InverseProblem:
    """Operator, noise, first image and units."""

    operator: LinearOperator
    fidelity: Fidelity = dataclasses.field(default_factory=LeastSquares)  # negative log-likelihood of the noise
    initial_image: Callable[[Tensor], Tensor] | None = None  # data -> first images; default: `operator.initial`
    scale: float = 1.0  # value of the image that methods see as 1
    norm: float = 0.0  # ||A||; 0 = computed
    planes: tuple[Plane, ...] = ()  # further inputs of a block, from images in units of `scale` and data

    def __post_init__(self) -> None:
        if not 0 < self.scale < float("inf"):
            raise UserError(
                f"scale: expected a positive number, the value of the image to be seen as 1, got {self.scale}"
            )
        if not self.norm:
            object.__setattr__(self, "norm", self.operator.norm)
        if not 0 < self.norm < float("inf"):
            raise UserError(f"norm: expected a positive number, got {self.norm}; is the operator zero?")

    @property
    def device(self) -> torch.device:
        """The device of data and images."""
        return self.operator.device

    @property
    def input_planes(self) -> int:
        """How many planes `inputs` gives."""
        return 1 + len(self.planes)

    def initial(
        self,
        y: Tensor,  # (batch, *range_shape)
    ) -> Tensor:
        """First images, (batch, *domain_shape), in units of `scale`."""
        first = self.initial_image or self.operator.initial
        return first(y) / self.scale if self.scale != 1 else first(y)

    def gradient(
        self,
        x: Tensor,  # (batch, *domain_shape), or (samples * batch, ...) with samples in front; in units of `scale`
        y: Tensor,  # (batch, *range_shape)
    ) -> Tensor:
        """The gradient of the fidelity, like x."""
        images = x.reshape(-1, len(y), *x.shape[1:])  # (samples, batch, ...)
        projection = self.operator.forward(images)
        slope = self.fidelity.gradient(y, projection * self.scale if self.scale != 1 else projection)
        unit = self.norm**2 * self.scale * self.fidelity.mean_curvature(y)
        return (self.operator.adjoint(slope) / unit).reshape(x.shape)

    def inputs(
        self,
        x: Tensor,  # (batch, 1, height, width), or with samples in front
        y: Tensor,  # (batch, *range_shape)
    ) -> Tensor:
        """The planes of the problem at x for a block, (batch, n, height, width): the gradient first."""
        gradient = self.gradient(x, y)
        return torch.cat([gradient, *(plane(x, y) for plane in self.planes)], 1) if self.planes else gradient
