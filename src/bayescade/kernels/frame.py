"""The memory layout of images for the kernels: one row after the other, with zeros between the rows.

After every row there is one zero, and after every image a row of zeros. So the pixel and its eight neighbours are at nine fixed
distances in memory, and a kernel needs no test for the border of an image. A *position* is a pixel or one of these zeros.
Before the first position and after the last position there is padding (`guard`): kernels may read it, but its values do not
change a result. *Padded positions* are the positions with this padding. A *plane* has one number per position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from bayescade.kernels._triton import Launch, cdiv, jit, tl

LARGEST_TILE = 256  # the number of positions is a multiple of this
LAY_OUT = Launch(block=256, warps=4, stages=1)


@jit
def _inside(position, stop, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Whether positions are pixels, and not the zeros between them."""
    offset = position - (WIDTH + 2)  # from the first pixel
    row = offset // (WIDTH + 1)
    return (offset >= 0) & (position < stop) & (offset % (WIDTH + 1) < WIDTH) & (row % (HEIGHT + 1) < HEIGHT)


@jit
def _lay_out(
    image,
    scale,
    planes,
    first,  # position of a plane's first number; it is negative, because the padding is before position 0
    stop,  # `Frame.stop`
    image_stride,  # distance in memory between two images, counted in numbers
    channel_stride,
    pixel_stride,
    plane_size,  # distance in memory between two planes
    SCALE: tl.constexpr,  # whether to multiply by the scale
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes a tile of a plane: the pixels of a channel, multiplied by its scale if SCALE, and the zeros between them."""
    channel = tl.program_id(1)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position = first + index
    offset = position - (WIDTH + 2)  # from the first pixel
    row = offset // (WIDTH + 1)
    column = offset % (WIDTH + 1)
    inside = _inside(position, stop, HEIGHT, WIDTH)
    pixel = (row % (HEIGHT + 1)) * WIDTH + column
    image_offset = (row // (HEIGHT + 1)).to(tl.int64) * image_stride + pixel.to(tl.int64) * pixel_stride
    image_offset += channel.to(tl.int64) * channel_stride
    value = tl.load(image + image_offset, mask=inside, other=0.0)
    if SCALE:
        value = value * tl.load(scale + channel)
    tl.store(planes + channel.to(tl.int64) * plane_size + index, value.to(planes.dtype.element_ty))


@final
@dataclasses.dataclass(frozen=True)
class Frame:
    """The memory layout of several images of the same size."""

    images: int  # number of images
    height: int
    width: int

    @property
    def lead(self) -> int:
        """The number of zeros before the first pixel: its neighbours above and to the left."""
        return self.width + 2

    @property
    def stop(self) -> int:
        """The position after the last row of pixels."""
        return self.lead + self.positions_of(self.images) - (self.width + 1)

    @property
    def positions(self) -> int:
        """The number of positions, rounded up to whole tiles."""
        return cdiv(self.lead + self.positions_of(self.images), LARGEST_TILE) * LARGEST_TILE

    @property
    def guard(self) -> int:
        """Length of the padding on each side: kernels read at most a row, four neighbours and a tile beyond the positions."""
        return cdiv(self.width + 4, 16) * 16 + LARGEST_TILE

    def positions_of(self, images: int) -> int:
        """The number of positions of this many images, with the zeros after every row and every image."""
        return images * (self.height + 1) * (self.width + 1)

    def planes(
        self,
        tensors: Sequence[Tensor],  # (images, channels, height, width) each
        dtype: torch.dtype,
        scales: Sequence[Tensor | None] | None = None,  # a factor for every channel of each tensor; None: no factors
    ) -> Tensor:
        """Copies every channel to a plane with the layout of the frame, (planes, padded positions); differentiable."""
        planes: Tensor = _Planes.apply(self, dtype, scales or [None] * len(tensors), *tensors)
        return planes

    def fill_planes(self, tensors: Sequence[Tensor], dtype: torch.dtype, scales: Sequence[Tensor | None]) -> Tensor:
        """`planes`, without gradients."""
        size = cdiv(self.positions + 2 * self.guard, LAY_OUT.block) * LAY_OUT.block
        counts = [tensor.shape[1] for tensor in tensors]
        planes = tensors[0].new_empty((sum(counts), size), dtype=dtype)
        for part, tensor, scale in zip(planes.split(counts), tensors, scales, strict=True):
            flat = tensor.flatten(2)
            _lay_out[(size // LAY_OUT.block, len(part))](
                flat,
                flat if scale is None else scale,
                part,
                -self.guard,
                self.stop,
                *flat.stride(),
                size,
                SCALE=scale is not None,
                **self.shape(),
                **LAY_OUT.options(),
            )
        return planes

    def as_images(
        self,
        features: Tensor,  # (padded positions, channels)
    ) -> Tensor:
        """Features as images, (images, channels, height, width)."""
        first = self.guard + self.lead
        without_padding = features[first : first + self.positions_of(self.images)]
        images = without_padding.reshape(self.images, self.height + 1, self.width + 1, -1)
        return images[:, : self.height, : self.width].permute(0, 3, 1, 2)

    def features(self, parts: int, channels: int, like: Tensor) -> Tensor:
        """An uninitialised tensor for the features that a kernel computes, (parts, padded positions, channels)."""
        return like.new_empty((parts, self.positions + 2 * self.guard, channels))

    def shape(self) -> dict[str, int]:
        """Height and width as keyword arguments of a kernel."""
        return {"HEIGHT": self.height, "WIDTH": self.width}


class _Planes(torch.autograd.Function):
    """`Frame.planes`. The scales are not differentiated."""

    @staticmethod
    def forward(
        ctx: Any, frame: Frame, dtype: torch.dtype, scales: Sequence[Tensor | None], *tensors: Tensor
    ) -> Tensor:
        ctx.frame, ctx.scales = frame, scales
        ctx.like = [(tensor.shape[1], tensor.dtype) for tensor in tensors]
        return frame.fill_planes(tensors, dtype, scales)

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Any, ...]:
        gradients: list[Tensor | None] = []
        parts = slopes.split([count for count, _ in ctx.like])
        for index, (part, scale, (_, dtype)) in enumerate(zip(parts, ctx.scales, ctx.like, strict=True)):
            gradient = None
            if ctx.needs_input_grad[3 + index]:
                gradient = ctx.frame.as_images(part.T).to(dtype)
                gradient = gradient * scale.reshape(-1, 1, 1) if scale is not None else gradient
            gradients.append(gradient)
        return None, None, None, *gradients
