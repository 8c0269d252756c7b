"""Convolutions with Gaussian weights: the last layer of a block, and the last layer of its variance network.

A layer is applied in one of four ways: with the mean of its weights; with independent noise in every pixel of its output (local
reparametrisation: for training, and in the paper for inference too); with samples of the weights, each used for all pixels and
all images; or as the mean and variance of its output.
"""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from bayescade.bayes.gaussian import safe_sqrt
from bayescade.bayes.kl import kl_from_standard_normal

KERNEL = 3  # height and width of a convolution in pixels; images are padded with zeros
MEAN_STD = 0.05  # standard deviation of the random initial means
LOG_STD_START, LOG_STD_NOISE = -9.0, 0.05  # mean and standard deviation of the random initial log standard deviations


class LastConv(nn.Module, ABC):
    """A 3 x 3 convolution to one channel, with weights that may be random and a bias that is not."""

    weight: nn.Parameter  # (1, channels, 3, 3): the mean of the weights
    bias: nn.Parameter  # (1,)
    jitter: float = 0.0  # added to the variance of the output: see MeanFieldConv

    @property
    @abstractmethod
    def random(self) -> bool:
        """Whether the weights are random."""

    @abstractmethod
    def std(self) -> Tensor:
        """Standard deviations of the weights, (1, channels, 3, 3)."""

    @abstractmethod
    def kl(self) -> Tensor:
        """Kullback-Leibler divergence of the distribution of the weights from the prior N(0, I)."""

    @abstractmethod
    def output_variance(
        self,
        h: Tensor,  # (batch, channels, height, width)
    ) -> Tensor:
        """Variance of the output in each pixel, (batch, 1, height, width)."""

    def mean(
        self,
        h: Tensor,  # (batch, channels, height, width)
    ) -> Tensor:
        """The output with the mean weights, (batch, 1, height, width)."""
        return conv2d(h, self.weight, self.bias, padding=KERNEL // 2)

    def activations(
        self,
        h: Tensor,  # (batch, channels, height, width)
        noise: Tensor,  # (batch, 1, height, width), standard normal
    ) -> Tensor:
        """Mean output plus noise with the variance of the output, independent in every pixel."""
        return self.mean(h) + safe_sqrt(self.output_variance(h)) * noise

    def sample_weights(
        self,
        noise: Tensor,  # (samples, channels, 3, 3), standard normal
    ) -> Tensor:
        """Samples of the weights, (samples, channels, 3, 3)."""
        return self.weight + self.std() * noise

    def conv_shared_input(
        self,
        h: Tensor,  # (batch, channels, height, width)
        weights: Tensor,  # (samples, channels, 3, 3)
    ) -> Tensor:
        """The output of every image with every sample of the weights, (samples * batch, 1, height, width).

        First come all images of sample 0.
        """
        out = conv2d(h, weights, self.bias.expand(len(weights)), padding=KERNEL // 2)
        return out.transpose(0, 1).flatten(0, 1)[:, None]

    def conv_input_per_sample(
        self,
        h: Tensor,  # (samples * batch, channels, height, width): first all images of sample 0
        weights: Tensor,  # (samples, channels, 3, 3)
    ) -> Tensor:
        """The output for the images of every sample with the weights of this sample, (samples * batch, 1, height, width).

        One matrix product over the channels gives an image for each of the nine taps. The nine images are shifted and added.
        """
        samples, channels = weights.shape[:2]
        height, width = h.shape[-2:]
        taps = weights.flatten(2).transpose(1, 2)  # (samples, 9, channels)
        pixels = h.permute(0, 2, 3, 1).reshape(samples, -1, channels)  # no copy when channels are last in memory
        by_tap = torch.bmm(taps, pixels.transpose(1, 2)).reshape(samples, KERNEL * KERNEL, -1, height, width)
        edge = KERNEL // 2
        by_tap = nn.functional.pad(by_tap, (edge, edge, edge, edge))
        out = self.bias.expand(1)
        for tap in range(KERNEL * KERNEL):
            down, right = divmod(tap, KERNEL)
            out = out + by_tap[:, tap, :, down : down + height, right : right + width]
        return out.flatten(0, 1)[:, None]


@final
class PlainConv(LastConv):
    """Weights that are not random."""

    def __init__(self, channels: int, generator: torch.Generator):
        super().__init__()
        self.weight, self.bias = _initial_mean(channels, generator), nn.Parameter(torch.zeros(1))

    @property
    def random(self) -> bool:
        return False

    def std(self) -> Tensor:
        return torch.zeros_like(self.weight)

    def kl(self) -> Tensor:
        return self.weight.new_zeros(())

    def output_variance(self, h: Tensor) -> Tensor:
        return torch.zeros_like(h[:, :1])


@final
class MeanFieldConv(LastConv):
    """Independent Gaussian weights with prior N(0, 1).

    `jitter` is added to the variance of the output, as in the code of the paper's authors; it is 0 unless the loss is
    `elbo-as-released`. Noise of the outputs then has this variance in every pixel, even if the weights have none; samples of
    the weights have no jitter.
    """

    def __init__(self, channels: int, generator: torch.Generator):
        super().__init__()
        self.weight, self.bias = _initial_mean(channels, generator), nn.Parameter(torch.zeros(1))
        start = torch.full_like(self.weight.data, LOG_STD_START)
        self.log_std = nn.Parameter(start + LOG_STD_NOISE * torch.randn(start.shape, generator=generator))

    @property
    def random(self) -> bool:
        return True

    def std(self) -> Tensor:
        return torch.exp(self.log_std)

    def kl(self) -> Tensor:
        return kl_from_standard_normal(self.weight, self.log_std)

    def output_variance(self, h: Tensor) -> Tensor:
        variance = conv2d(h * h, torch.exp(2 * self.log_std), padding=KERNEL // 2)
        return variance + self.jitter if self.jitter else variance


def _initial_mean(channels: int, generator: torch.Generator) -> nn.Parameter:
    return nn.Parameter(MEAN_STD * torch.randn((1, channels, KERNEL, KERNEL), generator=generator))
