"""BDGD+'s block: a random last layer, and a variance network with another random last layer (equation 7 of the paper).

variance = (scale softplus(z))^2 + floor, z the output of a small network of the image and the gradient. The scale is 1 in the
paper. We set it to the size of the errors: then an error of z changes the variance by a factor, not by an exponent.
"""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from bayescade.bayes.gaussian import expectation
from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks.block import Block, BlockSettings, Trunk, Variance
from bayescade.blocks.convolution import ConvStack

# Channels and convolutions of the variance network, and the smallest variance, by what the network sees.
CHANNELS = {"inputs": 4, "features": 16}
DEPTH = {"inputs": 1, "features": 2}
FLOOR = {"inputs": 1e-6, "features": 1e-9}


def build(settings: BlockSettings, generator: torch.Generator, inputs: int = 1) -> Block:
    """A block with fresh weights."""
    trunk = Trunk(settings, inputs, generator)
    last = MeanFieldConv(settings.channels, generator)
    return Block(settings, trunk, last, VarianceNet(settings, inputs, generator), inputs)


@final
class VarianceNet(Variance):
    """A variance for every pixel."""

    body: ConvStack
    last: MeanFieldConv
    scale: Tensor

    def __init__(self, settings: BlockSettings, inputs: int, generator: torch.Generator):
        super().__init__()
        kind = settings.variance
        self.sees_features = kind == "features"
        self.floor = FLOOR[kind]
        self.register_buffer("scale", torch.ones(()))
        self.planes = 1 + settings.memory_channels + inputs
        into = self.planes + (settings.channels if self.sees_features else 0)
        self.body = ConvStack([into, *[CHANNELS[kind]] * DEPTH[kind]], generator)
        self.last = MeanFieldConv(CHANNELS[kind], generator)

    def of(self, z: Tensor | None) -> Tensor:
        """(scale softplus(z))^2 + floor."""
        assert z is not None
        return (self.scale * softplus(z)) ** 2 + self.floor

    def expected_of(self, mean: Tensor | None, variance: Tensor | None) -> Tensor:
        assert mean is not None
        assert variance is not None
        return self.scale**2 * expectation(lambda z: softplus(z).square(), mean, variance) + self.floor

    def variance_and_information(self, z: Tensor) -> tuple[Tensor, Tensor]:
        variance = self.of(z)
        slope = 2 * self.scale**2 * softplus(z) * torch.sigmoid(z) / variance  # of log v
        return variance, slope**2 / 2

    def rescale(self, level: float) -> None:
        self.scale.fill_(level)

    def start(self, variance: float) -> None:
        nn.init.constant_(self.last.bias, math.log(math.expm1(math.sqrt(variance) / float(self.scale))))

    def zero_weights_of(self, features: Tensor) -> None:
        if self.sees_features:
            self.body.convolutions()[0].weight.data[:, self.planes :][:, features] = 0
