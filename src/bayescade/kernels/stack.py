"""A stack of convolutions with a random last layer, forward and backward by the fused kernels; differentiable in its
weights and its planes.

A block has two such stacks: the image network and the variance network. The kernels need 16 channels or a higher
power of two, so channels are padded with zeros. `convolution` explains positions, planes, groups and parts. A name
with `slope` is a gradient of the loss."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayescade.kernels.convolution import (
    PLANE_TAPS,
    convolve,
    input_gradient,
    plane_gradient,
    plane_weight_gradient,
    weight_gradient,
)
from bayescade.kernels.frame import Frame
from bayescade.kernels.last_layer import last_layer, last_layer_gradient

FEWEST = 16  # smallest number of channels in a matrix product


@dataclasses.dataclass(frozen=True)
class Layer:
    """The weights of a convolution with ReLU. Its inputs are planes, features, or both; every group has different
    inputs."""

    planes: Tensor | None  # (groups * planes, 16 taps: nine, then zeros; out): weights of planes, or None
    weights: Tensor | None  # (groups, 9, in, out): weights of features; None without features
    bias: Tensor  # (groups, out)


def layer_of(
    planes: Sequence[Tensor] | None,  # per group: (..., out, planes, 3, 3)
    weights: Sequence[Tensor] | None,  # per group: (..., out, in, 3, 3)
    bias: Sequence[Tensor],  # per group: (..., out)
) -> Layer:
    """Converts weights in the layout of torch to the layout of the kernels; differentiable.

    The weights of several layers may be converted at once: all tensors of the result have the same first axes.
    """
    out = padded_channels(bias[0].shape[-1])
    return Layer(
        torch.cat([_plane_layout(weight, out) for weight in planes], -3) if planes is not None else None,
        torch.stack([_layout(weight, out) for weight in weights], -4) if weights is not None else None,
        torch.stack([padded(group_bias, (0, out - group_bias.shape[-1])) for group_bias in bias], -2),
    )


def padded_channels(channels: int) -> int:
    """The number of channels after padding: a power of two, at least `FEWEST`."""
    return max(FEWEST, 1 << (channels - 1).bit_length())


def _plane_layout(weight: Tensor, out: int) -> Tensor:
    taps = weight.flatten(-2).movedim(-3, -1)  # (..., planes, 9, out)
    return padded(taps, (0, out - taps.shape[-1], 0, PLANE_TAPS - taps.shape[-2]))


def _layout(weight: Tensor, out: int) -> Tensor:
    taps = weight.flatten(-2).transpose(-1, -3)  # (..., 9, in, out)
    return padded(taps, (0, out - taps.shape[-1], 0, padded_channels(taps.shape[-2]) - taps.shape[-2]))


def padded(values: Tensor, widths: tuple[int, ...]) -> Tensor:
    """`pad`, without a copy if there is nothing to add."""
    return pad(values, widths) if any(widths) else values


def last_layout(
    weight: Tensor,  # (samples, in, 3, 3)
) -> Tensor:
    """The weights of a last layer in the layout of the kernels, (samples, 16, in)."""
    taps = weight.flatten(2).transpose(1, 2)
    return pad(taps, (0, padded_channels(taps.shape[2]) - taps.shape[2], 0, PLANE_TAPS - taps.shape[1])).contiguous()


def run_layers(
    planes: Tensor,  # (planes, padded positions)
    extra: Tensor | None,  # (1, padded positions, in): features for the first layer
    layers: Sequence[Layer],
    frame: Frame,
) -> list[Tensor]:
    """The output of every layer, (parts, padded positions, channels).

    There is one part per group if the next layer has the same number of groups; if not, there is one part.
    """
    outputs: list[Tensor] = []
    dtype = planes.dtype
    for index, layer in enumerate(layers):
        features = extra if index == 0 else outputs[-1]
        groups = len(layer.bias)
        separate = index + 1 < len(layers) and len(layers[index + 1].bias) == groups
        outputs.append(
            convolve(
                planes if layer.planes is not None else None,
                layer.planes.to(dtype).contiguous() if layer.planes is not None else None,
                features if layer.weights is not None else None,
                layer.weights.to(dtype) if layer.weights is not None else None,
                layer.bias,
                frame,
                parts=groups if separate else 1,
            )
        )
    return outputs


def stack(
    planes: Tensor,  # (planes, padded positions), in the precision of the features
    extra: Tensor | None,  # (1, padded positions, in): features for the first layer, not differentiated
    layers: Sequence[Layer],
    weights: Tensor,  # (16 taps, in): means of the weights of the last layer
    variances: Tensor,  # (16 taps, in): variances of these weights
    frame: Frame,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the last layer's output without bias, (pixels,) each; and that layer's input."""
    parameters = [tensor for layer in layers for tensor in (layer.planes, layer.weights, layer.bias)]
    outputs: tuple[Tensor, Tensor, Tensor] = _Stack.apply(planes, extra, frame, weights, variances, *parameters)
    return outputs


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
        ctx.frame, ctx.layer_count = frame, len(layers)
        ctx.set_materialize_grads(False)
        return mean, variance, features[-1]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Any, ...]:
        frame: Frame = ctx.frame
        planes, extra, weights, variances, *rest = ctx.saved_tensors
        parameters, features = rest[: 3 * ctx.layer_count], rest[3 * ctx.layer_count :]
        layers = _layers(parameters)
        shape = (frame.images, 1, frame.height, frame.width)
        of_output = [slope.reshape(shape) if slope is not None else weights.new_zeros(shape) for slope in slopes[:2]]
        slope, last_weight_slope, last_variance_slope = last_layer_gradient(
            features[-1], weights, variances, frame.planes(of_output, features[-1].dtype), frame
        )
        if slopes[2] is not None:
            slope += torch.where(features[-1] > 0, slopes[2], 0)
        gradients: list[Tensor | None] = []
        planes_slope = None
        for index in reversed(range(ctx.layer_count)):
            layer = layers[index]
            groups = len(layer.bias)
            inputs = extra if index == 0 else features[index - 1]
            plane_slope = weight_slope = bias_slope = None
            if layer.planes is not None:
                plane_slope, bias_slope = plane_weight_gradient(planes, slope, groups, frame)
            if layer.weights is not None:
                weight_slope, bias_slope = weight_gradient(inputs, slope, groups, frame)
            gradients = [plane_slope, weight_slope, bias_slope, *gradients]
            if index:
                assert layer.weights is not None
                slope = input_gradient(slope, layer.weights.to(slope.dtype), inputs, frame)
            elif ctx.needs_input_grad[0]:
                assert layer.planes is not None
                planes_slope = plane_gradient(slope, layer.planes.to(slope.dtype), groups, frame)
                planes_slope = pad(planes_slope, (0, planes.shape[1] - planes_slope.shape[1]))
        return planes_slope, None, None, last_weight_slope, last_variance_slope, *gradients


def _layers(parameters: Sequence[Tensor | None]) -> list[Layer]:
    """The layers from the flat list of `stack`."""
    layers = []
    for index in range(0, len(parameters), 3):
        planes, weights, bias = parameters[index : index + 3]
        assert bias is not None
        layers.append(Layer(planes, weights, bias))
    return layers
