"""The memory layout of images for the kernels: rows one after the other, with zeros between them instead of borders.

After every row is one zero and after every image a row of zeros, so that the nine neighbours of a pixel are nine fixed shifts
in memory and no kernel needs to know where an image ends. A *position* is a pixel or one of those zeros. Before the first
position and after the last there is room that kernels may read but do not use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from bayescade.kernels._triton import Launch, cdiv, jit, tl

LARGEST_TILE = 256  # positions are a multiple of it
LAY_OUT = Launch(block=256, warps=4, stages=1)


@jit
def _inside(position, stop, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Whether positions are pixels, and not the zeros between them."""
    past = position - (WIDTH + 2)
    row = past // (WIDTH + 1)
    return (past >= 0) & (position < stop) & (past % (WIDTH + 1) < WIDTH) & (row % (HEIGHT + 1) < HEIGHT)


@jit
def _lay_out(
    image,
    scale,
    plane,
    first,  # position of the plane's first number: the room in front of it is negative
    stop,
    image_stride,
    pixel_stride,
    SCALE: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes a tile of a plane: pixels, times a number, and zeros."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position = first + number
    past = position - (WIDTH + 2)
    row = past // (WIDTH + 1)
    column = past % (WIDTH + 1)
    inside = _inside(position, stop, HEIGHT, WIDTH)
    pixel = (row % (HEIGHT + 1)) * WIDTH + column
    where = (row // (HEIGHT + 1)).to(tl.int64) * image_stride + pixel.to(tl.int64) * pixel_stride
    value = tl.load(image + where, mask=inside, other=0.0)
    if SCALE:
        value = value * tl.load(scale)
    tl.store(plane + number, value.to(plane.dtype.element_ty))


@final
@dataclasses.dataclass(frozen=True)
class Frame:
    """The layout of a number of images of one size."""

    images: int
    height: int
    width: int

    @property
    def lead(self) -> int:
        """Zeros before the first pixel."""
        return self.width + 2

    @property
    def stop(self) -> int:
        """The position after the last row of pixels."""
        return self.lead + self.per(self.images) - (self.width + 1)

    @property
    def positions(self) -> int:
        """The number of positions, in whole tiles."""
        return cdiv(self.lead + self.per(self.images), LARGEST_TILE) * LARGEST_TILE

    @property
    def guard(self) -> int:
        """Padding on both sides: a row, a tile, and the reach of four neighbours."""
        return cdiv(self.width + 4, 16) * 16 + LARGEST_TILE

    def per(self, images: int) -> int:
        """Positions of so many images."""
        return images * (self.height + 1) * (self.width + 1)

    def planes(
        self,
        images: Sequence[Tensor],  # (images, 1, height, width) each, or as many numbers in that order
        dtype: torch.dtype,
        scales: Sequence[Tensor | None] | None = None,  # a factor for each image
    ) -> Tensor:
        """Images as planes, (planes, padded positions)."""
        size = cdiv(self.positions + 2 * self.guard, LAY_OUT.block) * LAY_OUT.block
        planes = images[0].new_empty((len(images), size), dtype=dtype)
        for plane, image, scale in zip(planes, images, scales or [None] * len(images), strict=True):
            flat = image.reshape(self.images, self.height * self.width)
            _lay_out[(size // LAY_OUT.block,)](
                flat,
                flat if scale is None else scale,
                plane,
                -self.guard,
                self.stop,
                flat.stride(0),
                flat.stride(1),
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
        rows = features[first : first + self.per(self.images)]
        images = rows.reshape(self.images, self.height + 1, self.width + 1, -1)
        return images[:, : self.height, : self.width].permute(0, 3, 1, 2)

    def features(self, parts: int, channels: int, like: Tensor) -> Tensor:
        """Room for features that a kernel fills, (parts, padded positions, channels)."""
        return like.new_empty((parts, self.positions + 2 * self.guard, channels))

    def shape(self) -> dict[str, int]:
        """The keyword arguments of a kernel."""
        return {"HEIGHT": self.height, "WIDTH": self.width}
