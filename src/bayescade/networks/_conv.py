"""Convolutions with random initial weights."""

import torch
from torch import nn

from bayescade.blocks.convolution import Convolution


def convolution(in_channels: int, out_channels: int, generator: torch.Generator, kernel_size: int = 3) -> nn.Conv2d:
    """A convolution that does not change the image size, with the initial weights of He et al. (2015) and bias 0."""
    layer = Convolution(in_channels, out_channels, kernel_size)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
