"""One step of a cascade: x_k = relu(x + f(gradient, x)), and how far it may be from the truth.

All convolutions are 3 x 3 with zeros around the image and a ReLU behind them, but the last:

    image branch     x: 1 -> c -> 2c
    gradient branch  g: 1 -> c -> 2c
    common           4c -> 2c -> c, then the last convolution c -> 1
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from bayescade.bayes.gaussian import Gaussian, relu_moments
from bayescade.bayes.last_layer import Inputs
from bayescade.bayes.layers import KERNEL, LastConv
from bayescade.blocks.convolution import Convolution
from bayescade.errors import UserError


@dataclasses.dataclass(frozen=True)
class BlockSettings:
    """Shape of a block; the defaults are the paper's."""

    channels: int = 16  # c
    depth: int = 2  # convolutions of each branch, and of the common part before the last
    variance_channels: int = 4  # of the variance network
    variance_depth: int = 1  # its convolutions before the last
    variance_input: str = (
        "inputs"  # what it sees: inputs (x and g), or features (also the common features, without gradient)
    )
    variance_floor: float = 1e-6  # the least variance, of intensity squared
    jitter: float = (
        0.0  # added to the variance of sampled activations; anything but 0 makes the epistemic map a constant
    )

    def __post_init__(self) -> None:
        for name in ("channels", "depth", "variance_channels", "variance_depth"):
            if not 1 <= getattr(self, name) <= 1024:
                raise UserError(f"setting {name}: expected a whole number from 1 to 1024, got {getattr(self, name)}")
        if self.variance_input not in ("inputs", "features"):
            raise UserError(f"setting variance_input: expected inputs or features, got '{self.variance_input}'")
        for name in ("variance_floor", "jitter"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"setting {name}: expected a number from 0 to 1, got {getattr(self, name)}")


class Draw(ABC):
    """How the random layers of a block are applied; `place` is 0 for the image's layer and 1 for the variance's."""

    @abstractmethod
    def apply(self, layer: LastConv, h: Tensor, place: int) -> Tensor:
        """The layer's output."""

    def spread(self, x: Tensor) -> Tensor:
        """An input of the block beside the layer's output."""
        return x


@final
class MeanDraw(Draw):
    """No chance: the mean of the weights."""

    def apply(self, layer: LastConv, h: Tensor, place: int) -> Tensor:
        return layer.mean(h)


@final
class ActivationDraw(Draw):
    """Noise in the output of each layer, (batch, 1, height, width), one tensor per layer."""

    def __init__(self, noise: Sequence[Tensor]):
        self.noise = noise

    def apply(self, layer: LastConv, h: Tensor, place: int) -> Tensor:
        return layer.activations(h, self.noise[place]) if layer.random else layer.mean(h)


@final
class WeightDraw(Draw):
    """Draws of the weights, (samples, channels, 3, 3) standard normals per layer.

    With `shared` every draw is applied to every image of the batch; else the batch has the samples in front, each with
    its own draw. The output has samples * batch images, samples in front.
    """

    def __init__(self, noise: Sequence[Tensor], shared: bool):
        self.noise = noise
        self.shared = shared

    def apply(self, layer: LastConv, h: Tensor, place: int) -> Tensor:
        if not layer.random:
            return self.spread(layer.mean(h))
        return layer.each(h, self.noise[place]) if self.shared else layer.own(h, self.noise[place])

    def spread(self, x: Tensor) -> Tensor:
        return x.repeat(len(self.noise[0]), 1, 1, 1) if self.shared else x


class Variance(nn.Module, ABC):
    """The variance around a block's output: the aleatoric part."""

    floor: float = 0.0  # the least variance it can give

    @abstractmethod
    def forward(
        self,
        inputs: Tensor,  # (batch, 2, height, width): image and scaled gradient
        h: Tensor,  # (batch, c, height, width): the common features
        draw: Draw,
    ) -> Tensor:
        """The variance, which broadcasts to the images of the draw."""

    @abstractmethod
    def expected(self, inputs: Tensor, h: Tensor) -> Tensor:
        """Its mean over the weights, which broadcasts to the images."""

    @property
    @abstractmethod
    def layers(self) -> list[LastConv]:
        """Its random layers."""

    @abstractmethod
    def rescale(self, level: float) -> None:
        """Sets the scale of its standard deviations, where it has one."""

    @abstractmethod
    def start(self, variance: float) -> None:
        """Makes it give about this variance everywhere."""

    @abstractmethod
    def forget(self, features: Tensor) -> None:
        """Takes away the weight of some of the common features, (c,) booleans, where it sees them."""

    @abstractmethod
    def at_mean(
        self,
        inputs: Tensor,  # (batch, 2, height, width)
        h: Tensor,  # (batch, c, height, width)
    ) -> tuple[Tensor, tuple[Inputs, Tensor] | None]:
        """The variance at the mean weights, and of its random layer, if it has one, the inputs and the Fisher information of
        the output, (batch, 1, height, width)."""


