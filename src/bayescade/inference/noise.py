"""Random numbers of samples: they depend on a seed and on their purpose, not on the device or on the size of batches."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from bayescade.bayes.layers import LastConv
from bayescade.blocks.block import Block
from bayescade.seeds import derived_seed


@functools.lru_cache(maxsize=8)
def sample_normals(size: int, samples: range, seed: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Standard normals, (samples, size): those of a sample depend on the seed, its index and the size only."""
    normals = [torch.randn(size, generator=generator_of(seed, "draw", t)) for t in samples]
    return torch.stack(normals).to(device, dtype)


def weight_noise(blocks: Sequence[Block], samples: range, seed: int, like: Tensor) -> Tensor:
    """Standard normals for all weights of all random layers, (samples, weights)."""
    size = sum(layer.weight.numel() for block in blocks for layer in block.layers)
    return sample_normals(size, samples, seed, like.device, like.dtype)


def by_layer(blocks: Sequence[Block], noise: Tensor) -> list[dict[LastConv, Tensor]]:
    """The noise of every random layer of every block, (samples, channels, 3, 3)."""
    by_block: list[dict[LastConv, Tensor]] = []
    begin = 0
    for block in blocks:
        by_block.append({})
        for layer in block.layers:
            end = begin + layer.weight.numel()
            by_block[-1][layer] = noise[:, begin:end].reshape(-1, *layer.weight.shape[1:])
            begin = end
    return by_block


def activation_noise(
    block: Block, samples: range, first: Tensor, index: int, *names: int | str
) -> dict[LastConv, Tensor]:
    """Standard normals for every pixel of every sample, (samples * batch, 1, height, width) per random layer.

    `index` is that of the first image among all; `names` are the seed and the number of the block.
    """
    seed, number = names
    return {
        layer: torch.cat([image_normals(first, index, seed, "activations", t, number, which) for t in samples])
        for which, layer in enumerate(block.layers)
    }


def image_normals(
    like: Tensor,  # (batch, 1, height, width)
    index: int,  # of the first image among all
    *names: int | str,
) -> Tensor:
    """Standard normals like the images; those of an image depend on the names and its index only."""
    normals = []
    for image in range(index, index + len(like)):
        normals.append(torch.randn((1, *like.shape[1:]), generator=generator_of(*names, image)))
    return torch.cat(normals).to(like.device)


def generator_of(*names: int | str) -> torch.Generator:
    """A generator that depends on the names only."""
    return torch.Generator().manual_seed(derived_seed(*names))
