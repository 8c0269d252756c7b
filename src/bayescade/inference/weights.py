"""Samples of all weights of a cascade as one flat tensor, so that they are one input of a CUDA graph."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from bayescade.bayes.layers import LastConv
from bayescade.blocks.runner import BlockRunner
from bayescade.blocks.sampling import MeanWeights, SampledWeights, Sampling
from bayescade.inference.noise import split_by_layer


@final
class CascadeWeights:
    """Samples of the weights in the layout of the runners. The samples of the last call are cached."""

    def __init__(self, runners: Sequence[BlockRunner]):
        self.runners = runners
        self.last_sampled: tuple[Tensor, list[dict[LastConv, Tensor]]] | None = None  # noise, result of `_sampled`
        self.last_flat: tuple[Tensor, slice, Tensor] | None = None  # noise, selected, result of `flat`

    def flat(
        self,
        noise: Tensor,  # (samples, weights): `weight_noise`
        selected: slice,  # which samples
    ) -> Tensor:
        """All weights of the selected samples, one layer after the other. Threads may call this at the same time."""
        last = self.last_flat
        if last is not None and last[0] is noise and last[1] == selected:
            return last[2]
        flat = torch.cat([weights[selected].flatten() for block in self._sampled(noise) for weights in block.values()])
        self.last_flat = noise, selected, flat
        return flat

    def _sampled(self, noise: Tensor) -> list[dict[LastConv, Tensor]]:
        """The weights of all samples, for every block and random layer."""
        last = self.last_sampled
        if last is not None and last[0] is noise:
            return last[1]
        normals = split_by_layer([runner.block for runner in self.runners], noise)
        sampled = [runner.sample_weights(noises) for runner, noises in zip(self.runners, normals, strict=True)]
        self.last_sampled = noise, sampled
        return sampled

    def samplings(self, flat: Tensor) -> list[Sampling]:
        """Splits the result of `flat`: the weights of each block; a block without random layers gets its mean weights."""
        assert self.last_sampled is not None
        by_block = self.last_sampled[1]
        shapes = [weights.shape[1:] for block in by_block for weights in block.values()]
        samples = flat.numel() // sum(shape.numel() for shape in shapes)
        pieces = iter(flat.split([samples * shape.numel() for shape in shapes]))
        samplings: list[Sampling] = []
        for block in by_block:
            weights = {layer: next(pieces).reshape(-1, *stored.shape[1:]) for layer, stored in block.items()}
            samplings.append(SampledWeights(weights) if weights else MeanWeights())
        return samplings
