"""How a block is computed: interface and plain runner. The other runners are `fused` and `perturbation`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.bayes.last_layer import Inputs, PlainInputs
from bayescade.bayes.layers import LastConv
from bayescade.blocks.block import Block, Features, State
from bayescade.blocks.sampling import ActivationNoise, MeanWeights, Sampling


class BlockRunner(ABC):
    """Applies a trained block many times. `testing.check_runner` tests a new runner."""

    block: Block

    @abstractmethod
    def features(
        self,
        state: State,
        inputs: Tensor,  # (batch, n, height, width): `InverseProblem.inputs`
    ) -> Features:
        """The inputs of the last layers."""

    @abstractmethod
    def image(self, state: State, features: Features, sampling: Sampling) -> Tensor:
        """The next image, relu(x + output_scale last(h)), (samples * batch, ...) where weights are sampled."""

    @abstractmethod
    def memory(self, state: State, features: Features) -> Tensor | None:
        """The memory for the next block, (batch, m, height, width)."""

    @abstractmethod
    def variance(self, state: State, features: Features, sampling: Sampling) -> Tensor | None:
        """The aleatoric variance of the next image; None where the block has none."""

    @abstractmethod
    def moments(self, state: State, features: Features) -> tuple[Gaussian, Tensor | None]:
        """Mean and (epistemic) variance of the next image over the random weights, in closed form; and the mean of the
        aleatoric variance."""

    @abstractmethod
    def sample_weights(
        self,
        noise: Mapping[LastConv, Tensor],  # (samples, channels, 3, 3), standard normal
    ) -> dict[LastConv, Tensor]:
        """Samples of the weights of the random layers, in this runner's layout, for `SampledWeights`."""


@final
class PlainRunner(BlockRunner):
    """The torch layers."""

    def __init__(self, block: Block):
        self.block = block

    def features(self, state: State, inputs: Tensor) -> Features:
        return self.block.features(state, inputs)

    def image(self, state: State, features: Features, sampling: Sampling) -> Tensor:
        return self.block.next_image(state, features, sampling)

    def memory(self, state: State, features: Features) -> Tensor | None:
        return features.common[:, : self.block.memory_channels] if self.block.memory_channels else None

    def variance(self, state: State, features: Features, sampling: Sampling) -> Tensor | None:
        variance = self.block.variance
        value: Tensor | None = variance(features, sampling, state.shared) if variance is not None else None
        return value

    def moments(self, state: State, features: Features) -> tuple[Gaussian, Tensor | None]:
        last, variance = self.block.last, self.block.variance
        image = self.block.moments_of(state.image, last.mean(features.common), last.output_variance(features.common))
        return image, variance.expected(features) if variance is not None else None

    def sample_weights(self, noise: Mapping[LastConv, Tensor]) -> dict[LastConv, Tensor]:
        return {layer: layer.sample_weights(normals) for layer, normals in noise.items()}

    def last_inputs(self, state: State, features: Features) -> Inputs:
        """The input of the image's last layer, for its posterior."""
        return PlainInputs(features.common)

    def at_mean(self, state: State, features: Features) -> tuple[Tensor, tuple[Inputs, Tensor] | None]:
        """Variance at the mean weights; inputs and Fisher information of its last layer, or None."""
        assert self.block.variance is not None
        return self.block.variance.at_mean(features)


def plain_prediction(
    block: Block,
    state: State,
    inputs: Tensor,  # (batch, n, height, width)
    noise: Mapping[LastConv, Tensor],  # (batch, 1, height, width) per random layer; empty: the mean of the weights
    dtype: torch.dtype,  # of features: that of the images, or bfloat16
) -> Gaussian:
    """The next image with noise of activations, differentiable in the parameters of the block."""
    sampling = ActivationNoise(noise) if noise else MeanWeights()
    mixed = dtype == torch.bfloat16
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=mixed, cache_enabled=False):
        prediction: Gaussian = block(state, inputs, sampling)
    return prediction
