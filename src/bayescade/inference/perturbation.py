"""Samples on a CPU by what a draw changes: features as differences from those of the mean weights, in half the bits.

A draw of the weights changes an image by a ten-thousandth of its values or so, which bfloat16 cannot tell; the change itself it
tells to three digits, whatever its size. Convolutions are linear, and relu(a + d) - relu(a) = max(d + min(a, 0), -max(a, 0)):
differences go through a block exactly but for rounding, with products in bfloat16, which some CPUs do twice as fast. Images,
projections and last layers stay in the precision of the images.
"""

import dataclasses
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from bayescade.bayes.layers import KERNEL
from bayescade.blocks.block import Block, Draw, MeanDraw, Trunk
from bayescade.blocks.heteroscedastic import VarianceNet
from bayescade.networks.cascade import Data

NARROW = torch.bfloat16


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A convolution with a ReLU behind it."""

    weight: Tensor
    bias: Tensor
    groups: int = 1


def convolutions_of(layers: nn.Sequential) -> list[Convolution]:
    """Those of a part of a network."""
    return [Convolution(layer.weight, layer.bias) for layer in layers if isinstance(layer, nn.Conv2d)]  # type: ignore[arg-type]


def trunk_convolutions(trunk: Trunk) -> list[Convolution]:
    """Those of a block's features, both branches as one in two groups."""
    return [Convolution(*joined, groups=2) for joined in trunk.joined()] + convolutions_of(trunk.common)


@final
class Layers:
    """Convolutions at what they give for some inputs; called with others, near them or not, they go by the differences."""

    def __init__(self, convolutions: Sequence[Convolution], inputs: Tensor, dtype: torch.dtype):
        self.inputs = inputs  # (batch, in, height, width)
        self.dtype = dtype
        self.weights, self.groups = [], []
        self.below, self.above = [], []  # min(a, 0) and -max(a, 0) of what goes into each ReLU
        h = inputs.contiguous(memory_format=torch.channels_last)
        for layer in convolutions:
            a = conv2d(h, layer.weight, layer.bias, padding=KERNEL // 2, groups=layer.groups)
            self.weights.append(layer.weight.to(dtype).contiguous(memory_format=torch.channels_last))
            self.groups.append(layer.groups)
            self.below.append(a.clamp_max(0).to(dtype))
            self.above.append((-a).clamp_max(0).to(dtype))
            h = relu(a)
        self.output = h  # (batch, out, height, width)

    def __call__(
        self,
        inputs: Tensor,  # (samples * batch, in, height, width), samples in front
    ) -> Tensor:
        """The output, (samples * batch, out, height, width)."""
        change = (inputs.unflatten(0, (-1, len(self.inputs))) - self.inputs).flatten(0, 1)
        change = change.to(self.dtype).contiguous(memory_format=torch.channels_last)
        for weight, groups, below, above in zip(self.weights, self.groups, self.below, self.above, strict=True):
            change = conv2d(change, weight, padding=KERNEL // 2, groups=groups)
            each = change.unflatten(0, (-1, len(below)))
            torch.maximum(each.add_(below), above, out=each)
        return (change.unflatten(0, (-1, len(self.inputs))).to(self.output.dtype) + self.output).flatten(0, 1)


@final
class NearBlock:
    """A block at the image that the mean weights give, for draws that go by differences from it."""

    def __init__(self, block: Block, x: Tensor, gradient: Tensor, dtype: torch.dtype, last: bool):
        self.block = block
        inputs = torch.cat([x, gradient * block.gradient_scale], 1)
        self.trunk = Layers(trunk_convolutions(block.trunk), inputs, dtype)
        self.body: Layers | None = None
        if last and isinstance(block.variance, VarianceNet):
            seen = block.variance.seen(inputs, self.trunk.output)
            self.body = Layers(convolutions_of(block.variance.body), seen, dtype)
        self.next = block.image_of(x, self.trunk.output, MeanDraw())  # the image with mean weights

    def features(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """`block.features`."""
        inputs = torch.cat([x, gradient * self.block.gradient_scale], 1)
        return inputs, self.trunk(inputs)

    def variance(self, inputs: Tensor, h: Tensor, draw: Draw | None) -> Tensor | None:
        """The variance of the last block for a draw; without one its mean over the weights."""
        net = self.block.variance
        if not isinstance(net, VarianceNet):
            return net.expected(inputs, h) if net is not None else None
        assert self.body is not None, "of the last block only"
        features = self.body(net.seen(inputs, h))
        if draw is not None:
            return net.of(draw.apply(net.last, features, 1))
        return net.expected_of(net.last.mean(features), net.last.output_variance(features))


def near_blocks(blocks: Sequence[Block], data: Data, first: Tensor, dtype: torch.dtype) -> list[NearBlock]:
    """All blocks of a cascade, each at its own image."""
    found: list[NearBlock] = []
    x = first
    for place, block in enumerate(blocks):
        found.append(NearBlock(block, x, data.gradient(x), dtype, last=place == len(blocks) - 1))
        x = found[-1].next
    return found


def near_bytes(blocks: Sequence[Block], images: Tensor, dtype: torch.dtype) -> int:
    """About what they take."""
    layers = (layer for block in blocks for layer in block.trunk.modules())
    width = sum(layer.out_channels for layer in layers if isinstance(layer, nn.Conv2d))
    return 2 * width * images.numel() * dtype.itemsize
