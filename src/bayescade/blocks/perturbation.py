"""A block computed by perturbation: from the changes of its features relative to a reference, in bfloat16.

A sample of the weights changes an image by about 1e-4 of its values. In bfloat16, rounding would remove this change
from the sum of value and change; but the change alone has about three digits, whatever its size. Convolutions are
linear. A ReLU whose input is a at the reference changes by

    relu(a + d) - relu(a) = max(d + min(a, 0), -max(a, 0)),    d the change of its input.

So the result is equal to that of the plain runner up to rounding. Some CPUs multiply twice as fast in bfloat16. Images,
projections and last layers are computed in the precision of the images.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import conv2d, relu

from bayescade.bayes.gaussian import Gaussian
from bayescade.bayes.layers import KERNEL, LastConv
from bayescade.blocks.block import Block, Features, State
from bayescade.blocks.convolution import Stack
from bayescade.blocks.runner import BlockRunner, PlainRunner
from bayescade.blocks.sampling import Sampling


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of a convolution; a ReLU follows it."""

    weight: Tensor
    bias: Tensor
    groups: int = 1


def stack_weights(stack: Stack) -> list[Weights]:
    """The weights of the convolutions of a stack."""
    return [Weights(conv.weight, conv.bias) for conv in stack.convolutions()]


@final
class PerturbedStack:
    """Convolutions with a ReLU after each, whose values at reference inputs are stored.

    For other inputs only the change of the output is computed, and added to the stored output.
    """

    def __init__(
        self,
        stack: Sequence[Weights],
        inputs: Tensor,  # (batch, in, height, width): the reference inputs
        dtype: torch.dtype,  # of the changes
    ):
        self.inputs = inputs
        self.dtype = dtype
        self.weights, self.groups = [], []
        self.below, self.above = [], []  # min(a, 0) and -max(a, 0), a the reference input of each ReLU
        h = inputs.contiguous(memory_format=torch.channels_last)
        for layer in stack:
            a = conv2d(h, layer.weight, layer.bias, padding=KERNEL // 2, groups=layer.groups)
            self.weights.append(layer.weight.to(dtype).contiguous(memory_format=torch.channels_last))
            self.groups.append(layer.groups)
            h = relu(a)
            self.below.append(torch.sub(a, h, out=a).to(dtype))
            self.above.append(-h.to(dtype))
        self.output = h  # (batch, out, height, width): at the reference inputs

    def __call__(
        self,
        inputs: Tensor,  # (samples * batch, in, height, width), ordered by sample
    ) -> Tensor:
        """The output, (samples * batch, out, height, width)."""
        change = (inputs.unflatten(0, (-1, len(self.inputs))) - self.inputs).flatten(0, 1)
        change = change.to(self.dtype).contiguous(memory_format=torch.channels_last)
        for weight, groups, below, above in zip(self.weights, self.groups, self.below, self.above, strict=True):
            change = conv2d(change, weight, padding=KERNEL // 2, groups=groups)
            per_sample = change.unflatten(0, (-1, len(below)))
            torch.maximum(per_sample.add_(below), above, out=per_sample)
        return (change.unflatten(0, (-1, len(self.inputs))).to(self.output.dtype) + self.output).flatten(0, 1)


@final
class PerturbationRunner(BlockRunner):
    """A block computed by its changes from a reference: the input of the first call.

    So first run a cascade once with mean weights: this sets the references of all its blocks.
    """

    def __init__(self, block: Block, dtype: torch.dtype = torch.bfloat16):
        self.block = block
        self.dtype = dtype
        self.plain = PlainRunner(block)
        self.trunk: PerturbedStack | None = None
        self.body: PerturbedStack | None = None

    def features(self, state: State, inputs: Tensor) -> Features:
        scaled = inputs * self.block.input_scale.reshape(-1, 1, 1)
        planes = torch.cat([*self.block.state_planes(state, inputs), scaled], 1)
        if self.trunk is None:
            trunk = self.block.trunk.as_branches()
            joined = [Weights(*layer) for layer in trunk.joined()]
            self.trunk = PerturbedStack([*joined, *stack_weights(trunk.common)], planes, self.dtype)
            return Features(planes, self.trunk.output)
        return Features(planes, self.trunk(planes))

    def image(self, state: State, features: Features, sampling: Sampling) -> Tensor:
        return self.plain.image(state, features, sampling)

    def memory(self, state: State, features: Features) -> Tensor | None:
        return self.plain.memory(state, features)

    def variance(self, state: State, features: Features, sampling: Sampling) -> Tensor | None:
        variance = self.block.variance
        if variance is None or variance.last is None:
            return self.plain.variance(state, features, sampling)
        return variance.of(sampling.output(variance.last, self._last_inputs(features), state.shared))

    def moments(self, state: State, features: Features) -> tuple[Gaussian, Tensor | None]:
        last, variance = self.block.last, self.block.variance
        if variance is None or variance.last is None:
            return self.plain.moments(state, features)
        image = self.block.moments_of(state.image, last.mean(features.common), last.output_variance(features.common))
        h = self._last_inputs(features)
        return image, variance.expected_of(variance.last.mean(h), variance.last.output_variance(h))

    def sample_weights(self, noise: Mapping[LastConv, Tensor]) -> dict[LastConv, Tensor]:
        return self.plain.sample_weights(noise)

    def _last_inputs(self, features: Features) -> Tensor:
        """The input of the last layer of the variance network."""
        variance = self.block.variance
        assert variance is not None
        assert variance.body is not None
        body_input = variance.network_input(features)
        if self.body is None:
            self.body = PerturbedStack(stack_weights(variance.body), body_input, self.dtype)
            return self.body.output
        return self.body(body_input)

    @staticmethod
    def bytes_for(block: Block, pixels: int, dtype: torch.dtype = torch.bfloat16) -> int:
        """Approximate size in bytes of the stored reference, for images with `pixels` pixels in total."""
        channels = sum(parameter.shape[0] for parameter in block.trunk.parameters() if parameter.ndim == 4)
        return 2 * channels * pixels * dtype.itemsize
