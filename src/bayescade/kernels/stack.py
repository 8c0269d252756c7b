"""A stack of convolutions with a random last layer, forward and backward by the fused kernels, as one differentiable function.

A block has two: features with the last layer, and the variance network. Channels are padded with zeros to a power of two, at
least sixteen, as the kernels need.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayescade.kernels.convolution import PLANE_TAPS, convolve, input_gradient, plane_weight_gradient, weight_gradient
from bayescade.kernels.frame import Frame
from bayescade.kernels.last_layer import last_layer, last_layer_gradient

FEWEST = 16  # channels of a matrix product


@dataclasses.dataclass(frozen=True)
class Layer:
    """A convolution with ReLU: of planes, of features, or of both; with `groups`, each group has separate inputs."""

    planes: Tensor | None  # (groups * planes, 16, out): weights of planes
    weights: Tensor | None  # (groups, 9, in, out)
    bias: Tensor  # (groups, out)


def layer_of(
    planes: Sequence[Tensor] | None,  # per group: (out, planes, 3, 3)
    weights: Sequence[Tensor] | None,  # per group: (out, in, 3, 3)
    bias: Sequence[Tensor],  # per group: (out,)
) -> Layer:
    """Weights of torch in the layout of the kernels; differentiable."""
    out = filled(len(bias[0]))
    return Layer(
        torch.cat([_plane_layout(weight, out) for weight in planes]) if planes is not None else None,
        torch.stack([_layout(weight, out) for weight in weights]) if weights is not None else None,
        torch.stack([pad(one, (0, out - len(one))) for one in bias]),
    )


def filled(channels: int) -> int:
    """The number of channels with padding."""
    return max(FEWEST, 1 << (channels - 1).bit_length())


def _plane_layout(weight: Tensor, out: int) -> Tensor:
    taps = weight.flatten(2).permute(1, 2, 0)  # (planes, 9, out)
    return pad(taps, (0, out - taps.shape[2], 0, PLANE_TAPS - taps.shape[1]))


def _layout(weight: Tensor, out: int) -> Tensor:
    taps = weight.flatten(2).permute(2, 1, 0)  # (9, in, out)
    return pad(taps, (0, out - taps.shape[2], 0, filled(taps.shape[1]) - taps.shape[1]))


def last_layout(
    weight: Tensor,  # (samples, in, 3, 3)
) -> Tensor:
    """Weights of a last layer, (samples, 16, in)."""
    taps = weight.flatten(2).transpose(1, 2)
    return pad(taps, (0, filled(taps.shape[2]) - taps.shape[2], 0, PLANE_TAPS - taps.shape[1])).contiguous()


def run_layers(
    planes: Tensor,  # (planes, padded positions)
    extra: Tensor | None,  # (1, padded positions, in): features for the first layer
    layers: Sequence[Layer],
    frame: Frame,
) -> list[Tensor]:
    """The output of every layer, (parts, padded positions, channels).

    One part per group if the next layer has equally many, else one.
    """
    outputs: list[Tensor] = []
    dtype = planes.dtype
    for index, layer in enumerate(layers):
        features = extra if index == 0 else outputs[-1]
        groups = len(layer.bias)
        apart = index + 1 < len(layers) and len(layers[index + 1].bias) == groups
        outputs.append(
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
    return outputs


def stack(
    planes: Tensor,  # (planes, padded positions), in the precision of the features
    extra: Tensor | None,  # (1, padded positions, in): features for the first layer, not differentiated
    layers: Sequence[Layer],
    weights: Tensor,  # (16, in): means of the last layer
    variances: Tensor,  # (16, in): their variances
    frame: Frame,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the last layer's output, (pixels,), without bias; and its input, not differentiable."""
    parameters = [part for layer in layers for part in (layer.planes, layer.weights, layer.bias)]
    moments: tuple[Tensor, Tensor, Tensor] = _Stack.apply(planes, extra, frame, weights, variances, *parameters)
    return moments


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
        mean, variance = last_layer(
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
        slope, of_weights, of_variances = last_layer_gradient(
            features[-1], weights, variances, frame.planes(slopes[:2], features[-1].dtype), frame
        )
        gradients: list[Tensor | None] = []
        for index in reversed(range(ctx.number)):
            layer = layers[index]
            groups = len(layer.bias)
            into = extra if index == 0 else features[index - 1]
            of_planes = of_taps = of_bias = None
            if layer.planes is not None:
                of_planes, of_bias = plane_weight_gradient(planes, slope, groups, frame)
            if layer.weights is not None:
                of_taps, of_bias = weight_gradient(into, slope, groups, frame)
            gradients = [of_planes, of_taps, of_bias, *gradients]
            if index:
                assert layer.weights is not None
                slope = input_gradient(slope, layer.weights.to(slope.dtype), into, frame)
        return None, None, None, of_weights, of_variances, *gradients


def _layers(parameters: Sequence[Tensor | None]) -> list[Layer]:
    layers = []
    for index in range(0, len(parameters), 3):
        planes, weights, bias = parameters[index : index + 3]
        assert bias is not None
        layers.append(Layer(planes, weights, bias))
    return layers
