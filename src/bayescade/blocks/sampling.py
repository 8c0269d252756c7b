"""What is sampled in the random layers of a block: nothing, noise of their outputs, or their weights."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

from torch import Tensor

from bayescade.bayes.layers import LastConv


class Sampling(ABC):
    """How the random layers of a block are applied. A layer that it does not name has its mean weights."""

    @abstractmethod
    def output(
        self,
        layer: LastConv,
        h: Tensor,  # (batch, channels, height, width), with samples in front unless `shared`
        shared: bool,  # all samples share one image
    ) -> Tensor:
        """The layer's output, with samples in front where weights are sampled."""

    def repeat_for_samples(self, x: Tensor, shared: bool) -> Tensor:
        """Repeats a tensor for every sample, if the output of a random layer has one image per sample."""
        return x


@final
class MeanWeights(Sampling):
    """Nothing is sampled: the mean of the weights."""

    def output(self, layer: LastConv, h: Tensor, shared: bool) -> Tensor:
        return layer.mean(h)


@final
class ActivationNoise(Sampling):
    """Noise in the output of each layer, independent in every pixel (the paper)."""

    def __init__(
        self,
        noise: Mapping[LastConv, Tensor],  # (batch, 1, height, width) standard normals
    ):
        self.noise = noise

    def output(self, layer: LastConv, h: Tensor, shared: bool) -> Tensor:
        return layer.activations(h, self.noise[layer]) if layer in self.noise else layer.mean(h)


@final
class SampledWeights(Sampling):
    """Samples of the weights, each used for all pixels and all images; in the layout of the runner that uses them."""

    def __init__(
        self,
        weights: Mapping[LastConv, Tensor],  # (samples, ...)
    ):
        self.weights = weights

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return len(next(iter(self.weights.values())))

    def output(self, layer: LastConv, h: Tensor, shared: bool) -> Tensor:
        if layer not in self.weights:
            return self.repeat_for_samples(layer.mean(h), shared)
        weights = self.weights[layer]
        return layer.conv_shared(h, weights) if shared else layer.conv_per_sample(h, weights)

    def repeat_for_samples(self, x: Tensor, shared: bool) -> Tensor:
        return x.repeat(self.samples, 1, 1, 1) if shared else x
