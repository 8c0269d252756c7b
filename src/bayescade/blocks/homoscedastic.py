"""BDGD's block: a random last layer, and one variance for all pixels of all images."""

import math
from typing import final

import torch
from torch import Tensor, nn

from bayescade.bayes.layers import LastConv, MeanFieldConv
from bayescade.blocks.block import Block, BlockSettings, Draw, Trunk, Variance

STD_START = 0.1


def build(settings: BlockSettings, generator: torch.Generator) -> Block:
    """A block with fresh weights."""
    trunk = Trunk(settings, generator)
    return Block(trunk, MeanFieldConv(settings.channels, generator, settings.jitter), OneVariance())


@final
class OneVariance(Variance):
    """One trainable variance."""

    def __init__(self) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.tensor(math.log(STD_START)))

    def forward(self, inputs: Tensor, h: Tensor, draw: Draw) -> Tensor:
        return self.one()

    def expected(self, inputs: Tensor, h: Tensor) -> Tensor:
        return self.one()

    def one(self) -> Tensor:
        """The variance, (1, 1, 1, 1)."""
        return torch.exp(2 * self.log_std).reshape(1, 1, 1, 1)

    @property
    def layers(self) -> list[LastConv]:
        return []

    def rescale(self, level: float) -> None:
        pass

    def start(self, variance: float) -> None:
        nn.init.constant_(self.log_std, math.log(variance) / 2)

    def forget(self, features: Tensor) -> None:
        pass

    def at_mean(self, inputs: Tensor, h: Tensor) -> tuple[Tensor, None]:
        return self.one(), None
