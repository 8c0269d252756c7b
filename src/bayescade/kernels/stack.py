"""A stack of convolutions with a random last layer, forward and backward by the fused kernels, as one differentiable function.

It is what a block is made of twice: its features and its last layer, and its variance network. Channels are filled up with
zeros to a power of two, at least sixteen, as the kernels need them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayescade.kernels.convolution import PLANE_TAPS, convolve, input_gradient, plane_weight_gradient, weight_gradient
from bayescade.kernels.frame import Frame
from bayescade.kernels.last_layer import head, head_gradient

FEWEST = 16  # channels of a matrix product


@dataclasses.dataclass(frozen=True)
class Layer:
    """A convolution with ReLU: of planes, of features, or of both; `groups` of them side by side see inputs of their own."""

    planes: Tensor | None  # (groups * planes, 16, out)
    weights: Tensor | None  # (groups, 9, in, out)
    bias: Tensor  # (groups, out)


def layer_of(
    planes: Sequence[Tensor] | None,  # per group: (out, planes, 3, 3)
    weights: Sequence[Tensor] | None,  # per group: (out, in, 3, 3)
    bias: Sequence[Tensor],  # per group: (out,)
) -> Layer:
    """Weights as torch keeps them, laid out for the kernels; differentiable."""
    out = filled(len(bias[0]))
    return Layer(
        torch.cat([_plane_layout(weight, out) for weight in planes]) if planes is not None else None,
        torch.stack([_layout(weight, out) for weight in weights]) if weights is not None else None,
        torch.stack([pad(one, (0, out - len(one))) for one in bias]),
    )


def filled(channels: int) -> int:
    """The number of channels the kernels work with."""
    return max(FEWEST, 1 << (channels - 1).bit_length())


def _plane_layout(weight: Tensor, out: int) -> Tensor:
    taps = weight.flatten(2).permute(1, 2, 0)  # (planes, 9, out)
    return pad(taps, (0, out - taps.shape[2], 0, PLANE_TAPS - taps.shape[1]))


def _layout(weight: Tensor, out: int) -> Tensor:
    taps = weight.flatten(2).permute(2, 1, 0)  # (9, in, out)
    return pad(taps, (0, out - taps.shape[2], 0, filled(taps.shape[1]) - taps.shape[1]))


def head_layout(
    weight: Tensor,  # (samples, in, 3, 3)
) -> Tensor:
    """Weights of a last layer, (samples, 16, in)."""
    taps = weight.flatten(2).transpose(1, 2)
    return pad(taps, (0, filled(taps.shape[2]) - taps.shape[2], 0, PLANE_TAPS - taps.shape[1]))


def run_layers(
    planes: Tensor,  # (planes, room and places)
    extra: Tensor | None,  # (1, room and places, in): features for the first layer
    layers: Sequence[Layer],
    frame: Frame,
) -> list[Tensor]:
    """The output of every layer, (parts, room and places, channels): groups apart where the next layer has as many."""
    found: list[Tensor] = []
    dtype = planes.dtype
    for place, layer in enumerate(layers):
        features = extra if place == 0 else found[-1]
        groups = len(layer.bias)
        apart = place + 1 < len(layers) and len(layers[place + 1].bias) == groups
        found.append(
            convolve(
                planes if layer.planes is not None else None,
                layer.planes.to(dtype).contiguous() if layer.planes is not None else None,
                features if layer.weights is not None else None,
                layer.weights.to(dtype) if layer.weights is not None else None,
                layer.bias,
                frame,
                parts=groups if apart else 1,
            )
        )
    return found


def stack(
    planes: Tensor,  # (planes, room and places), in the precision of the work
    extra: Tensor | None,  # (1, room and places, in): features for the first layer, without gradient
    layers: Sequence[Layer],
    weights: Tensor,  # (16, in): means of the last layer
    variances: Tensor,  # (16, in): their variances
    frame: Frame,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the last layer's output, (pixels,), without bias; and its input, features without gradient."""
    parameters = [part for layer in layers for part in (layer.planes, layer.weights, layer.bias)]
    found: tuple[Tensor, Tensor, Tensor] = _Stack.apply(planes, extra, frame, weights, variances, *parameters)
    return found


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        planes: Tensor,
        extra: Tensor | None,
        frame: Frame,
        weights: Tensor,
        variances: Tensor,
        *parameters: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        layers = _layers(parameters)
        features = run_layers(planes, extra, layers, frame)
        mean, variance = head(
            features[-1], weights[None].contiguous(), variances[None].contiguous(), frame, shared=True
        )
        ctx.save_for_backward(planes, extra, weights, variances, *parameters, *features)
        ctx.frame, ctx.number = frame, len(layers)
        ctx.mark_non_differentiable(features[-1])
        return mean, variance, features[-1]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        frame: Frame = ctx.frame
        planes, extra, weights, variances, *rest = ctx.saved_tensors
        parameters, features = rest[: 3 * ctx.number], rest[3 * ctx.number :]
        layers = _layers(parameters)
        slope, of_weights, of_variances = head_gradient(
            features[-1], weights, variances, frame.planes(slopes[:2], features[-1].dtype), frame
        )
        found: list[Tensor | None] = []
        for place in reversed(range(ctx.number)):
            layer = layers[place]
            groups = len(layer.bias)
            into = extra if place == 0 else features[place - 1]
            of_planes = of_taps = of_bias = None
            if layer.planes is not None:
                of_planes, of_bias = plane_weight_gradient(planes, slope, groups, frame)
            if layer.weights is not None:
                of_taps, of_bias = weight_gradient(into, slope, groups, frame)
            found = [of_planes, of_taps, of_bias, *found]
            if place:
                assert layer.weights is not None
                slope = input_gradient(slope, layer.weights.to(slope.dtype), into, frame)
        return None, None, None, of_weights, of_variances, *found


def _layers(parameters: Sequence[Tensor | None]) -> list[Layer]:
    layers = []
    for place in range(0, len(parameters), 3):
        planes, weights, bias = parameters[place : place + 3]
        assert bias is not None
        layers.append(Layer(planes, weights, bias))
    return layers
