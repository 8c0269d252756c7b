"""Sources of the images to scan: a phantom, with the seed of one of the splits, or a file."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from bayescade import phantoms, plugins
from bayescade.data.images import read_images
from bayescade.data.splits import split_seed
from bayescade.errors import UserError
from bayescade.storage.arrays import SUFFIXES
from bayescade.storage.files import suffix


@dataclasses.dataclass(frozen=True)
class Source:
    """A list of images."""

    images: Callable[[int, int, int], Tensor]  # (first, count, supersample f) -> (count, 1, height f, width f)
    count: int | None  # number of images; None: unlimited
    key: dict[str, Any] | None  # for the cache: what determines the images; None: do not cache


def image_source(
    name: str,  # name of a phantom, or path of an image file
    shape: tuple[int, int],
    *,
    seed: int,
    split: str = "test",
    device: torch.device | str = "cpu",
) -> Source:
    """The source with this name: a phantom or a file."""
    if suffix(name) in (*SUFFIXES, ".npy"):
        return file_source(name, shape)
    known = plugins.names(phantoms)
    if name not in known:
        raise UserError(plugins.unknown("phantom", name, [*known, "an image file (.npy, .npz, .h5)"]))
    phantom = plugins.load(phantoms, name)
    phantom_seed = split_seed(seed, split)

    def images(first: int, count: int, supersample: int) -> Tensor:
        generated: Tensor = phantom.generate(
            count, shape, seed=phantom_seed, first=first, supersample=supersample, device=device
        )
        return generated

    key = {"phantom": name, "shape": list(shape), "stream": phantom_seed}
    return Source(images, None, key if name in plugins.our_names(phantoms) else None)


def file_source(path: str, shape: tuple[int, int]) -> Source:
    """The images of a file; with `supersample` f every pixel is split into f x f pixels of the same value."""
    stored = read_images(path, shape)

    def images(first: int, count: int, supersample: int) -> Tensor:
        chosen = stored[first : first + count]
        return interpolate(chosen, scale_factor=supersample, mode="nearest") if supersample > 1 else chosen

    content = hashlib.sha256(stored.numpy().tobytes()).hexdigest()
    return Source(images, len(stored), {"file": content, "shape": list(shape)})
