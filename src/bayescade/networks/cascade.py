"""A cascade: blocks applied one after the other, each fed by the gradient of the data fidelity at its input.

Any linear operator works: what a cascade needs of it is `forward`, `adjoint`, and a first image.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import final

from torch import Tensor, nn

from bayescade.blocks.block import Block
from bayescade.physics.operator import LinearOperator
from bayescade.storage.image_store import ImageStore, in_memory


@dataclasses.dataclass(frozen=True)
class Data:
    """What a cascade knows of its images: A'(A x - y) / ||A||^2 can be computed from it."""

    operator: LinearOperator
    norm: float  # ||A||
    sinogram: ImageStore  # (batch, 1, views, bins), physical

    def some(self, places: slice) -> "Data":
        """The same of some of the images, in memory."""
        return dataclasses.replace(self, sinogram=self.sinogram[places])

    def gradient(
        self,
        x: Tensor,  # (batch, 1, height, width), or (samples * batch, ...) with samples in front
    ) -> Tensor:
        """The gradient of 1/2 ||A x - y||^2 / ||A||^2, like x."""
        sinogram = in_memory(self.sinogram)
        each = x.reshape(-1, *sinogram.shape[:1], *x.shape[1:])
        residual = self.operator.forward(each) - sinogram
        return (self.operator.adjoint(residual) / self.norm**2).reshape(x.shape)


@final
class Cascade(nn.Module):
    """Blocks in their order."""

    def __init__(self, blocks: Sequence[Block]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def block(self, place: int) -> Block:
        """One of the blocks."""
        block = self.blocks[place]
        assert isinstance(block, Block)
        return block

    @functools.cached_property
    def widest(self) -> int:
        """The most channels of an image on its way."""
        return max(max(parameter.shape[:2]) for parameter in self.parameters() if parameter.ndim == 4)
