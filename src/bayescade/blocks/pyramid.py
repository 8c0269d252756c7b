"""Blocks that see far: their convolutions work on images of half the size, a quarter, an eighth ...

The input planes are rearranged without loss: every square of 2 x 2 pixels becomes one pixel with four times the planes. With c
common features all convolutions of the trunk have w = 4 c channels, 3 x 3 weights, and a leaky ReLU after each, so that no
feature can die:

    half the size     planes -> w -> w ---------------------------- + -> w -> w     rearranged: c features of the full size
    a quarter             step of 2 -> w -> w ------------ + -> w --^               ^: every pixel repeated 2 x 2
    an eighth                   step of 2 -> w -> w -------^

`scales` is the number of image sizes, the full size included: 4 in this picture.
"""

from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate, leaky_relu, pad

from bayescade.bayes.layers import KERNEL
from bayescade.blocks.convolution import Convolution, Stack
from bayescade.blocks.settings import BlockSettings, scales_of
from bayescade.blocks.trunk import BranchTrunk, Trunk
from bayescade.errors import UserError

SLOPE = 0.1  # of the leaky ReLU below zero
SKIP = 0.5**0.5  # factor of the sum of two sizes, which is then as large as each of them
EDGE = 2  # of the squares whose pixels are rearranged
AREA = EDGE * EDGE
PLAIN_ONLY = "setting runner: blocks of several scales are computed by torch layers; use runner=auto or runner=plain"


def make_trunk(settings: BlockSettings, inputs: int, generator: torch.Generator) -> Trunk:
    """The trunk of these settings with new weights; `inputs` is the number of input planes of the problem."""
    kind = PyramidTrunk if scales_of(settings) > 1 else BranchTrunk
    return kind(settings, inputs, generator)


@final
class LeakyConv(nn.Module):
    """A 3 x 3 convolution and a leaky ReLU; a step of 2 halves the size of the image."""

    def __init__(
        self, in_channels: int, out_channels: int, generator: torch.Generator, step: int = 1, bias: bool = False
    ):
        super().__init__()
        shape = (out_channels, in_channels, KERNEL, KERNEL)
        std = (2 / (in_channels * KERNEL * KERNEL)) ** 0.5  # features are as large as their inputs (He et al. 2015)
        self.weight = nn.Parameter(std * torch.randn(shape, generator=generator))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.step = step

    def forward(self, h: Tensor) -> Tensor:
        out = conv2d(h, self.weight, self.bias, stride=self.step, padding=KERNEL // 2)
        return leaky_relu(out, SLOPE, inplace=True)


@final
class PyramidTrunk(Trunk):
    """Computes the common features on several scales."""

    can_die = False

    def __init__(self, settings: BlockSettings, inputs: int, generator: torch.Generator):
        super().__init__()
        planes, width = AREA * (1 + settings.memory_channels + inputs), AREA * settings.channels
        smaller = scales_of(settings) - 2  # number of sizes below half the size

        def layer(step: int = 1) -> LeakyConv:
            return LeakyConv(width, width, generator, step)

        first = LeakyConv(planes, width, generator, bias=True)
        with torch.no_grad():  # at first no block uses the features of the block before it
            first.weight[:, AREA : AREA * (1 + settings.memory_channels)] = 0
        self.first = nn.Sequential(first, layer())
        self.down = nn.ModuleList(nn.Sequential(layer(EDGE), layer()) for _ in range(smaller))
        self.up = nn.ModuleList(layer() for _ in range(smaller))
        self.end = layer()
        self.multiple = EDGE ** (smaller + 1)

    def forward(self, image: Tensor, inputs: Tensor) -> Tensor:
        planes = torch.cat([image, inputs], 1)
        height, width = planes.shape[-2:]
        h: Tensor = self.first(halved(padded(planes, self.multiple)))
        larger = []
        for layers in self.down:
            larger.append(h)
            h = layers(h)
        for layer in self.up:
            h = layer(SKIP * (interpolate(h, scale_factor=EDGE, mode="nearest") + larger.pop()))
        return doubled(self.end(h))[..., :height, :width]

    def widen(self) -> None:
        """Nothing to do: new weights are wide."""

    def as_branches(self) -> BranchTrunk:
        raise UserError(PLAIN_ONLY)


@final
class HalvedStack(Stack):
    """3 x 3 convolutions with a leaky ReLU after each, on images of half the size; input and output have the full size."""

    def __init__(
        self,
        channels: list[int],  # of the input, then of the output of each convolution; multiples of 4
        generator: torch.Generator,
    ):
        super().__init__()
        pairs = enumerate(pairwise(channels))
        self.layers = nn.Sequential(*(LeakyConv(a, b, generator, bias=index == 0) for index, (a, b) in pairs))

    def forward(self, planes: Tensor) -> Tensor:
        height, width = planes.shape[-2:]
        return doubled(self.layers(halved(padded(planes, EDGE))))[..., :height, :width]

    def widen(self) -> None:
        """Nothing to do: new weights are wide."""

    def convolutions(self) -> list[Convolution]:
        raise UserError(PLAIN_ONLY)


def padded(planes: Tensor, multiple: int) -> Tensor:
    """The planes with zeros below and on the right, so that height and width are multiples of a number."""
    below, right = -planes.shape[-2] % multiple, -planes.shape[-1] % multiple
    return pad(planes, (0, right, 0, below)) if below or right else planes


def halved(
    planes: Tensor,  # (batch, planes, height, width), height and width even
) -> Tensor:
    """Every square of 2 x 2 pixels as one pixel: (batch, 4 planes, height / 2, width / 2), channels last in memory.

    Within autocast the result has its type.
    """
    kind = planes.device.type
    if torch.is_autocast_enabled(kind):
        planes = planes.to(torch.get_autocast_dtype(kind))
    batch, count, height, width = planes.shape
    squares = planes.reshape(batch, count, height // EDGE, EDGE, width // EDGE, EDGE)
    return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).permute(0, 3, 1, 2)


def doubled(
    h: Tensor,  # (batch, 4 planes, height, width)
) -> Tensor:
    """The inverse of `halved`: (batch, planes, 2 height, 2 width)."""
    batch, channels, height, width = h.shape
    squares = h.reshape(batch, channels // AREA, EDGE, EDGE, height, width)
    return squares.permute(0, 1, 4, 2, 5, 3).reshape(batch, channels // AREA, EDGE * height, EDGE * width)
