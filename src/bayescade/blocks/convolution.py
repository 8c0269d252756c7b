"""A convolution whose weights are not initialised, and a stack of convolutions with a ReLU after each."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch
from torch import nn

from bayescade.bayes.layers import KERNEL


@final
class Convolution(nn.Conv2d):
    """A convolution that does not change the image size and does not initialise its weights.

    `torch.nn.utils.skip_init` also skips the initialisation, but importing it is slow.
    """

    bias: nn.Parameter

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int):
        super().__init__(in_channels, out_channels, kernel_size, padding=kernel_size // 2)

    def reset_parameters(self) -> None:
        """Does nothing: the caller sets the weights, and torch's global generator is not used."""


class Stack(nn.Module, ABC):
    """Convolutions one after the other."""

    @abstractmethod
    def widen(self) -> None:
        """Scales the new weights so that features are as large as their inputs (He et al. 2015)."""

    @abstractmethod
    def convolutions(self) -> list[Convolution]:
        """The convolutions, if each is followed by a ReLU; raises otherwise."""


@final
class ConvStack(nn.Sequential, Stack):
    """3 x 3 convolutions with a ReLU after each."""

    def __init__(
        self,
        channels: Sequence[int],  # of the input, then of the output of each convolution
        generator: torch.Generator,
    ):
        layers: list[nn.Module] = []
        for in_channels, out_channels in pairwise(channels):
            conv = Convolution(in_channels, out_channels, KERNEL)
            bound = (in_channels * KERNEL * KERNEL) ** -0.5  # as in torch's default initialisation
            nn.init.uniform_(conv.weight, -bound, bound, generator=generator)
            nn.init.uniform_(conv.bias, -bound, bound, generator=generator)
            layers += [conv, nn.ReLU(inplace=True)]
        super().__init__(*layers)

    @torch.no_grad()
    def widen(self) -> None:
        """As in `Stack`; biases become zero. The initial weights of torch halve the features in every layer, so that most of
        the last features are biases alone."""
        for convolution in self.convolutions():
            convolution.weight *= math.sqrt(6)
            convolution.bias.zero_()

    def convolutions(self) -> list[Convolution]:
        """The convolutions, in order, without the ReLUs."""
        return [layer for layer in self if isinstance(layer, Convolution)]


def channels_last(module: nn.Module) -> None:
    """Stores the weights in torch's memory format `channels_last`, which makes convolutions faster."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
