"""What is sampled in the random layers of a block: nothing, noise that is added to their outputs, or their weights."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

from torch import Tensor

from bayescade.bayes.layers import LastConv


class Sampling(ABC):
    """How the random layers of a block are applied. A layer without noise and without samples uses its mean weights."""

    @abstractmethod
    def output(
        self,
        layer: LastConv,
        h: Tensor,  # (batch, channels, height, width); if not `shared`: (samples * batch, ...), ordered by sample
        shared: bool,  # whether all samples share the same images
    ) -> Tensor:
        """The layer's output; if weights are sampled: (samples * batch, 1, height, width), ordered by sample."""

    def repeat_for_samples(self, x: Tensor, shared: bool) -> Tensor:
        """Repeats x for every sample if weights are sampled and x is shared by all samples; else gives x unchanged."""
        return x


@final
class MeanWeights(Sampling):
    """Nothing is sampled: all layers use their mean weights."""

    def output(self, layer: LastConv, h: Tensor, shared: bool) -> Tensor:
        return layer.mean(h)


@final
class ActivationNoise(Sampling):
    """Noise is added to the output of each random layer, independent in every pixel (the paper)."""

    def __init__(
        self,
        noise: Mapping[LastConv, Tensor],  # (batch, 1, height, width) standard normals
    ):
        self.noise = noise

    def output(self, layer: LastConv, h: Tensor, shared: bool) -> Tensor:
        return layer.activations(h, self.noise[layer]) if layer in self.noise else layer.mean(h)


@final
class SampledWeights(Sampling):
    """Samples of the weights, in the memory layout of the runner; one sample is used for all pixels and all images."""

    def __init__(
        self,
        weights: Mapping[LastConv, Tensor],  # (samples, ...)
    ):
        self.weights = weights

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(next(iter(self.weights.values())))

    def output(self, layer: LastConv, h: Tensor, shared: bool) -> Tensor:
        if layer not in self.weights:
            return self.repeat_for_samples(layer.mean(h), shared)
        weights = self.weights[layer]
        return layer.conv_shared_input(h, weights) if shared else layer.conv_input_per_sample(h, weights)

    def repeat_for_samples(self, x: Tensor, shared: bool) -> Tensor:
        return x.repeat(self.samples, 1, 1, 1) if shared else x
