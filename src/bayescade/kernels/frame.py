"""How images lie in memory for the kernels: rows one after the other, with zeros between them in place of borders.

Behind every row is one zero and behind every image a row of zeros, so that the nine neighbours of a pixel are nine fixed shifts
in memory and no kernel asks where an image ends. A *place* is a pixel or one of those zeros. In front of the first place and
behind the last there is room that kernels may read, of which nothing is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from bayescade.kernels._triton import Launch, cdiv, jit, tl

LARGEST_TILE = 256  # places are a multiple of it
LAY_OUT = Launch(block=256, warps=4, stages=1)


@jit
def _inside(place, stop, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Whether places are pixels, and not the zeros between them."""
    past = place - (WIDTH + 2)
    row = past // (WIDTH + 1)
    return (past >= 0) & (place < stop) & (past % (WIDTH + 1) < WIDTH) & (row % (HEIGHT + 1) < HEIGHT)


@jit
def _lay_out(
    image,
    scale,
    plane,
    first,  # place of the plane's first number: the room in front of it is negative
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
    place = first + number
    past = place - (WIDTH + 2)
    row = past // (WIDTH + 1)
    column = past % (WIDTH + 1)
    inside = _inside(place, stop, HEIGHT, WIDTH)
    pixel = (row % (HEIGHT + 1)) * WIDTH + column
    where = (row // (HEIGHT + 1)).to(tl.int64) * image_stride + pixel.to(tl.int64) * pixel_stride
    value = tl.load(image + where, mask=inside, other=0.0)
    if SCALE:
        value = value * tl.load(scale)
    tl.store(plane + number, value.to(plane.dtype.element_ty))


@final
@dataclasses.dataclass(frozen=True)
class Frame:
    """Some images of one size."""

    images: int
    height: int
    width: int

    @property
    def lead(self) -> int:
        """Zeros before the first pixel."""
        return self.width + 2

    @property
    def stop(self) -> int:
        """The place behind the last pixel's row."""
        return self.lead + self.per(self.images) - (self.width + 1)

    @property
    def places(self) -> int:
        """All of them, in whole tiles."""
        return cdiv(self.lead + self.per(self.images), LARGEST_TILE) * LARGEST_TILE

    @property
    def guard(self) -> int:
        """Room on both sides: a row, a tile, and the reach of four neighbours."""
        return cdiv(self.width + 4, 16) * 16 + LARGEST_TILE

    def per(self, images: int) -> int:
        """Places of some images."""
        return images * (self.height + 1) * (self.width + 1)

    def planes(
        self,
        images: Sequence[Tensor],  # (images, 1, height, width) each, or as many numbers in that order
        dtype: torch.dtype,
        scales: Sequence[Tensor | None] = (None, None),  # (): an image is multiplied by its own
    ) -> Tensor:
        """Images as planes, (planes, room and places)."""
        size = cdiv(self.places + 2 * self.guard, LAY_OUT.block) * LAY_OUT.block
        found = images[0].new_empty((len(images), size), dtype=dtype)
        for plane, image, scale in zip(found, images, scales, strict=True):
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
        return found

    def features(self, parts: int, channels: int, like: Tensor) -> Tensor:
        """Room for features that a kernel fills, (parts, room and places, channels)."""
        return like.new_empty((parts, self.places + 2 * self.guard, channels))

    def shape(self) -> dict[str, int]:
        """What a kernel is told."""
        return {"HEIGHT": self.height, "WIDTH": self.width}
