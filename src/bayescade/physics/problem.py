"""An inverse problem: find the image x from data y = A x with noise. This file has what a method needs to know of it.

Any linear operator and any fidelity can be used. Images inside a method are in units of `scale`: u = x / scale. The gradient
that blocks see is that of fidelity / h, h its mean curvature, for an operator of norm 1:

    gradient(u, y) = A' D'(y, scale A u) / (scale h ||A||^2),    D' the derivative of D(y, z) with respect to z,

which is A'(A u - y / scale) / ||A||^2 for least squares (equation 9 of the paper, divided by ||A||^2).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.fidelity import Fidelity, LeastSquares
from bayescade.physics.operator import LinearOperator

Plane = Callable[[Tensor, Tensor], Tensor]  # (images, data) -> (images, 1, height, width)


@dataclasses.dataclass(frozen=True, eq=False)
class InverseProblem:
    """Operator, noise, first image and units. Two problems are equal if they are the same object."""

    operator: LinearOperator
    fidelity: Fidelity = dataclasses.field(default_factory=LeastSquares)  # what the noise is like
    initial_image: Callable[[Tensor], Tensor] | None = None  # data -> first images; default: `operator.initial`
    scale: float = 1.0  # value of the image that methods see as 1
    norm: float = 0.0  # ||A||; 0 = computed
    planes: tuple[Plane, ...] = ()  # inputs besides the gradient: functions of (images in units of `scale`, data)

    def __post_init__(self) -> None:
        check_operator(self.operator)
        for name in ("scale", "norm"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UserError(f"{name}: expected a number, got {value!r:.60}")
        if not 0 < self.scale < float("inf"):
            raise UserError(f"scale: expected a positive number (the image value that becomes 1), got {self.scale}")
        if callable(self.planes):
            raise UserError("planes: expected a tuple of functions, e.g. planes=(f,), got one function")
        object.__setattr__(self, "planes", tuple(self.planes))
        if not self.norm:
            object.__setattr__(self, "norm", self.operator.norm)
        if not 0 < self.norm < float("inf"):
            raise UserError(f"norm: expected a positive number, got {self.norm}; is the operator zero?")

    @property
    def device(self) -> torch.device:
        """Where data and images are."""
        return self.operator.device

    @property
    def input_planes(self) -> int:
        """How many planes `inputs` gives."""
        return 1 + len(self.planes)

    def describe(self) -> dict[str, Any]:
        """What a trained model depends on, as JSON values; not the functions, which have no name."""
        return {
            "operator": type(self.operator).__name__,
            "fidelity": type(self.fidelity).__name__,
            "domain_shape": list(self.operator.domain_shape),
            "range_shape": list(self.operator.range_shape),
            "input_planes": self.input_planes,
            "scale": self.scale,
            "norm": float(f"{self.norm:.3g}"),
        }

    def initial(
        self,
        y: Tensor,  # (batch, *range_shape)
    ) -> Tensor:
        """First images, (batch, *domain_shape), in units of `scale`."""
        first = (self.initial_image or self.operator.initial)(y)
        expected = (len(y), *self.operator.domain_shape)
        if tuple(first.shape) != expected:
            raise UserError(f"initial_image: expected first images of shape {expected}, got {tuple(first.shape)}")
        return first / self.scale if self.scale != 1 else first

    def gradient(
        self,
        x: Tensor,  # (batch, *domain_shape), or (samples * batch, ...) with samples in front; in units of `scale`
        y: Tensor,  # (batch, *range_shape)
    ) -> Tensor:
        """The gradient of the fidelity, like x."""
        images = x.reshape(-1, len(y), *x.shape[1:])  # (samples, batch, ...)
        projection = self.operator.forward(images)
        slope = self.fidelity.gradient(y, projection * self.scale if self.scale != 1 else projection)
        curvature = self.fidelity.mean_curvature(y)
        if isinstance(curvature, Tensor):  # one for each image, whatever the shape of the data
            curvature = curvature.reshape(-1, *[1] * (x.ndim - 1))
        unit = self.norm**2 * self.scale * curvature
        return (self.operator.adjoint(slope) / unit).reshape(x.shape)

    def inputs(
        self,
        x: Tensor,  # (batch, 1, height, width), or (samples * batch, ...)
        y: Tensor,  # (batch, *range_shape)
    ) -> Tensor:
        """What a block sees of the problem at x, (batch, n, height, width): the gradient first."""
        gradient = self.gradient(x, y)
        if not self.planes:
            return gradient
        data = y.repeat(len(x) // len(y), *[1] * (y.ndim - 1))  # of every sample
        planes = [plane(x, data) for plane in self.planes]
        for plane in planes:
            if plane.shape != x.shape:
                raise UserError(f"planes: expected a plane of shape {tuple(x.shape)}, got {tuple(plane.shape)}")
        return torch.cat([gradient, *planes], 1)


def check_operator(operator: Any) -> None:
    """Raises unless it maps images of one channel to data and back, on its device and in its type."""
    if not isinstance(operator, LinearOperator):
        raise UserError(f"operator: expected a LinearOperator, got {type(operator).__name__}")
    if not isinstance(operator.device, torch.device) or not isinstance(operator.dtype, torch.dtype):
        raise UserError(
            f"operator: expected a torch.device and a torch.dtype, got {operator.device!r} and {operator.dtype!r}"
        )
    shape = tuple(operator.domain_shape)
    if len(shape) != 3 or shape[0] != 1:
        raise UserError(f"operator: expected images of shape (1, height, width), got domain_shape {shape}")
    image = torch.zeros((1, 1, *shape), dtype=operator.dtype, device=operator.device)
    data = operator.forward(image)
    check_output(operator, "forward", data, operator.range_shape)
    check_output(operator, "adjoint", operator.adjoint(data), shape)


def check_output(operator: LinearOperator, name: str, output: Tensor, shape: tuple[int, ...]) -> None:
    """Raises unless the output is (1, 1, *shape), of the operator's dtype and device."""
    expected = (1, 1, *shape)
    if (tuple(output.shape), output.dtype, output.device.type) != (expected, operator.dtype, operator.device.type):
        raise UserError(
            f"operator: expected {name} to give shape {expected}, {operator.dtype} on {operator.device}, "
            f"got {tuple(output.shape)}, {output.dtype} on {output.device}; see bayescade.testing.check_operator"
        )
