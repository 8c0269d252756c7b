"""The trunk of a block: image, memory and input planes -> common features."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from bayescade.bayes.layers import KERNEL
from bayescade.blocks.convolution import Convolution, ConvStack
from bayescade.blocks.settings import BlockSettings


class Trunk(nn.Module, ABC):
    """Computes the common features."""

    can_die: bool  # whether a feature can become zero in all pixels, so that its weights learn no more

    @abstractmethod
    def forward(
        self,
        image: Tensor,  # (batch, 1 + m, height, width): image and memory
        inputs: Tensor,  # (batch, n, height, width): input planes of the problem, scaled
    ) -> Tensor:
        """The common features, (batch, c, height, width)."""

    @abstractmethod
    def widen(self) -> None:
        """Scales the new weights so that features are as large as their inputs (He et al. 2015)."""

    @abstractmethod
    def as_branches(self) -> "BranchTrunk":
        """This trunk, for code that computes the layers of a `BranchTrunk` by itself; raises if it is another."""


@final
class BranchTrunk(Trunk):
    """The trunk of the paper: an image branch, an input branch, then convolutions of the outputs of both branches."""

    can_die = True

    def __init__(
        self,
        settings: BlockSettings,
        inputs: int,  # n: number of input planes of the problem
        generator: torch.Generator,
    ):
        super().__init__()
        c = settings.channels
        self.image = ConvStack([1 + settings.memory_channels, c, 2 * c], generator)
        self.gradient = ConvStack([inputs, c, 2 * c], generator)  # the input branch; its name is in weight files
        self.common = ConvStack([4 * c, 2 * c, c], generator)

    def forward(self, image: Tensor, inputs: Tensor) -> Tensor:
        if image.device.type == "cpu" and not torch.is_grad_enabled():
            h = torch.cat([image, inputs], 1).contiguous(memory_format=torch.channels_last)
            for weight, bias, groups in self.joined():
                weight = weight.contiguous(memory_format=torch.channels_last)
                h = conv2d(h, weight, bias, padding=KERNEL // 2, groups=groups).relu_()
        else:
            h = torch.cat([self.image(image), self.gradient(inputs)], 1)
        common: Tensor = self.common(h)
        return common

    def widen(self) -> None:
        for stack in (self.image, self.gradient, self.common):
            stack.widen()

    def as_branches(self) -> "BranchTrunk":
        return self

    def branches(self) -> list[tuple[Convolution, Convolution]]:
        """Pairs (convolution of the image branch, convolution of the input branch), the first layer first."""
        return list(zip(self.image.convolutions(), self.gradient.convolutions(), strict=True))

    def joined(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Weight, bias and groups of convolutions that compute both branches at once.

        So no copy is needed to concatenate the outputs of the two branches.
        """
        for image, inputs in self.branches():
            bias = torch.cat([image.bias, inputs.bias])
            if image.in_channels == inputs.in_channels:
                yield torch.cat([image.weight, inputs.weight]), bias, 2
            else:  # groups must have equal numbers of channels: instead, weights between the two branches are zero
                split_in, split_out = image.in_channels, len(image.bias)
                weight = image.weight.new_zeros((len(bias), split_in + inputs.in_channels, KERNEL, KERNEL))
                weight[:split_out, :split_in], weight[split_out:, split_in:] = image.weight, inputs.weight
                yield weight, bias, 1
