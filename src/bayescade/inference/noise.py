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
    """Standard normals, (samples, size). The numbers of sample t depend on the seed, t and the size only."""
    normals = [torch.randn(size, generator=generator_of(seed, "draw", t)) for t in samples]
    return torch.stack(normals).to(device, dtype)


def weight_noise(blocks: Sequence[Block], samples: range, seed: int, like: Tensor) -> Tensor:
    """Standard normals for all weights of all random layers, (samples, weights)."""
    size = sum(layer.weight.numel() for block in blocks for layer in block.layers)
    return sample_normals(size, samples, seed, like.device, like.dtype)


def split_by_layer(blocks: Sequence[Block], noise: Tensor) -> list[dict[LastConv, Tensor]]:
    """Splits `weight_noise`: for every block, the noise of every random layer, (samples, channels, 3, 3)."""
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
    block: Block,
    samples: range,
    like: Tensor,  # (batch, 1, height, width)
    index: int,  # index of the batch's first image among all images
    seed: int,
    block_index: int,
) -> dict[LastConv, Tensor]:
    """Standard normals for every pixel of every sample, (samples * batch, 1, height, width) per random layer."""
    return {
        layer: torch.cat([image_normals(like, index, seed, "activations", t, block_index, n) for t in samples])
        for n, layer in enumerate(block.layers)
    }


def image_normals(
    like: Tensor,  # (batch, 1, height, width)
    index: int,  # index of the batch's first image among all images
    *names: int | str,  # seed and purpose
) -> Tensor:
    """Standard normals of the shape of `like`. The numbers of an image depend on the names and on its index only."""
    normals = []
    for image_index in range(index, index + len(like)):
        normals.append(torch.randn((1, *like.shape[1:]), generator=generator_of(*names, image_index)))
    return torch.cat(normals).to(like.device)


def generator_of(*names: int | str) -> torch.Generator:
    """A random generator with a seed that is computed from the names."""
    return torch.Generator().manual_seed(derived_seed(*names))
