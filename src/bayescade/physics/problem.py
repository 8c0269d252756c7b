"""An inverse problem: find the image x from data y = A x with noise. An `InverseProblem` has all that a method needs.

Any linear operator A and any fidelity D can be used. Images inside a method are in units of `scale`: u = x / scale. The input
of a block is the gradient of D / h, with h the mean curvature of D, for an operator that is normalised to norm 1:

    gradient(u, y) = A' D'(y, scale A u) / (scale h ||A||^2),    D' the derivative of D(y, z) with respect to z,

which is A'(A u - y / scale) / ||A||^2 for least squares (equation 9 of the paper, divided by ||A||^2).
"""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.fidelity import Fidelity, LeastSquares
from bayescade.physics.operator import LinearOperator

DataPlane = Callable[[Tensor], Tensor]  # a function of the data, (batch, 1, height, width)
Plane = Callable[[Tensor, Tensor], Tensor]  # a function of images and data; its result has the shape of the images
ResidualPlane = Callable[[Tensor], Tensor]  # a function of D'(y, scale A u), which is scale A u - y for least squares


@dataclasses.dataclass(frozen=True, eq=False)
class InverseProblem:
    """Operator, noise, first image and units. Two problems are equal if they are the same object."""

    operator: LinearOperator
    fidelity: Fidelity = dataclasses.field(default_factory=LeastSquares)  # the data fidelity for this noise
    initial_image: Callable[[Tensor], Tensor] | None = None  # data -> first images; default: `operator.initial`
    scale: float = 1.0  # the image value that is 1 inside a method
    # ||A||; 0: compute it. An operator with one scan per image has one norm per scan, (scans,): the images of a batch
    # alternate between the scans.
    norm: float | Tensor = 0.0
    planes: tuple[Plane, ...] = ()  # other inputs of a block: functions of (images in units of `scale`, data)
    residual_planes: tuple[ResidualPlane, ...] = ()  # and functions of the residual
    data_planes: tuple[DataPlane, ...] = ()  # and functions of the data alone, which all blocks share
    # Whether the first of the data planes is log10 of the level of every image: images inside a method are in units of the
    # error that is expected of them, and a block sees the image times its level.
    levelled: bool = False

    def __post_init__(self) -> None:
        check_operator(self.operator, self.scans)
        for name in ("scale", "norm"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number and not (name == "norm" and isinstance(value, Tensor) and value.ndim == 1 and len(value)):
                raise UserError(f"{name}: expected a number, got {value!r:.60}")
        if not 0 < self.scale < float("inf"):
            raise UserError(f"scale: expected a positive number (the image value that becomes 1), got {self.scale}")
        for name in ("planes", "residual_planes", "data_planes"):
            if callable(getattr(self, name)):
                raise UserError(f"{name}: expected a tuple of functions, e.g. {name}=(f,), got one function")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not isinstance(self.norm, Tensor) and not self.norm:
            object.__setattr__(self, "norm", self.operator.norm)
        for norm in self.norm.tolist() if isinstance(self.norm, Tensor) else [self.norm]:
            if not 0 < norm < float("inf"):
                raise UserError(f"norm: expected a positive number, got {norm}; is the operator zero?")

    @property
    def device(self) -> torch.device:
        """The device of data and images."""
        return self.operator.device

    @property
    def scans(self) -> int:
        """How many scans the images of a batch alternate between: 1, or the number of norms."""
        return len(self.norm) if isinstance(self.norm, Tensor) else 1

    @property
    def input_planes(self) -> int:
        """How many planes `inputs` gives."""
        return 1 + len(self.planes) + len(self.residual_planes) + len(self.data_planes)

    def batch(self, count: int) -> "InverseProblem":
        """The problem of a batch of so many images, into which `load` puts those of this problem: the same for all images,
        unless every image has a scan of its own."""
        return self

    def load(self, other: "InverseProblem", indices: Tensor, move: int = 0) -> None:
        """Takes over what belongs to the images of another problem with these indices, and with the same `exchange`.

        With a `move` the scans are moved, so that the same data belong to moved images.
        """

    @property
    def moves(self) -> int:
        """How many moves of the pixel grid `load` knows; move 0 is none."""
        return 1

    def moved(
        self,
        images: Tensor,  # (batch, 1, height, width)
        move: int,
    ) -> Tensor:
        """The images after a move, which keeps their size."""
        return images

    def moved_known(
        self,
        known: Tensor,  # (batch, planes, height, width): `known` of the problem that was loaded
        move: int,
    ) -> Tensor:
        """The planes of the data of the moved scans."""
        return known

    @property
    def exchange(self) -> Hashable:
        """Problems for which this is equal may load the images of each other."""
        return self

    def describe(self) -> dict[str, Any]:
        """The properties that a trained model depends on, as JSON values; functions have no name and are left out."""
        return {
            "operator": self.operator.name,
            "fidelity": type(self.fidelity).__name__,
            "domain_shape": list(self.operator.domain_shape),
            "range_shape": list(self.operator.range_shape),
            "input_planes": self.input_planes,
            "scale": self.scale,
            "norm": float(f"{float(torch.as_tensor(self.norm).max()):.3g}"),
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
        return self._gradient_of(self._residual(x, y), x, y)

    def _residual(self, x: Tensor, y: Tensor) -> Tensor:
        """D'(y, scale A x), (samples, batch, *range_shape)."""
        projection = self.operator.forward(x.reshape(-1, len(y), *x.shape[1:]))
        return self.fidelity.gradient(y, projection * self.scale if self.scale != 1 else projection)

    def _gradient_of(self, residual: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The gradient from the residual."""
        curvature = self.fidelity.mean_curvature(y)
        if isinstance(curvature, Tensor):  # one number per image; images and data may differ in their number of axes
            curvature = curvature.reshape(-1, *[1] * (x.ndim - 1))
        norm = self.norm
        if isinstance(norm, Tensor):
            norm = norm.to(x).repeat(len(y) // len(norm)).reshape(-1, *[1] * (x.ndim - 1))
        divisor = norm**2 * self.scale * curvature
        return (self.operator.adjoint(residual) / divisor).reshape(x.shape)

    def known(
        self,
        y: Tensor,  # (batch, *range_shape)
    ) -> Tensor | None:
        """The planes that depend on the data alone, (batch, planes, height, width); None if there are none."""
        return torch.cat([function(y) for function in self.data_planes], 1) if self.data_planes else None

    def inputs(
        self,
        x: Tensor,  # in units of `scale`: (batch, 1, height, width), or (samples * batch, ...), as for `gradient`
        y: Tensor,  # (batch, *range_shape)
        known: Tensor | None = None,  # `known(y)`, if it was computed before
    ) -> Tensor:
        """The inputs of a block at x, (batch, n, height, width): the gradient, then the result of each function of
        `data_planes`, `planes` and `residual_planes`."""
        residual = self._residual(x, y)
        gradient = self._gradient_of(residual, x, y)
        data = y.repeat(len(x) // len(y), *[1] * (y.ndim - 1)) if self.planes else y  # repeated for every sample
        planes = [function(x, data) for function in self.planes]
        planes += [function(residual).reshape(x.shape) for function in self.residual_planes]
        for plane in planes:
            if plane.shape != x.shape:
                raise UserError(f"planes: expected a plane of shape {tuple(x.shape)}, got {tuple(plane.shape)}")
        known = self.known(y) if known is None else known
        if known is not None:
            planes.insert(0, known.repeat(len(x) // len(y), 1, 1, 1))
        return torch.cat([gradient, *planes], 1) if planes else gradient


def check_operator(operator: Any, scans: int = 1) -> None:
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
    image = torch.zeros((1, scans, *shape), dtype=operator.dtype, device=operator.device)
    data = operator.forward(image)
    check_output(operator, "forward", data, (scans, *operator.range_shape))
    check_output(operator, "adjoint", operator.adjoint(data), (scans, *shape))


def check_output(operator: LinearOperator, name: str, output: Tensor, shape: tuple[int, ...]) -> None:
    """Raises an error unless the output has the shape (1, *shape) and the operator's dtype and device."""
    expected = (1, *shape)
    if (tuple(output.shape), output.dtype, output.device.type) != (expected, operator.dtype, operator.device.type):
        raise UserError(
            f"operator: expected {name} to give shape {expected}, {operator.dtype} on {operator.device}, "
            f"got {tuple(output.shape)}, {output.dtype} on {output.device}; see bayescade.testing.check_operator"
        )
