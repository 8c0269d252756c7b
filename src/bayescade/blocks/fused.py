"""A block computed by the fused kernels: equal to the plain runner up to rounding, many times faster on a GPU.

The kernels need equal numbers of planes in the image branch and in the input branch. The branch with fewer planes is
padded with planes whose weights are zero.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import relu

from bayescade.bayes.gaussian import Gaussian, safe_sqrt
from bayescade.bayes.last_layer import Inputs
from bayescade.bayes.layers import KERNEL, LastConv
from bayescade.blocks.block import Block, Features, State, Variance
from bayescade.blocks.layout import BlockLayers, layers_of
from bayescade.blocks.runner import BlockRunner, StepRunner
from bayescade.blocks.sampling import SampledWeights, Sampling
from bayescade.kernels.frame import Frame
from bayescade.kernels.last_layer import curvature, last_layer, next_image
from bayescade.kernels.stack import Layer, last_layout, run_layers, stack


def fused_prediction(
    block: Block,
    state: State,
    inputs: Tensor,  # (batch, n, height, width)
    noise: Mapping[LastConv, Tensor],  # (batch, 1, height, width) normals per random layer; empty: mean weights
    dtype: torch.dtype,  # of the features: bfloat16, float16, float32, or float64
) -> Gaussian:
    """The same as `plain_prediction`, by the fused kernels; differentiable in the parameters of the block."""
    frame = frame_of(state)
    planes = planes_of(block, state, inputs, frame, dtype)
    (layers,) = layers_of([block])

    def output(layers: Sequence[Layer], extra: Tensor | None, last: LastConv) -> tuple[Tensor, Tensor]:
        """The output of the last layer after these layers, with its noise; and the input of the last layer."""
        weights, variances = last_layout(last.weight)[0], last_layout(last.std() ** 2)[0]
        mean, variance, features = stack(planes, extra, layers, weights, variances, frame)
        out = mean.reshape(state.image.shape) + last.bias
        if last in noise:
            out = out + safe_sqrt(variance.reshape(state.image.shape) + last.jitter) * noise[last]
        return out, features

    out, features = output(layers.trunk, None, block.last)
    image = relu(state.image + block.output_scale * out)
    variance = block.variance
    if variance is None or variance.last is None:
        return Gaussian(image, variance.of(None) if variance is not None else None)
    z, _ = output(layers.body, features.detach() if variance.sees_features else None, variance.last)
    return Gaussian(image, variance.of(z))


@final
class FusedRunner(BlockRunner):
    """A trained block by the fused kernels, without gradients; its weights are converted once for many calls."""

    def __init__(self, block: Block, dtype: torch.dtype):
        self.block = block
        self.dtype = dtype
        # Means and variances of the weights of last layers, in the layout of the kernels.
        self.last_weights: dict[LastConv, tuple[Tensor, Tensor]] = {}
        with torch.no_grad():
            (layers,) = layers_of([block], dtype)
            self.trunk, self.body = layers.trunk, layers.body

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
        """The input of the image's last layer; the posterior of this layer is computed from it."""
        return FusedInputs(features.common, frame_of(state), self.block.last.weight.shape[1])

    @torch.no_grad()
    def at_mean(self, state: State, features: Features) -> tuple[Tensor, tuple[Inputs, Tensor] | None]:
        """The variance with mean weights; and the input of its last layer, with the information about its output.

        The second value is None if the variance has no last layer.
        """
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
        """The weights of a last layer in the layout of the kernels; and whether each sample is used for all images."""
        if isinstance(sampling, SampledWeights) and layer in sampling.weights:
            return sampling.weights[layer], state.shared
        return self._mean_and_variance(layer)[0], True

    def _mean_and_variance(self, layer: LastConv) -> tuple[Tensor, Tensor]:
        if layer not in self.last_weights:
            self.last_weights[layer] = last_layout(layer.weight), last_layout(layer.std() ** 2)
        return self.last_weights[layer]

    def _variance_features(self, variance: Variance, features: Features, frame: Frame) -> Tensor:
        extra = features.common if variance.sees_features else None
        return run_layers(features.planes, extra, self.body, frame)[-1]

    def _moments(self, layer: LastConv, h: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        mean, variance = last_layer(h, *self._mean_and_variance(layer), frame, shared=True)
        return as_images(mean, frame, layer) + layer.bias, as_images(variance, frame, layer) + layer.jitter


@final
@dataclasses.dataclass(frozen=True)
class FeaturesWithOutput(Features):
    """Features, and the output of the last layer with mean weights."""

    output: Tensor  # (batch, 1, height, width)


@final
class FusedStep(StepRunner):
    """A block in training by the fused kernels, with mean weights; differentiable in its parameters, state and inputs.

    The variance is differentiable in its parameters only.
    """

    def __init__(self, block: Block, layers: BlockLayers, dtype: torch.dtype):
        self.block = block
        self.layers = layers
        self.dtype = dtype

    def features(self, state: State, inputs: Tensor) -> Features:
        frame = frame_of(state)
        planes = planes_of(self.block, state, inputs, frame, self.dtype)
        output, common = mean_output(planes, None, self.layers.trunk, self.layers.last, frame)
        return FeaturesWithOutput(planes, common, as_images(output, frame, self.block.last) + self.block.last.bias)

    def image(self, state: State, features: Features, sampling: Sampling) -> Tensor:
        assert isinstance(features, FeaturesWithOutput)
        return relu(state.image + self.block.output_scale * features.output)

    def memory(self, state: State, features: Features) -> Tensor | None:
        if not self.block.memory_channels:
            return None
        channels = frame_of(state).as_images(features.common[0])[:, : self.block.memory_channels]
        return channels.to(state.image.dtype)

    def variance(self, state: State, features: Features, sampling: Sampling) -> Tensor | None:
        variance = self.block.variance
        if variance is None or variance.last is None:
            return variance.of(None) if variance is not None else None
        assert self.layers.variance_last is not None
        frame = frame_of(state)
        extra = features.common.detach() if variance.sees_features else None
        z, _ = mean_output(features.planes.detach(), extra, self.layers.body, self.layers.variance_last, frame)
        return variance.of(as_images(z, frame, variance.last) + variance.last.bias)


def fused_steps(blocks: Sequence[Block], dtype: torch.dtype) -> list[StepRunner]:
    """The runners of all blocks of a cascade for one step of training."""
    return [FusedStep(block, layers, dtype) for block, layers in zip(blocks, layers_of(blocks, dtype), strict=True)]


def mean_output(
    planes: Tensor, extra: Tensor | None, layers: Sequence[Layer], last: Tensor, frame: Frame
) -> tuple[Tensor, Tensor]:
    """The output of the last layer after these layers, without bias and with mean weights, (pixels,); and its input."""
    mean, _, features = stack(planes, extra, layers, last, torch.zeros_like(last), frame)
    return mean, features


@final
@dataclasses.dataclass(frozen=True)
class FusedInputs:
    """The input of a last layer for a batch of images, in the layout of the kernels."""

    features: Tensor  # (1, padded positions, padded channels): see `Frame`
    frame: Frame
    channels: int  # without padding

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
        variances = last_layout(layer.std() ** 2)
        _, variance = last_layer(self.features, variances, variances, self.frame, shared=True)
        return as_images(variance, self.frame, layer) + layer.jitter

    def curvature(
        self,
        weight: Tensor,  # (images, 1, height, width): a factor for every pixel
    ) -> Tensor:
        """For each weight of the layer, the weighted sum of its squared features, (channels, 3, 3) in float64."""
        taps = curvature(self.features, weight, self.frame)[: KERNEL * KERNEL, : self.channels]
        return taps.T.reshape(-1, KERNEL, KERNEL)


def as_images(pixels: Tensor, frame: Frame, layer: LastConv) -> Tensor:
    """The output of a kernel as images, (images, 1, height, width), in the layer's precision."""
    return pixels.to(layer.bias.dtype).reshape(-1, 1, frame.height, frame.width)


def frame_of(state: State) -> Frame:
    """The memory layout of the images of a state."""
    return Frame(len(state.image), state.image.shape[-2], state.image.shape[-1])


def planes_of(block: Block, state: State, inputs: Tensor, frame: Frame, dtype: torch.dtype) -> Tensor:
    """Image and memory, then the scaled inputs, as planes for the kernels.

    The shorter of the two lists of planes is padded, with copies of the image, to the length of the longer list.
    """
    tensors = block.state_planes(state, inputs)
    scales: list[Tensor | None] = [None] * len(tensors)
    missing = inputs.shape[1] - sum(tensor.shape[1] for tensor in tensors)
    copies = state.image.detach().expand(-1, abs(missing), -1, -1)
    if missing > 0:
        tensors, scales = [*tensors, copies], [*scales, None]
    tensors, scales = [*tensors, inputs], [*scales, block.input_scale]
    if missing < 0:
        tensors, scales = [*tensors, copies], [*scales, None]
    return frame.planes(tensors, dtype, scales)
