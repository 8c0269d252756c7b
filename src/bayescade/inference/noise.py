"""The chance behind samples: numbers that depend on a seed and on what they are for, not on devices or on how work is cut."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from bayescade.blocks.block import Block
from bayescade.seeds import derived_seed


@functools.lru_cache(maxsize=8)
def normal_rows(size: int, draws: range, seed: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Standard normals, (draws, size): a row depends on the seed, its draw and the size only."""
    rows = [torch.randn(size, generator=generator_of(seed, "draw", t)) for t in draws]
    return torch.stack(rows).to(device, dtype)


def weight_noise(blocks: Sequence[Block], draws: range, seed: int, like: Tensor) -> Tensor:
    """Standard normals for all weights of all random layers, (samples, weights)."""
    size = sum(layer.weight.numel() for block in blocks for layer in block.layers)
    return normal_rows(size, draws, seed, like.device, like.dtype)


def by_layer(blocks: Sequence[Block], noise: Tensor) -> list[list[Tensor]]:
    """The same for every random layer of every block, (samples, channels, 3, 3) each."""
    found, begin = [], 0
    for block in blocks:
        own = []
        for layer in block.layers:
            own.append(noise[:, begin : begin + layer.weight.numel()].reshape(-1, *layer.weight.shape[1:]))
            begin += layer.weight.numel()
        found.append(own)
    return found


def activation_noise(block: Block, number: int, draws: range, seed: int, place: int, first: Tensor) -> list[Tensor]:
    """Standard normals for every pixel of every sample, (samples * batch, 1, height, width) per random layer."""
    return [
        torch.cat([normals(first, place, seed, "activations", t, number, layer) for t in draws])
        for layer in range(len(block.layers))
    ]


def normals(like: Tensor, place: int, *names: int | str) -> Tensor:
    """Standard normals like the images; those of an image depend on the names and its place only."""
    drawn = []
    for image in range(place, place + len(like)):
        drawn.append(torch.randn((1, *like.shape[1:]), generator=generator_of(*names, image)))
    return torch.cat(drawn).to(like.device)


def generator_of(*names: int | str) -> torch.Generator:
    """Chance that depends on the names only."""
    return torch.Generator().manual_seed(derived_seed(*names))
