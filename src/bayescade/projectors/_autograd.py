"""Linear maps under autograd: the derivative of A x is A' applied to the gradient."""

from typing import Any, Protocol

import torch
from torch import Tensor


class Pair(Protocol):
    """A linear map and its transpose, without autograd."""

    def apply(self, x: Tensor, transposed: bool) -> Tensor:
        """A x, or A' x."""


class MovingPair(Pair, Protocol):
    """A linear map that depends on angles and on an offset."""

    def pose_gradient(self, images: Tensor, sinograms: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of <A x, y>, summed over the images, with respect to the angles and to the offset."""


class Apply(torch.autograd.Function):
    """A x or A' x, differentiable any number of times."""

    @staticmethod
    def forward(x: Tensor, pair: Pair, transposed: bool) -> Tensor:
        return pair.apply(x, transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, ctx.pair, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return Apply.apply(gradient, ctx.pair, not ctx.transposed), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return Apply.apply(tangent, ctx.pair, ctx.transposed)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, pair: Pair, transposed: bool) -> Any:
        return Apply.apply(x.movedim(in_dims[0], 0), pair, transposed), 0


class ApplyMoved(torch.autograd.Function):
    """The same, differentiable once in angles and offset too; one of the two may be None."""

    @staticmethod
    def forward(x: Tensor, pair: MovingPair, transposed: bool, angles: Tensor | None, offset: Tensor | None) -> Tensor:
        return pair.apply(x, transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, ctx.pair, ctx.transposed, angles, offset = inputs
        ctx.save_for_backward(x, angles, offset)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, angles, offset = ctx.saved_tensors
        back = ApplyMoved.apply(gradient, ctx.pair, not ctx.transposed, angles, offset)
        if not any(ctx.needs_input_grad[3:]):
            return back, None, None, None, None
        pair = (gradient, x) if ctx.transposed else (x, gradient)
        by_angles, by_offset = ctx.pair.pose_gradient(*(tensor.detach() for tensor in pair))
        depends_on = [*pair, *(pose for pose in (angles, offset) if pose is not None)]
        by_angles = Once.apply(by_angles.reshape(angles.shape).to(angles), *depends_on) if angles is not None else None
        by_offset = Once.apply(by_offset.reshape(offset.shape).to(offset), *depends_on) if offset is not None else None
        return back, None, None, by_angles, by_offset

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _pair: Any, _transposed: Any, *pose: Any) -> Any:
        if any(change is not None for change in pose):
            raise NotImplementedError("angles and offset have no derivatives in forward mode; use torch.autograd.grad")
        return Apply.apply(tangent, ctx.pair, ctx.transposed)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, pair: MovingPair, transposed: bool, *pose: Tensor | None) -> Any:
        return ApplyMoved.apply(x.movedim(in_dims[0], 0), pair, transposed, *pose), 0


class Once(torch.autograd.Function):
    """A gradient with respect to angles or offset: to differentiate it again is an error, not zero."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *depends_on: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("angles and offset have first derivatives only")
