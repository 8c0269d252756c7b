"""An inverse problem: find the image x from data y = A x with noise. An `InverseProblem` has all that a method needs.

Any linear operator A and any fidelity D can be used. Images inside a method are in units of `scale`: u = x / scale. The input
of a block is the gradient of D / h, with h the mean curvature of D, for an operator that is normalised to norm 1:

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

Plane = Callable[[Tensor, Tensor], Tensor]  # a function of images and data; its result has the shape of the images


@dataclasses.dataclass(frozen=True, eq=False)
class InverseProblem:
    """Operator, noise, first image and units. Two problems are equal if they are the same object."""

    operator: LinearOperator
    fidelity: Fidelity = dataclasses.field(default_factory=LeastSquares)  # the data fidelity for this noise
    initial_image: Callable[[Tensor], Tensor] | None = None  # data -> first images; default: `operator.initial`
    scale: float = 1.0  # the image value that is 1 inside a method
    norm: float = 0.0  # ||A||; 0: compute it
    planes: tuple[Plane, ...] = ()  # other inputs of a block: functions of (images in units of `scale`, data)

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
        """The device of data and images."""
        return self.operator.device

    @property
    def input_planes(self) -> int:
        """How many planes `inputs` gives."""
        return 1 + len(self.planes)

    def describe(self) -> dict[str, Any]:
        """The properties that a trained model depends on, as JSON values; functions have no name and are left out."""
        return {
            "operator": self.operator.name,
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
        x: Tensor,  # in units of `scale`: (batch, *domain_shape), or (samples * batch, ...), first all images of sample 0
        y: Tensor,  # (batch, *range_shape)
    ) -> Tensor:
        """gradient(u, y) of the formula at the top of this file, with u = x; of the shape of x."""
        images = x.reshape(-1, len(y), *x.shape[1:])  # (samples, batch, ...)
        projection = self.operator.forward(images)
        slope = self.fidelity.gradient(y, projection * self.scale if self.scale != 1 else projection)
        curvature = self.fidelity.mean_curvature(y)
        if isinstance(curvature, Tensor):  # one number per image; images and data may differ in their number of axes
            curvature = curvature.reshape(-1, *[1] * (x.ndim - 1))
        divisor = self.norm**2 * self.scale * curvature
        return (self.operator.adjoint(slope) / divisor).reshape(x.shape)

    def inputs(
        self,
        x: Tensor,  # in units of `scale`: (batch, 1, height, width), or (samples * batch, ...), as for `gradient`
        y: Tensor,  # (batch, *range_shape)
    ) -> Tensor:
        """The inputs of a block at x, (batch, n, height, width): the gradient, then the result of each function of `planes`."""
        gradient = self.gradient(x, y)
        if not self.planes:
            return gradient
        data = y.repeat(len(x) // len(y), *[1] * (y.ndim - 1))  # repeated for every sample
        planes = [function(x, data) for function in self.planes]
        for plane in planes:
            if plane.shape != x.shape:
                raise UserError(f"planes: expected a plane of shape {tuple(x.shape)}, got {tuple(plane.shape)}")
        return torch.cat([gradient, *planes], 1)


def check_operator(operator: Any) -> None:
    """Raises an error unless the operator maps one-channel images to data and back, with its `device` and `dtype`."""
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
    """Raises an error unless the output has the shape (1, 1, *shape) and the operator's dtype and device."""
    expected = (1, 1, *shape)
    if (tuple(output.shape), output.dtype, output.device.type) != (expected, operator.dtype, operator.device.type):
        raise UserError(
            f"operator: expected {name} to give shape {expected}, {operator.dtype} on {operator.device}, "
            f"got {tuple(output.shape)}, {output.dtype} on {output.device}; see bayescade.testing.check_operator"
        )
