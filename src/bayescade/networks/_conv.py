"""Convolutions with weights from a generator."""

import torch
from torch import nn

from bayescade.blocks.convolution import Convolution


def convolution(into: int, out: int, generator: torch.Generator, size: int = 3) -> nn.Conv2d:
    """A convolution that keeps the size of the image, with He's initial weights and no bias at the start."""
    layer = Convolution(into, out, size)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
