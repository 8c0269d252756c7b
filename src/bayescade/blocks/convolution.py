"""Convolutions without initial weights, and stacks of them with a ReLU after each."""

from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch
from torch import nn

from bayescade.bayes.layers import KERNEL


@final
class Convolution(nn.Conv2d):
    """A convolution that does not change the image size. `torch.nn.utils.skip_init` does the same, but imports slowly."""

    bias: nn.Parameter

    def __init__(self, into: int, out: int, size: int):
        super().__init__(into, out, size, padding=size // 2)

    def reset_parameters(self) -> None:
        """Does nothing: the caller sets the weights, and torch's global generator is not used."""


@final
class ConvStack(nn.Sequential):
    """3 x 3 convolutions with a ReLU after each, with these numbers of channels."""

    def __init__(self, channels: Sequence[int], generator: torch.Generator):
        layers: list[nn.Module] = []
        for into, out in pairwise(channels):
            conv = Convolution(into, out, KERNEL)
            bound = (into * KERNEL * KERNEL) ** -0.5  # as torch does by default
            nn.init.uniform_(conv.weight, -bound, bound, generator=generator)
            nn.init.uniform_(conv.bias, -bound, bound, generator=generator)
            layers += [conv, nn.ReLU(inplace=True)]
        super().__init__(*layers)

    def convolutions(self) -> list[Convolution]:
        """The convolutions without the ReLUs."""
        return [layer for layer in self if isinstance(layer, Convolution)]


def channels_last(module: nn.Module) -> None:
    """Stores the weights with the channels of a pixel next to each other, which makes convolutions faster."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
