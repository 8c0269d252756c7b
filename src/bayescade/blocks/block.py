"""One block of a cascade: x_{k+1} = relu(x_k + f(x_k, inputs)), and the variance of the error of x_{k+1}.

The first formula is equation 2 of the paper. All convolutions are 3 x 3 with zero padding. In the block of the paper a ReLU
follows every convolution except the last, and the numbers of channels are:

    image branch   image and memory: 1 + m -> c -> 2c
    input branch   input planes of the problem: n -> c -> 2c
    common         both branches: 4c -> 2c -> c, then the last convolution c -> 1

The n input planes of the problem are `InverseProblem.inputs`; the first of them is the gradient of the data fidelity. The c
outputs before the last convolution are the common features, which the trunk computes: the three branches above (`trunk`), or
convolutions on several image sizes (`pyramid`). The first m of them are the memory for the next block.
"""

import dataclasses
from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from bayescade.bayes.gaussian import Gaussian, relu_moments
from bayescade.bayes.last_layer import Inputs, PlainInputs
from bayescade.bayes.layers import LastConv
from bayescade.blocks.convolution import Stack
from bayescade.blocks.sampling import Sampling
from bayescade.blocks.settings import BlockSettings
from bayescade.blocks.trunk import Trunk

# Smallest variance in units of the expected error. Without it the variance of an empty pixel, whose error is zero, falls and
# falls, and the NLL of the first error there outweighs all others.
LEVELLED_FLOOR = 4e-4


@dataclasses.dataclass(frozen=True)
class State:
    """The input of a block: image and memory."""

    # (batch, 1, height, width). If `per_sample`: (samples * batch, 1, height, width), ordered by sample.
    image: Tensor
    memory: Tensor | None = None  # like the image, but with m channels
    per_sample: bool = False  # whether every sample of the weights has different images; if not, all share the same

    @property
    def shared(self) -> bool:
        """Whether all samples of the weights share the same images."""
        return not self.per_sample

    def planes(self) -> list[Tensor]:
        """Image and memory as a list of planes, (batch, 1, height, width) each."""
        return [self.image, *(self.memory.split(1, 1) if self.memory is not None else ())]

    def stacked(self) -> Tensor:
        """Image and memory, concatenated along the channel axis, (batch, 1 + m, height, width)."""
        return self.image if self.memory is None else torch.cat([self.image, self.memory], 1)

    @classmethod
    def unstacked(
        cls,
        planes: Tensor,  # (batch, 1 + m, height, width)
    ) -> "State":
        """The inverse of `stacked`, for a state that is not `per_sample`."""
        return cls(planes[:, :1], planes[:, 1:] if planes.shape[1] > 1 else None)


@dataclasses.dataclass(frozen=True)
class Features:
    """Inputs of the last layer and of the variance network, in the memory layout of the runner that computed them."""

    planes: Tensor  # image, memory and scaled inputs, (batch, 1 + m + n, height, width) in the plain runner
    common: Tensor  # the common features, (batch, c, height, width) in the plain runner


