"""BDGD+'s block: a random last layer, and a variance network with a random last layer of its own.

variance = (scale softplus(z))^2 + floor, z the output of a small network of the image and the gradient. The scale is 1 in the
paper; at the size of the errors a wrong z is wrong by a factor, not by an exponent.
"""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from bayescade.bayes.gaussian import expectation
from bayescade.bayes.last_layer import Inputs, PlainInputs
from bayescade.bayes.layers import LastConv, MeanFieldConv
from bayescade.blocks.block import Block, BlockSettings, Draw, Trunk, Variance, convolutions


def build(settings: BlockSettings, generator: torch.Generator) -> Block:
    """A block with fresh weights."""
    trunk = Trunk(settings, generator)
    last = MeanFieldConv(settings.channels, generator, settings.jitter)
    return Block(trunk, last, VarianceNet(settings, generator))


@final
class VarianceNet(Variance):
    """A variance for every pixel."""

    scale: Tensor

    def __init__(self, settings: BlockSettings, generator: torch.Generator):
        super().__init__()
        self.sees_features = settings.variance_input == "features"
        self.floor = settings.variance_floor
        self.register_buffer("scale", torch.ones(()))
        into = 2 + (settings.channels if self.sees_features else 0)
        self.body = convolutions([into, *[settings.variance_channels] * settings.variance_depth], generator)
        self.last = MeanFieldConv(settings.variance_channels, generator, settings.jitter)

    def forward(self, inputs: Tensor, h: Tensor, draw: Draw) -> Tensor:
        z = draw.apply(self.last, self.features(inputs, h), 1)
        return self.of(z.float() if z.dtype == torch.bfloat16 else z)  # a square near zero needs the full precision

    def expected(self, inputs: Tensor, h: Tensor) -> Tensor:
        features = self.features(inputs, h)
        return self.expected_of(self.last.mean(features), self.last.output_variance(features))

    def expected_of(self, mean: Tensor, variance: Tensor) -> Tensor:
        """The mean of the variance from the moments of z."""
        return self.scale**2 * expectation(lambda z: softplus(z).square(), mean, variance) + self.floor

    def features(self, inputs: Tensor, h: Tensor) -> Tensor:
        """The input of the last layer."""
        features: Tensor = self.body(self.seen(inputs, h))
        return features

    def seen(self, inputs: Tensor, h: Tensor) -> Tensor:
        """What the network sees."""
        return torch.cat([inputs, h.detach().to(inputs.dtype)], 1) if self.sees_features else inputs

    def of(self, z: Tensor) -> Tensor:
        """(scale softplus(z))^2 + floor."""
        return (self.scale * softplus(z)) ** 2 + self.floor

    def rescale(self, level: float) -> None:
        self.scale.fill_(level)

    def start(self, variance: float) -> None:
        nn.init.constant_(self.last.bias, math.log(math.expm1(math.sqrt(variance) / float(self.scale))))

    def forget(self, features: Tensor) -> None:
        first = self.body[0]
        assert isinstance(first, nn.Conv2d)
        if self.sees_features:
            first.weight.data[:, 2:][:, features] = 0

    def at_mean(self, inputs: Tensor, h: Tensor) -> tuple[Tensor, tuple[Inputs, Tensor]]:
        features = PlainInputs(self.features(inputs, h))
        variance, information = self.informed(features.output_mean(self.last))
        return variance, (features, information)

    def informed(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The variance, and the Fisher information of z."""
        variance = self.of(z)
        slope = 2 * self.scale**2 * softplus(z) * torch.sigmoid(z) / variance  # of log v
        return variance, slope**2 / 2

    @property
    def layers(self) -> list[LastConv]:
        return [self.last]
