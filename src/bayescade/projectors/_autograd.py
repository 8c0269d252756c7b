"""Linear maps under autograd: the derivative of A x is A' applied to the gradient."""

from typing import Any, Protocol

import torch
from torch import Tensor


class Pair(Protocol):
    """A linear map and its transpose, without autograd."""

    def apply(self, x: Tensor, transposed: bool) -> Tensor:
        """A x, or A' x."""

    def pose_gradient(self, images: Tensor, sinograms: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of <A x, y>, summed over the images, with respect to the angles and to the offset."""


class Apply(torch.autograd.Function):
    """A x or A' x; differentiable any number of times in x, and once in angles and offset where these are tensors."""

    @staticmethod
    def forward(
        x: Tensor, pair: Pair, transposed: bool, angles: Tensor | None = None, offset: Tensor | None = None
    ) -> Tensor:
        return pair.apply(x, transposed)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, ctx.pair, ctx.transposed, angles, offset = inputs
        ctx.moving = any(pose is not None and pose.requires_grad for pose in (angles, offset))
        ctx.save_for_backward(x if ctx.moving else None, angles, offset)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, angles, offset = ctx.saved_tensors
        back = Apply.apply(gradient, ctx.pair, not ctx.transposed, angles, offset) if ctx.needs_input_grad[0] else None
        if not ctx.moving:
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
        return Apply.apply(tangent, ctx.pair, ctx.transposed, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, pair: Pair, transposed: bool, *pose: Tensor | None) -> Any:
        return Apply.apply(x.movedim(in_dims[0], 0), pair, transposed, *pose), 0


class Once(torch.autograd.Function):
    """A gradient with respect to angles or offset: to differentiate it again is an error, not zero."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *depends_on: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("angles and offset have first derivatives only")
