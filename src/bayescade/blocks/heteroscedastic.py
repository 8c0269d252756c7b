"""The block of BDGD+: a random last layer, and a variance network whose last layer is random too.

    variance = (scale softplus(z))^2 + floor,    z the output of the variance network (equation 7 of the paper).

The setting `variance` says what the inputs of the network are. The scale is 1 in the paper. Our training sets it to the
root mean square error of the block's input images (unless `start` is fresh). Then z is of order 1, where softplus(z)
is roughly linear. With scale 1 a small variance needs z far below 0, where softplus(z) is about exp(z): there an error
d of z multiplies the variance by exp(2 d).
"""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from bayescade.bayes.gaussian import expectation
from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks.block import Block, Variance
from bayescade.blocks.convolution import ConvStack, Stack
from bayescade.blocks.pyramid import AREA, HalvedStack, make_trunk
from bayescade.blocks.settings import BlockSettings, scales_of

# For each value of the setting `variance`: channels and convolutions of the variance network before its last layer, and
# the smallest variance.
CHANNELS = {"inputs": 4, "features": 16}
DEPTH = {"inputs": 1, "features": 2}
HALVED_CHANNELS = 24  # of both convolutions of a block of several scales, on images of half the size
FLOOR = {"inputs": 1e-6, "features": 1e-9}


def build(settings: BlockSettings, generator: torch.Generator, inputs: int = 1) -> Block:
    """A block with new initial weights; `inputs` is the number of input planes of the problem."""
    trunk = make_trunk(settings, inputs, generator)
    last = MeanFieldConv(settings.channels, generator)
    return Block(settings, trunk, last, VarianceNet(settings, inputs, generator), inputs)


@final
class VarianceNet(Variance):
    """A variance for every pixel, computed by a network."""

    body: Stack
    last: MeanFieldConv
    scale: Tensor

    def __init__(self, settings: BlockSettings, inputs: int, generator: torch.Generator):
        super().__init__()
        kind = settings.variance
        self.sees_features = kind == "features"
        self.floor = FLOOR[kind]
        self.register_buffer("scale", torch.ones(()))
        self.planes = 1 + settings.memory_channels + inputs  # number of planes in the input of the body
        in_channels = self.planes + (settings.channels if self.sees_features else 0)
        if scales_of(settings) > 1:
            self.body = HalvedStack([AREA * in_channels, HALVED_CHANNELS, HALVED_CHANNELS], generator)
            self.last = MeanFieldConv(HALVED_CHANNELS // AREA, generator)
        else:
            self.body = ConvStack([in_channels, *[CHANNELS[kind]] * DEPTH[kind]], generator)
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
        slope = 2 * self.scale**2 * softplus(z) * torch.sigmoid(z) / variance  # d log(variance) / dz
        return variance, slope**2 / 2

    def rescale(self, level: float) -> None:
        self.scale.fill_(level)

    def start(self, variance: float) -> None:
        nn.init.constant_(self.last.bias, math.log(math.expm1(math.sqrt(variance) / float(self.scale))))

    def zero_weights_of(self, features: Tensor) -> None:
        if self.sees_features:
            self.body.convolutions()[0].weight.data[:, self.planes :][:, features] = 0
