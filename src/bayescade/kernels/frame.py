"""How images lie in memory for the kernels: rows one after the other, with zeros between them in place of borders.

Behind every row is one zero and behind every image a row of zeros, so that the nine neighbours of a pixel are nine fixed shifts
in memory and no kernel asks where an image ends. A *place* is a pixel or one of those zeros. In front of the first place and
behind the last there is room that kernels may read, of which nothing is kept.
"""

import dataclasses
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from bayescade.kernels._triton import cdiv

LARGEST_TILE = 256  # places are a multiple of it


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

    def planes(self, images: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Images, (images, 1, height, width) each, as planes, (planes, room and places)."""
        found = images[0].new_zeros((len(images), self.places + 2 * self.guard), dtype=dtype)
        begin = self.guard + self.lead
        for plane, image in zip(found, images, strict=True):
            inner = plane[begin : begin + self.per(self.images)].view(self.images, self.height + 1, self.width + 1)
            inner[:, : self.height, : self.width].copy_(image.reshape(self.images, self.height, self.width))
        return found

    def features(self, parts: int, channels: int, like: Tensor) -> Tensor:
        """Room for features that a kernel fills, (parts, room and places, channels)."""
        return like.new_empty((parts, self.places + 2 * self.guard, channels))

    def shape(self) -> dict[str, int]:
        """What a kernel is told."""
        return {"HEIGHT": self.height, "WIDTH": self.width}