@final
class Trunk(nn.Module):
    """The features of a block: a branch for the image, one for the gradient, and the common part."""

    def __init__(self, settings: BlockSettings, generator: torch.Generator):
        super().__init__()
        c, more = settings.channels, settings.depth - 1
        self.image = convolutions([1, c, *[2 * c] * more], generator)
        self.gradient = convolutions([1, c, *[2 * c] * more], generator)
        joined = 2 * (2 * c if more else c)
        self.common = convolutions([joined, *[2 * c] * more, c], generator)

    def forward(self, x: Tensor, gradient: Tensor) -> Tensor:
        if x.device.type == "cpu" and not torch.is_grad_enabled():
            return self.common(self.branches(torch.cat([x, gradient], 1)))
        return self.common(torch.cat([self.image(x), self.gradient(gradient)], 1))

    def branches(self, inputs: Tensor) -> Tensor:
        """Both branches as one: convolutions in two groups, whose outputs lie side by side without a copy."""
        h = inputs.contiguous(memory_format=torch.channels_last)
        for weight, bias in self.joined():
            weight = weight.contiguous(memory_format=torch.channels_last)
            h = conv2d(h, weight, bias, padding=KERNEL // 2, groups=2).relu_()
        return h

    def joined(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Weight and bias of the branches' convolutions, both branches as one in two groups."""
        for one, other in zip(self.image, self.gradient, strict=True):
            if isinstance(one, nn.Conv2d) and isinstance(other, nn.Conv2d):
                weight, bias = (torch.cat([getattr(one, name), getattr(other, name)]) for name in ("weight", "bias"))
                yield weight, bias


def convolutions(channels: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Convolutions with a ReLU behind each, from channels to channels."""
    layers: list[nn.Module] = []
    for into, out in pairwise(channels):
        conv = Convolution(into, out, KERNEL)
        bound = (into * KERNEL * KERNEL) ** -0.5  # as torch does by default
        nn.init.uniform_(conv.weight, -bound, bound, generator=generator)
        assert conv.bias is not None
        nn.init.uniform_(conv.bias, -bound, bound, generator=generator)
        layers += [conv, nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def channels_last(module: nn.Module) -> None:
    """Lays out the weights so that convolutions work with the channels of a pixel side by side, which is faster."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@final
class Block(nn.Module):
    """(image, gradient) -> Gaussian around the next image."""

    gradient_scale: Tensor
    output_scale: Tensor

    def __init__(self, trunk: Trunk, last: LastConv, variance: Variance | None):
        super().__init__()
        self.trunk = trunk
        self.last = last
        self.variance = variance
        self.register_buffer("gradient_scale", torch.ones(()))  # the gradient is multiplied by it
        self.register_buffer("output_scale", torch.ones(()))  # and so is the output of the last layer

    @property
    def layers(self) -> list[LastConv]:
        """The random layers, in the order in which draws count them."""
        found = [self.last, *(self.variance.layers if self.variance is not None else [])]
        return [layer for layer in found if layer.random]

    def kl(self) -> Tensor:
        """Divergence of the random weights from the prior."""
        return sum((layer.kl() for layer in self.layers), start=self.last.weight.new_zeros(()))

    def forward(
        self,
        x: Tensor,  # (batch, 1, height, width)
        gradient: Tensor,  # (batch, 1, height, width), of the data fidelity for an operator of norm 1
        draw: Draw,
    ) -> Gaussian:
        """The next image and its variance, for a draw of the random layers."""
        inputs, h = self.features(x, gradient)
        mean = self.image_of(x, h, draw)
        return Gaussian(mean, self.variance(inputs, h, draw) if self.variance is not None else None)

    def image(self, x: Tensor, gradient: Tensor, draw: Draw) -> Tensor:
        """The next image alone, which is all that the next block needs."""
        return self.image_of(x, self.features(x, gradient)[1], draw)

    def image_of(self, x: Tensor, h: Tensor, draw: Draw) -> Tensor:
        """The next image from the common features."""
        return relu(draw.spread(x) + self.output_scale * draw.apply(self.last, h, 0))

    def features(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs side by side, (batch, 2, height, width), and the common features."""
        scaled = gradient * self.gradient_scale
        return torch.cat([x, scaled], 1), self.trunk(x, scaled)

    def moments(self, x: Tensor, gradient: Tensor) -> tuple[Gaussian, Tensor | None]:
        """Moments of the output over all weights of this block, given its input, in closed form.

        The Gaussian has the mean and the (epistemic) variance of the next image; beside it the mean of the aleatoric
        variance. The last layer is linear in its weights, so x + output is Gaussian in every pixel; its moments behind the
        ReLU are known.
        """
        inputs, h = self.features(x, gradient)
        image = self.moments_of(x, self.last.mean(h), self.last.output_variance(h))
        return image, self.variance.expected(inputs, h) if self.variance is not None else None

    def moments_of(self, x: Tensor, mean: Tensor, variance: Tensor) -> Gaussian:
        """Moments of the next image from those of the last layer's output."""
        return Gaussian(*relu_moments(x + self.output_scale * mean, self.output_scale**2 * variance))
