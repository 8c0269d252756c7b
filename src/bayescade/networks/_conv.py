"""Convolutions with random initial weights."""

import torch
from torch import nn

from bayescade.blocks.convolution import Convolution


def convolution(into: int, out: int, generator: torch.Generator, size: int = 3) -> nn.Conv2d:
    """A convolution that does not change the image size, with He's initial weights and bias 0."""
    layer = Convolution(into, out, size)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
