"""The block of BDGD: a random last layer, and one variance for all pixels of all images (equation 6 of the paper)."""

import math
from typing import final

import torch
from torch import Tensor, nn

from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks.block import Block, Variance
from bayescade.blocks.pyramid import make_trunk
from bayescade.blocks.settings import BlockSettings

STD_START = 0.1  # initial standard deviation


def build(settings: BlockSettings, generator: torch.Generator, inputs: int = 1) -> Block:
    """A block with new initial weights; `inputs` is the number of input planes of the problem."""
    trunk = make_trunk(settings, inputs, generator)
    last = MeanFieldConv(settings.channels, generator)
    return Block(settings, trunk, last, OneVariance(), inputs)


@final
class OneVariance(Variance):
    """One trainable variance for all pixels of all images."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = None, None
        self.log_std = nn.Parameter(torch.tensor(math.log(STD_START)))

    def of(self, z: Tensor | None) -> Tensor:
        return torch.exp(2 * self.log_std).reshape(1, 1, 1, 1)

    def expected_of(self, mean: Tensor | None, variance: Tensor | None) -> Tensor:
        return self.of(None)

    def variance_and_information(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.of(None), torch.zeros_like(z)

    def rescale(self, level: float) -> None:
        pass

    def start(self, variance: float) -> None:
        nn.init.constant_(self.log_std, math.log(variance) / 2)

    def zero_weights_of(self, features: Tensor) -> None:
        pass
