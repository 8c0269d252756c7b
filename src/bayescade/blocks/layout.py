"""The weights of blocks in the layout of the fused kernels.

The kernels need equal numbers of planes in the image branch and in the input branch: for the branch with fewer planes there are
weights of zero.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from bayescade.blocks.block import Block
from bayescade.blocks.convolution import Stack
from bayescade.kernels.stack import Layer, last_layout, layer_of, padded, padded_channels


def in_precision(layer: Layer, dtype: torch.dtype) -> Layer:
    """The layer with its weights, but not its bias, in this type; all are contiguous in memory."""
    planes = layer.planes.to(dtype).contiguous() if layer.planes is not None else None
    weights = layer.weights.to(dtype).contiguous() if layer.weights is not None else None
    return Layer(planes, weights, layer.bias.contiguous())


@dataclasses.dataclass(frozen=True)
class BlockLayers:
    """The weights of a block in the layout of the kernels."""

    trunk: list[Layer]
    last: Tensor  # (16, in)
    body: list[Layer]  # of the variance network; empty if there is none
    variance_last: Tensor | None  # (16, in)


def layers_of(
    blocks: Sequence[Block],  # of one kind
    dtype: torch.dtype | None = None,  # of the weights, but not of the biases and of the last layers
) -> list[BlockLayers]:
    """The layers of blocks, converted at once; differentiable."""
    trunks = [block.trunk.as_branches() for block in blocks]
    trunk = trunk_layers(
        *(joined([getattr(part, name) for part in trunks]) for name in ("image", "gradient", "common"))
    )
    last = last_layout(torch.cat([block.last.weight for block in blocks]))
    variances = [block.variance for block in blocks]
    body: list[Layer] = []
    variance_last: Sequence[Tensor | None] = [None] * len(blocks)
    bodies = [variance.body for variance in variances if variance is not None and variance.body is not None]
    if bodies:
        body = body_layers(blocks[0], joined(bodies))
        lasts: list[Tensor] = [
            variance.last.weight for variance in variances if variance is not None and variance.last is not None
        ]
        variance_last = last_layout(torch.cat(lasts)).unbind()
    trunk_parts, body_parts = (
        [unbound(in_precision(layer, dtype or layer.bias.dtype)) for layer in layers] for layers in (trunk, body)
    )
    return [
        BlockLayers(
            [layer[index] for layer in trunk_parts],
            last[index],
            [layer[index] for layer in body_parts],
            variance_last[index],
        )
        for index in range(len(blocks))
    ]


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The weights of one convolution of several blocks."""

    weight: Tensor  # (blocks, out, in, 3, 3)
    bias: Tensor  # (blocks, out)

    @property
    def in_channels(self) -> int:
        return self.weight.shape[-3]


def joined(stacks: Sequence[Stack]) -> list[Kernels]:
    """The convolutions of stacks of one kind."""
    return [
        Kernels(torch.stack([conv.weight for conv in convolutions]), torch.stack([conv.bias for conv in convolutions]))
        for convolutions in zip(*(stack.convolutions() for stack in stacks), strict=True)
    ]


def unbound(layer: Layer) -> list[Layer]:
    """The layers of all blocks, from one with a first axis blocks."""
    count = len(layer.bias)
    planes = layer.planes.unbind() if layer.planes is not None else [None] * count
    weights = layer.weights.unbind() if layer.weights is not None else [None] * count
    return [Layer(*parts) for parts in zip(planes, weights, layer.bias.unbind(), strict=True)]


def trunk_layers(image: Sequence[Kernels], inputs: Sequence[Kernels], common: Sequence[Kernels]) -> list[Layer]:
    """The layers of trunks for the kernels: layers of two groups (the two branches), then the common layers."""
    first_pair, *other_pairs = zip(image, inputs, strict=True)
    planes = max(conv.in_channels for conv in first_pair)
    weights = [pad_inputs(conv.weight, planes) for conv in first_pair]
    layers = [layer_of(weights, None, [conv.bias for conv in first_pair])]
    layers += [layer_of(None, [conv.weight for conv in pair], [conv.bias for conv in pair]) for pair in other_pairs]
    first_common, *other_common = common
    half = (
        first_common.in_channels // 2
    )  # channels of one branch; the kernels pad its output to `padded_channels(half)`
    halves = [pad_inputs(weight, padded_channels(half)) for weight in first_common.weight.split(half, -3)]
    layers.append(layer_of(None, [torch.cat(halves, -3)], [first_common.bias]))
    return layers + [layer_of(None, [conv.weight], [conv.bias]) for conv in other_common]


def body_layers(
    block: Block,  # one of the blocks
    body: Sequence[Kernels],
) -> list[Layer]:
    """The layers of variance networks before their last layer, for the kernels.

    The inputs of the first layer are the planes of `planes_of` and, if `sees_features`, the common features.
    """
    assert block.variance is not None
    first, *others = body
    state_planes, input_planes = 1 + block.memory_channels, len(block.input_scale)
    parts = first.weight.split([state_planes, input_planes, first.in_channels - state_planes - input_planes], -3)
    planes = torch.cat([pad_inputs(weight, max(state_planes, input_planes)) for weight in parts[:2]], -3)
    features = [parts[2]] if block.variance.sees_features else None
    layers = [layer_of([planes], features, [first.bias])]
    return layers + [layer_of(None, [conv.weight], [conv.bias]) for conv in others]


def pad_inputs(
    weight: Tensor,  # (..., out, in, 3, 3)
    channels: int,  # at least `in`
) -> Tensor:
    """The weights with zeros for additional input channels, (..., out, channels, 3, 3)."""
    return padded(weight, (0, 0, 0, 0, 0, channels - weight.shape[-3]))
