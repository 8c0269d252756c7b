"""The interface of runners, which compute a trained block, and the plain runner.

The other runners are in `fused` and `perturbation`.
"""

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


class StepRunner(ABC):
    """Computes a block in the recursion of a cascade."""

    block: Block

    @abstractmethod
    def features(
        self,
        state: State,
        inputs: Tensor,  # (batch, n, height, width): `InverseProblem.inputs`
    ) -> Features:
        """The inputs of the last layer and of the variance network."""

    @abstractmethod
    def image(self, state: State, features: Features, sampling: Sampling) -> Tensor:
        """The next image, relu(x + output_scale last(h)), h the common features.

        If weights are sampled: (samples * batch, 1, height, width), ordered by sample.
        """

    @abstractmethod
    def memory(self, state: State, features: Features) -> Tensor | None:
        """The memory for the next block, (batch, m, height, width); None if m = 0."""

    @abstractmethod
    def variance(self, state: State, features: Features, sampling: Sampling) -> Tensor | None:
        """The aleatoric variance of the next image; None if the block has no variance."""


class BlockRunner(StepRunner):
    """Computes a trained block, for many inputs. `testing.check_runner` tests a new runner."""

    @abstractmethod
    def moments(self, state: State, features: Features) -> tuple[Gaussian, Tensor | None]:
        """Mean and (epistemic) variance of the next image over the random weights, in closed form; and the mean of the
        aleatoric variance over the random weights, None if the block has no variance."""

    @abstractmethod
    def sample_weights(
        self,
        noise: Mapping[LastConv, Tensor],  # (samples, channels, 3, 3), standard normal
    ) -> dict[LastConv, Tensor]:
        """Samples of the weights of the random layers, in the memory layout of this runner, for `SampledWeights`."""


@final
class PlainRunner(BlockRunner):
    """Computes a block with its torch layers."""

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
        """The input of the image's last layer; the posterior of this layer is computed from it."""
        return PlainInputs(features.common)

    def at_mean(self, state: State, features: Features) -> tuple[Tensor, tuple[Inputs, Tensor] | None]:
        """The variance with mean weights; and the input of its last layer, with the information about its output.

        The second value is None if the variance has no last layer.
        """
        assert self.block.variance is not None
        return self.block.variance.at_mean(features)


def plain_prediction(
    block: Block,
    state: State,
    inputs: Tensor,  # (batch, n, height, width)
    noise: Mapping[LastConv, Tensor],  # (batch, 1, height, width) normals per random layer; empty: mean weights
    dtype: torch.dtype,  # of the features: the type of the images, or bfloat16
) -> Gaussian:
    """The next image and its variance, with `ActivationNoise`; differentiable in the parameters of the block."""
    sampling = ActivationNoise(noise) if noise else MeanWeights()
    mixed = dtype == torch.bfloat16
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=mixed, cache_enabled=False):
        prediction: Gaussian = block(state, inputs, sampling)
    return prediction
