"""Samples of all weights of a cascade as one tensor: computed once for a seed, and a single input of a CUDA graph."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from bayescade.bayes.layers import LastConv
from bayescade.blocks.runner import BlockRunner
from bayescade.blocks.sampling import MeanWeights, SampledWeights, Sampling
from bayescade.inference.noise import by_layer


@final
class CascadeWeights:
    """Samples of the weights in the layout of the runners; the last call's are cached for the next."""

    def __init__(self, runners: Sequence[BlockRunner]):
        self.runners = runners
        self.last_noise: tuple[Tensor, list[dict[LastConv, Tensor]]] | None = None
        self.last_part: tuple[Tensor, slice, Tensor] | None = None

    def flat(
        self,
        noise: Tensor,  # (samples, weights): `weight_noise`
        part: slice,  # of the samples
    ) -> Tensor:
        """All weights of a part of the samples, layer by layer. Threads may call it at the same time."""
        last = self.last_part
        if last is not None and last[0] is noise and last[1] == part:
            return last[2]
        weights = [weights[part].flatten() for block in self._sampled(noise) for weights in block.values()]
        flat = torch.cat(weights)
        self.last_part = noise, part, flat
        return flat

    def _sampled(self, noise: Tensor) -> list[dict[LastConv, Tensor]]:
        """The weights of all samples, by block and layer."""
        last = self.last_noise
        if last is not None and last[0] is noise:
            return last[1]
        normals = by_layer([runner.block for runner in self.runners], noise)
        sampled = [runner.sample_weights(noises) for runner, noises in zip(self.runners, normals, strict=True)]
        self.last_noise = noise, sampled
        return sampled

    def samplings(self, flat: Tensor) -> list[Sampling]:
        """The weights of `flat` for each block; a block without random layers has its mean weights."""
        assert self.last_noise is not None
        by_block = self.last_noise[1]
        shapes = [weights.shape[1:] for block in by_block for weights in block.values()]
        samples = flat.numel() // sum(shape.numel() for shape in shapes)
        pieces = iter(flat.split([samples * shape.numel() for shape in shapes]))
        samplings: list[Sampling] = []
        for block in by_block:
            weights = {layer: next(pieces).reshape(-1, *stored.shape[1:]) for layer, stored in block.items()}
            samplings.append(SampledWeights(weights) if weights else MeanWeights())
        return samplings
