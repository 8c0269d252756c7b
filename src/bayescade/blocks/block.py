"""One block of a cascade: x_{k+1} = relu(x_k + f(x_k, inputs)) (equation 2 of the paper), and the variance of its error.

All convolutions are 3 x 3 with zeros around the image and a ReLU after them, but the last:

    image branch   image and memory channels: 1 + m -> c -> 2c
    input branch   planes of the problem, the gradient first: n -> c -> 2c
    common         4c -> 2c -> c, then the last convolution c -> 1

The memory for the next block is the first m of the c common features.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from bayescade.bayes.gaussian import Gaussian, relu_moments
from bayescade.bayes.last_layer import Inputs, PlainInputs
from bayescade.bayes.layers import KERNEL, LastConv
from bayescade.blocks.convolution import Convolution, ConvStack
from bayescade.blocks.sampling import Sampling
from bayescade.errors import UserError

VARIANCES = ("inputs", "features")


@dataclasses.dataclass(frozen=True)
class BlockSettings:
    """Shape of a block; the defaults are the paper's."""

    channels: int = 16  # c
    memory_channels: int = 0  # m: features that a block passes to the next
    # What the variance network sees: inputs (image and planes; 4 channels, 1 convolution: the paper), or features (also the
    # common features, without gradient; 16 channels, 2 convolutions).
    variance: str = "inputs"

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= 1024:
            raise UserError(f"setting channels: expected a whole number from 1 to 1024, got {self.channels}")
        if not 0 <= self.memory_channels <= self.channels:
            raise UserError(
                f"setting memory_channels: expected 0 to {self.channels} (channels), got {self.memory_channels}"
            )
        if self.variance not in VARIANCES:
            raise UserError(f"setting variance: expected {' or '.join(VARIANCES)}, got '{self.variance}'")


@dataclasses.dataclass(frozen=True)
class State:
    """The input of a block: image and memory."""

    image: Tensor  # (batch, 1, height, width); (samples * batch, ...) with samples in front where `repeated`
    memory: Tensor | None = None  # (like the image, m channels)
    repeated: bool = False  # whether every sample has a different image; else all samples share one

    @property
    def shared(self) -> bool:
        """Whether all samples share one image."""
        return not self.repeated

    def planes(self) -> list[Tensor]:
        """Image and memory, (batch, 1, height, width) each."""
        return [self.image, *(self.memory.split(1, 1) if self.memory is not None else ())]

    def stacked(self) -> Tensor:
        """Image and memory side by side, (batch, 1 + m, height, width)."""
        return self.image if self.memory is None else torch.cat([self.image, self.memory], 1)

    @classmethod
    def unstacked(cls, planes: Tensor) -> "State":
        """The state of `stacked` planes."""
        return cls(planes[:, :1], planes[:, 1:] if planes.shape[1] > 1 else None)


@dataclasses.dataclass(frozen=True)
class Features:
    """The inputs of the last layers of a block, in the layout of the runner that made them."""

    planes: Tensor  # image, memory and scaled inputs, (batch, 1 + m + n, height, width) in plain layout
    common: Tensor  # the common features, (batch, c, height, width) in plain layout