class Variance(nn.Module, ABC):
    """The aleatoric variance of a block's output: a function of z, the output of the variance network.

    z = last(body(`network_input`)). If `last` is None there is no network: all pixels have the same variance.
    """

    floor: float = 0.0  # lower bound of the variance
    sees_features: bool = False  # whether the common features are inputs of the body, besides the planes
    body: Stack | None  # the variance network before its last layer
    last: LastConv | None  # the last layer of the variance network

    @abstractmethod
    def of(self, z: Tensor | None) -> Tensor:
        """The variance for this z: of the shape of z, or (1, 1, 1, 1) if all pixels have the same variance."""

    @abstractmethod
    def expected_of(self, mean: Tensor | None, variance: Tensor | None) -> Tensor:
        """The expected value of `of(z)` if z is Gaussian with this mean and variance."""

    @abstractmethod
    def variance_and_information(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The variance `of(z)`, and the Fisher information about z in every pixel, of the shape of z."""

    @abstractmethod
    def rescale(self, level: float) -> None:
        """Sets the scale of the predicted standard deviations, if this class has such a scale."""

    @abstractmethod
    def start(self, variance: float) -> None:
        """Sets the parameters so that the predicted variance is about `variance` in every pixel."""

    @abstractmethod
    def zero_weights_of(
        self,
        features: Tensor,  # (c,) booleans: a mask of common features
    ) -> None:
        """If the common features are inputs of the body: sets the weights of the masked features to zero."""

    def network_input(self, features: Features) -> Tensor:
        """The input of the body, (batch, channels, height, width)."""
        if not self.sees_features:
            return features.planes
        return torch.cat([features.planes.to(features.common.dtype), features.common.detach()], 1)

    def last_inputs(self, features: Features) -> Tensor:
        """The input of the last layer, (batch, channels, height, width)."""
        assert self.body is not None
        h: Tensor = self.body(self.network_input(features))
        return h

    def forward(self, features: Features, sampling: Sampling, shared: bool) -> Tensor:
        """The variance; its shape broadcasts to the images of all samples."""
        if self.last is None:
            return self.of(None)
        z = sampling.output(self.last, self.last_inputs(features), shared)
        return self.of(z.float() if z.dtype == torch.bfloat16 else z)  # bfloat16 is too coarse for the square

    def expected(self, features: Features) -> Tensor:
        """The mean of the variance over the random weights; its shape broadcasts to the images."""
        if self.last is None:
            return self.expected_of(None, None)
        h = self.last_inputs(features)
        return self.expected_of(self.last.mean(h), self.last.output_variance(h))

    def at_mean(self, features: Features) -> tuple[Tensor, tuple[Inputs, Tensor] | None]:
        """The variance with mean weights; and the input of its last layer with the Fisher information about z in every pixel.

        The second value is None if the variance has no last layer.
        """
        if self.last is None:
            return self.of(None), None
        inputs = PlainInputs(self.last_inputs(features))
        variance, information = self.variance_and_information(inputs.output_mean(self.last))
        return variance, (inputs, information)


def level_of(
    inputs: Tensor,  # (batch, n, height, width): `InverseProblem.inputs` of a levelled problem
) -> Tensor:
    """The levels of the images, (batch, 1, height, width): the plane after the gradient is their log10."""
    return torch.pow(10, inputs[:, 1:2])


@final
class Block(nn.Module):
    """(state, inputs) -> Gaussian with the next image as its mean."""

    input_scale: Tensor
    output_scale: Tensor

    def __init__(
        self,
        settings: BlockSettings,
        trunk: Trunk,
        last: LastConv,
        variance: Variance | None,
        inputs: int,  # n: number of input planes of the problem
    ):
        super().__init__()
        self.memory_channels = settings.memory_channels
        self.levelled = False  # see `use_levels`
        self.trunk = trunk
        self.last = last
        self.variance = variance
        self.register_buffer("input_scale", torch.ones(inputs))  # factor of each plane of the problem
        self.register_buffer("output_scale", torch.ones(()))  # factor of the output of the last layer

    @property
    def layers(self) -> list[LastConv]:
        """The layers with random weights: the last layer of the image, then the last layer of the variance network."""
        layers = [self.last, self.variance.last if self.variance is not None else None]
        return [layer for layer in layers if layer is not None and layer.random]

    def kl(self) -> Tensor:
        """Kullback-Leibler divergence of the distribution of the random weights from the prior."""
        return sum((layer.kl() for layer in self.layers), start=self.last.weight.new_zeros(()))

    def use_levels(self) -> None:
        """For a levelled problem, see `InverseProblem`."""
        self.levelled = True
        if self.variance is not None:
            self.variance.floor = LEVELLED_FLOOR

    def state_planes(
        self,
        state: State,
        inputs: Tensor,  # (batch, n, height, width): `InverseProblem.inputs`
    ) -> list[Tensor]:
        """What the image branch sees: the image, times its level if there is a plane of levels, and the memory."""
        image, *memory = state.planes()
        return [image * level_of(inputs) if self.levelled else image, *memory]

    def features(
        self,
        state: State,
        inputs: Tensor,  # (batch, n, height, width): `InverseProblem.inputs`
    ) -> Features:
        """The inputs of the last layer and of the variance network."""
        image, scaled = torch.cat(self.state_planes(state, inputs), 1), inputs * self.input_scale.reshape(-1, 1, 1)
        return Features(torch.cat([image, scaled], 1), self.trunk(image, scaled))

    def next_image(self, state: State, features: Features, sampling: Sampling) -> Tensor:
        """relu(x + output_scale last(h)), h the common features."""
        out = sampling.output(self.last, features.common, state.shared)
        return relu(sampling.repeat_for_samples(state.image, state.shared) + self.output_scale * out)

    def forward(self, state: State, inputs: Tensor, sampling: Sampling) -> Gaussian:
        """The next image and its aleatoric variance."""
        features = self.features(state, inputs)
        image = self.next_image(state, features, sampling)
        return Gaussian(image, self.variance(features, sampling, state.shared) if self.variance is not None else None)

    def moments_of(self, x: Tensor, mean: Tensor, variance: Tensor) -> Gaussian:
        """Mean and variance of the next image over the random weights, from those of the last layer's output.

        The last layer is linear in its weights. So x + output is Gaussian in every pixel, and its moments after the
        ReLU are known in closed form.
        """
        return Gaussian(*relu_moments(x + self.output_scale * mean, self.output_scale**2 * variance))
