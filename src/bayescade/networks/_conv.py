"""Convolutions with weights from a generator."""

import torch
from torch import nn


def convolution(into: int, out: int, generator: torch.Generator, size: int = 3) -> nn.Conv2d:
    """A convolution that keeps the size of the image, with He's initial weights and no bias at the start."""
    layer = nn.utils.skip_init(nn.Conv2d, into, out, size, padding=size // 2)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