class Variance(nn.Module, ABC):
    """The aleatoric variance of a block's output: a function of z, the output of the variance network.

    z = last(body(inputs)); a variance without a last layer is a constant.
    """

    floor: float = 0.0  # the smallest variance
    sees_features: bool = False  # whether the body sees the common features beside the planes
    body: ConvStack | None
    last: LastConv | None

    @abstractmethod
    def of(self, z: Tensor | None) -> Tensor:
        """The variance, like z, or (1, 1, 1, 1)."""

    @abstractmethod
    def expected_of(self, mean: Tensor | None, variance: Tensor | None) -> Tensor:
        """The mean of the variance for Gaussian z."""

    @abstractmethod
    def variance_and_information(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The variance, and the Fisher information of z, like z."""

    @abstractmethod
    def rescale(self, level: float) -> None:
        """Sets the scale of its standard deviations, where it has one."""

    @abstractmethod
    def start(self, variance: float) -> None:
        """Initialises it to about this variance in every pixel."""

    @abstractmethod
    def zero_weights_of(self, features: Tensor) -> None:
        """Sets to zero the weights of the selected common features, (c,) booleans, if the body sees them."""

    def network_input(self, features: Features) -> Tensor:
        """The input of the body, (batch, planes, height, width)."""
        if not self.sees_features:
            return features.planes
        return torch.cat([features.planes, features.common.detach().to(features.planes.dtype)], 1)

    def last_inputs(self, features: Features) -> Tensor:
        """The input of the last layer, (batch, channels, height, width)."""
        assert self.body is not None
        h: Tensor = self.body(self.network_input(features))
        return h

    def forward(self, features: Features, sampling: Sampling, shared: bool) -> Tensor:
        """The variance, which broadcasts to the images of the samples."""
        if self.last is None:
            return self.of(None)
        z = sampling.output(self.last, self.last_inputs(features), shared)
        return self.of(z.float() if z.dtype == torch.bfloat16 else z)  # a square near zero needs full precision

    def expected(self, features: Features) -> Tensor:
        """Its mean over the weights, which broadcasts to the images."""
        if self.last is None:
            return self.expected_of(None, None)
        h = self.last_inputs(features)
        return self.expected_of(self.last.mean(h), self.last.output_variance(h))

    def at_mean(self, features: Features) -> tuple[Tensor, tuple[Inputs, Tensor] | None]:
        """The variance at the mean weights, and of its last layer, if it has one, inputs and Fisher information."""
        if self.last is None:
            return self.of(None), None
        inputs = PlainInputs(self.last_inputs(features))
        variance, information = self.variance_and_information(inputs.output_mean(self.last))
        return variance, (inputs, information)


@final
class Trunk(nn.Module):
    """The features of a block: a branch for image and memory, one for the planes of the problem, and the common part."""

    def __init__(self, settings: BlockSettings, inputs: int, generator: torch.Generator):
        super().__init__()
        c = settings.channels
        self.image = ConvStack([1 + settings.memory_channels, c, 2 * c], generator)
        self.gradient = ConvStack([inputs, c, 2 * c], generator)
        self.common = ConvStack([4 * c, 2 * c, c], generator)

    def forward(
        self,
        image: Tensor,  # (batch, 1 + m, height, width)
        inputs: Tensor,  # (batch, n, height, width), scaled
    ) -> Tensor:
        """The common features, (batch, c, height, width)."""
        if image.device.type == "cpu" and not torch.is_grad_enabled():
            h = torch.cat([image, inputs], 1).contiguous(memory_format=torch.channels_last)
            for weight, bias, groups in self.joined():
                weight = weight.contiguous(memory_format=torch.channels_last)
                h = conv2d(h, weight, bias, padding=KERNEL // 2, groups=groups).relu_()
        else:
            h = torch.cat([self.image(image), self.gradient(inputs)], 1)
        common: Tensor = self.common(h)
        return common

    def branches(self) -> list[tuple[Convolution, Convolution]]:
        """The convolutions of both branches, pair by pair."""
        return list(zip(self.image.convolutions(), self.gradient.convolutions(), strict=True))

    def joined(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Weight, bias and groups of the branches' convolutions, both branches as one, so that no copy joins their outputs."""
        for one, other in self.branches():
            bias = torch.cat([one.bias, other.bias])
            if one.in_channels == other.in_channels:
                yield torch.cat([one.weight, other.weight]), bias, 2
            else:  # zeros for the inputs of the other branch
                into, out = one.in_channels + other.in_channels, len(one.bias)
                weight = one.weight.new_zeros((len(bias), into, KERNEL, KERNEL))
                weight[:out, : one.in_channels], weight[out:, one.in_channels :] = one.weight, other.weight
                yield weight, bias, 1


@final
class Block(nn.Module):
    """(state, inputs) -> Gaussian around the next image."""

    input_scale: Tensor
    output_scale: Tensor

    def __init__(self, settings: BlockSettings, trunk: Trunk, last: LastConv, variance: Variance | None, inputs: int):
        super().__init__()
        self.memory_channels = settings.memory_channels
        self.trunk = trunk
        self.last = last
        self.variance = variance
        self.register_buffer("input_scale", torch.ones(inputs))  # factor of each plane of the problem
        self.register_buffer("output_scale", torch.ones(()))  # factor of the output of the last layer

    @property
    def layers(self) -> list[LastConv]:
        """The random layers: that of the image, and that of the variance."""
        layers = [self.last, self.variance.last if self.variance is not None else None]
        return [layer for layer in layers if layer is not None and layer.random]

    def kl(self) -> Tensor:
        """Divergence of the random weights from the prior."""
        return sum((layer.kl() for layer in self.layers), start=self.last.weight.new_zeros(()))

    def features(
        self,
        state: State,
        inputs: Tensor,  # (batch, n, height, width): `InverseProblem.inputs`
    ) -> Features:
        """The inputs of the last layers."""
        image, scaled = state.stacked(), inputs * self.input_scale.reshape(-1, 1, 1)
        return Features(torch.cat([image, scaled], 1), self.trunk(image, scaled))

    def next_image(self, state: State, features: Features, sampling: Sampling) -> Tensor:
        """relu(x + output_scale last(h))."""
        out = sampling.output(self.last, features.common, state.shared)
        return relu(sampling.repeat_for_samples(state.image, state.shared) + self.output_scale * out)

    def forward(self, state: State, inputs: Tensor, sampling: Sampling) -> Gaussian:
        """The next image and its variance."""
        features = self.features(state, inputs)
        image = self.next_image(state, features, sampling)
        return Gaussian(image, self.variance(features, sampling, state.shared) if self.variance is not None else None)

    def moments_of(self, x: Tensor, mean: Tensor, variance: Tensor) -> Gaussian:
        """Moments of the next image over the weights of the last layer, from those of its output.

        The last layer is linear in its weights, so x + output is Gaussian in every pixel, with known moments after the ReLU.
        """
        return Gaussian(*relu_moments(x + self.output_scale * mean, self.output_scale**2 * variance))
