"""A block computed by the fused kernels: equal to the plain layers up to rounding, many times faster on a GPU.

The kernels need as many planes in the image branch as in the input branch. The smaller one is padded with planes whose weights
are zero.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad, relu

from bayescade.bayes.gaussian import Gaussian, safe_sqrt
from bayescade.bayes.last_layer import Inputs
from bayescade.bayes.layers import KERNEL, LastConv
from bayescade.blocks.block import Block, Features, State, Trunk, Variance
from bayescade.blocks.convolution import Convolution
from bayescade.blocks.runner import BlockRunner
from bayescade.blocks.sampling import SampledWeights, Sampling
from bayescade.kernels.frame import Frame
from bayescade.kernels.last_layer import curvature, last_layer, next_image
from bayescade.kernels.stack import Layer, filled, last_layout, layer_of, run_layers, stack


def fused_prediction(
    block: Block,
    state: State,
    inputs: Tensor,  # (batch, n, height, width)
    noise: Mapping[LastConv, Tensor],  # (batch, 1, height, width) per random layer; empty: the mean of the weights
    dtype: torch.dtype,  # of features: bfloat16, float16, float32, or float64
) -> Gaussian:
    """`plain_prediction` by the fused kernels, differentiable in the parameters of the block."""
    frame = frame_of(state)
    planes = planes_of(block, state, inputs, frame, dtype)

    def output(layers: Sequence[Layer], extra: Tensor | None, last: LastConv) -> tuple[Tensor, Tensor]:
        weights, variances = last_layout(last.weight)[0], last_layout(last.std() ** 2)[0]
        mean, variance, features = stack(planes, extra, layers, weights, variances, frame)
        out = mean.reshape(state.image.shape) + last.bias
        if last in noise:
            out = out + safe_sqrt(variance.reshape(state.image.shape) + last.jitter) * noise[last]
        return out, features

    out, features = output(trunk_layers(block.trunk), None, block.last)
    image = relu(state.image + block.output_scale * out)
    variance = block.variance
    if variance is None or variance.last is None:
        return Gaussian(image, variance.of(None) if variance is not None else None)
    layers = body_layers(block, variance)
    z, _ = output(layers, features if variance.sees_features else None, variance.last)
    return Gaussian(image, variance.of(z))


@final
class FusedRunner(BlockRunner):
    """A trained block computed by the fused kernels, without gradients; its weights are laid out once for many calls."""

    def __init__(self, block: Block, dtype: torch.dtype):
        self.block = block
        self.dtype = dtype
        self.laid_out: dict[LastConv, tuple[Tensor, Tensor]] = {}  # means and variances of the last layers
        variance = block.variance
        with torch.no_grad():
            self.trunk = [prepared(layer, dtype) for layer in trunk_layers(block.trunk)]
            self.body = []
            if variance is not None and variance.last is not None:
                self.body = [prepared(layer, dtype) for layer in body_layers(block, variance)]

    @torch.no_grad()
    def features(self, state: State, inputs: Tensor) -> Features:
        frame = frame_of(state)
        planes = planes_of(self.block, state, inputs, frame, self.dtype)
        return Features(planes, run_layers(planes, None, self.trunk, frame)[-1])

    @torch.no_grad()
    def image(self, state: State, features: Features, sampling: Sampling) -> Tensor:
        last, x = self.block.last, state.image
        weights, shared = self._weights(last, sampling, state)
        frame = frame_of(state)
        out = next_image(features.common, weights, x.contiguous(), self.block.output_scale, last.bias, frame, shared)
        return out.to(x.dtype).reshape(-1, *x.shape[1:])

    @torch.no_grad()
    def memory(self, state: State, features: Features) -> Tensor | None:
        if not self.block.memory_channels:
            return None
        channels = frame_of(state).as_images(features.common[0])[:, : self.block.memory_channels]
        return channels.to(state.image.dtype)

    @torch.no_grad()
    def variance(self, state: State, features: Features, sampling: Sampling) -> Tensor | None:
        variance = self.block.variance
        if variance is None or variance.last is None:
            return variance.of(None) if variance is not None else None
        weights, shared = self._weights(variance.last, sampling, state)
        frame = frame_of(state)
        z, _ = last_layer(self._variance_features(variance, features, frame), weights, None, frame, shared)
        return variance.of(as_images(z, frame, variance.last) + variance.last.bias)

    @torch.no_grad()
    def moments(self, state: State, features: Features) -> tuple[Gaussian, Tensor | None]:
        frame, variance = frame_of(state), self.block.variance
        image = self.block.moments_of(state.image, *self._moments(self.block.last, features.common, frame))
        if variance is None or variance.last is None:
            return image, variance.expected_of(None, None) if variance is not None else None
        h = self._variance_features(variance, features, frame)
        return image, variance.expected_of(*self._moments(variance.last, h, frame))

    def sample_weights(self, noise: Mapping[LastConv, Tensor]) -> dict[LastConv, Tensor]:
        return {layer: last_layout(layer.sample_weights(normals)) for layer, normals in noise.items()}

    def last_inputs(self, state: State, features: Features) -> Inputs:
        """The input of the image's last layer, for its posterior."""
        return FusedInputs(features.common, frame_of(state), self.block.last.weight.shape[1])

    @torch.no_grad()
    def at_mean(self, state: State, features: Features) -> tuple[Tensor, tuple[Inputs, Tensor] | None]:
        """Variance at the mean weights; inputs and Fisher information of its last layer, or None."""
        variance = self.block.variance
        assert variance is not None
        if variance.last is None:
            return variance.of(None), None
        frame = frame_of(state)
        h = self._variance_features(variance, features, frame)
        inputs = FusedInputs(h, frame, variance.last.weight.shape[1])
        value, information = variance.variance_and_information(inputs.output_mean(variance.last))
        return value, (inputs, information)

    def _weights(self, layer: LastConv, sampling: Sampling, state: State) -> tuple[Tensor, bool]:
        """The weights of a last layer in the layout of the kernels, and whether all samples share the images."""
        if isinstance(sampling, SampledWeights) and layer in sampling.weights:
            return sampling.weights[layer], state.shared
        return self._mean_and_variance(layer)[0], True

    def _mean_and_variance(self, layer: LastConv) -> tuple[Tensor, Tensor]:
        if layer not in self.laid_out:
            self.laid_out[layer] = last_layout(layer.weight), last_layout(layer.std() ** 2)
        return self.laid_out[layer]

    def _variance_features(self, variance: Variance, features: Features, frame: Frame) -> Tensor:
        extra = features.common if variance.sees_features else None
        return run_layers(features.planes, extra, self.body, frame)[-1]

    def _moments(self, layer: LastConv, h: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        mean, variance = last_layer(h, *self._mean_and_variance(layer), frame, shared=True)
        return as_images(mean, frame, layer) + layer.bias, as_images(variance, frame, layer) + layer.jitter


@final
@dataclasses.dataclass(frozen=True)
class FusedInputs:
    """The input of a last layer for a batch of images, in the layout of the kernels."""

    features: Tensor  # (1, padded positions, in)
    frame: Frame
    channels: int

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.features.numel() * self.features.element_size()

    def output_mean(self, layer: LastConv) -> Tensor:
        """The layer's output with mean weights, (images, 1, height, width)."""
        mean, _ = last_layer(self.features, last_layout(layer.weight), None, self.frame, shared=True)
        return as_images(mean, self.frame, layer) + layer.bias

    def output_variance(self, layer: LastConv) -> Tensor:
        """The variance of the output, (images, 1, height, width)."""
        laid_out = last_layout(layer.std() ** 2)
        _, variance = last_layer(self.features, laid_out, laid_out, self.frame, shared=True)
        return as_images(variance, self.frame, layer) + layer.jitter

    def curvature(
        self,
        weight: Tensor,  # (images, 1, height, width)
    ) -> Tensor:
        """The weighted sums of squares of the features, (channels, 3, 3) in float64."""
        taps = curvature(self.features, weight, self.frame)[: KERNEL * KERNEL, : self.channels]
        return taps.T.reshape(-1, KERNEL, KERNEL)


def as_images(pixels: Tensor, frame: Frame, layer: LastConv) -> Tensor:
    """The output of a kernel as images, (images, 1, height, width), in the layer's precision."""
    return pixels.to(layer.bias.dtype).reshape(-1, 1, frame.height, frame.width)


def frame_of(state: State) -> Frame:
    """The memory layout of the images of a state."""
    return Frame(len(state.image), state.image.shape[-2], state.image.shape[-1])


def planes_of(block: Block, state: State, inputs: Tensor, frame: Frame, dtype: torch.dtype) -> Tensor:
    """Image and memory, then the scaled inputs, as planes; both are padded to the same number."""
    images, others = state.planes(), list(inputs.split(1, 1))
    scales = list(block.input_scale.split(1))
    number = max(len(images), len(others))
    fill = [images[0]] * (number - len(images)), [images[0]] * (number - len(others))
    unscaled: list[Tensor | None] = [None] * number
    planes = [*images, *fill[0], *others, *fill[1]]
    return frame.planes(planes, dtype, [*unscaled, *scales, *[None] * len(fill[1])])


def prepared(layer: Layer, dtype: torch.dtype) -> Layer:
    """The layer in the precision of the features."""
    planes = layer.planes.to(dtype).contiguous() if layer.planes is not None else None
    weights = layer.weights.to(dtype).contiguous() if layer.weights is not None else None
    return Layer(planes, weights, layer.bias.contiguous())


def trunk_layers(trunk: Trunk) -> list[Layer]:
    """The two branches side by side as groups, then the common part."""
    first, *others = trunk.branches()
    number = max(conv.in_channels for conv in first)
    layers = [layer_of([filled_up(conv.weight, number) for conv in first], None, [conv.bias for conv in first])]
    layers += [layer_of(None, [conv.weight for conv in pair], [conv.bias for conv in pair]) for pair in others]
    joining, *rest = trunk.common.convolutions()
    half = joining.in_channels // 2
    halves = [filled_up(part, filled(half)) for part in joining.weight.split(half, 1)]
    layers.append(layer_of(None, [torch.cat(halves, 1)], [joining.bias]))
    return layers + [plain_layer(conv) for conv in rest]


def body_layers(block: Block, variance: Variance) -> list[Layer]:
    """The variance network before its last layer: the planes, and the common features if it sees them."""
    assert variance.body is not None
    first, *rest = variance.body.convolutions()
    images, inputs = 1 + block.memory_channels, len(block.input_scale)
    planes = first.weight[:, : images + inputs]
    if images != inputs:
        parts = planes[:, :images], planes[:, images:]
        planes = torch.cat([filled_up(part, max(images, inputs)) for part in parts], 1)
    features = [first.weight[:, images + inputs :]] if variance.sees_features else None
    return [layer_of([planes], features, [first.bias]), *(plain_layer(conv) for conv in rest)]


def plain_layer(conv: Convolution) -> Layer:
    """A convolution of features."""
    return layer_of(None, [conv.weight], [conv.bias])


def filled_up(
    weight: Tensor,  # (out, in, 3, 3)
    number: int,
) -> Tensor:
    """The weights with zeros for more inputs, (out, number, 3, 3)."""
    more = number - weight.shape[1]
    return pad(weight, (0, 0, 0, 0, 0, more)) if more else weight
