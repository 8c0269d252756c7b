"""Random ellipses, the paper's training and test images.

An image has 5 to 9 ellipses. Each ellipse has value |U - 1/2| E / 2, half-axes E / 2, centre (U - 1/2, U - 1/2) and rotation
2 pi U, where every U is uniform in [0, 1) and every E is exponential with mean 1. The values of the sum of the ellipses are
shifted and scaled to [0, 1].
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.phantoms._raster import normalised, raster, uniforms

FEWEST, MOST = 5, 9  # ellipses per image
PAPER_SEED = 222
PAPER_TRAIN, PAPER_TEST = 4000, 100  # images


def generate(
    count: int,
    shape: tuple[int, int] = (128, 128),
    *,
    seed: int,
    first: int = 0,
    supersample: int = 1,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Images `first` to `first` + `count` - 1 of the endless list of this seed, (count, 1, height f, width f), float32.

    f is `supersample`. An image depends only on the seed and on its index in the list, not on the device or on `count`.
    """
    return images_of(random_tables(count, seed=seed, first=first), shape, supersample, device)


def images_of(
    tables: NDArray[np.float64],
    shape: tuple[int, int] = (128, 128),
    supersample: int = 1,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Normalised images of ellipse tables, float32."""
    return normalised(raster(tables, shape, supersample, device)).to(torch.float32)


def random_tables(count: int, *, seed: int, first: int = 0) -> NDArray[np.float64]:
    """Ellipse tables of the images, (count, 9, 6); unused rows of a table have value 0."""
    u = uniforms(count, 1 + MOST * 7, seed=seed, first=first)
    ellipse_count = FEWEST + np.floor(u[:, :1] * (MOST - FEWEST + 1))
    u = u[:, 1:].reshape(count, MOST, 7)
    value = abs(u[..., 0] - 0.5) * (-0.5 * np.log1p(-u[..., 1]))
    value = np.where(np.arange(MOST) < ellipse_count, value, 0)
    half_axes = -0.5 * np.log1p(-u[..., 2:4])
    return np.concatenate(
        [value[..., None], np.maximum(half_axes, 1e-12), u[..., 4:6] - 0.5, 2 * np.pi * u[..., 6:]], axis=-1
    )


def paper_tables() -> NDArray[np.float64]:
    """Ellipse tables of the paper's 4000 training and 100 test images, (4100, 9, 6).

    They come from numpy's legacy generator with seed 222: first 128 x 128 normal numbers that are not used, then the images,
    one by one.
    """
    rng = np.random.RandomState(PAPER_SEED)
    rng.normal(size=128 * 128)
    tables = np.zeros((PAPER_TRAIN + PAPER_TEST, MOST, 6))
    tables[..., 1:3] = 1
    for table in tables:
        for row in table[: rng.randint(FEWEST, MOST + 1)]:
            value = abs(rng.rand() - 0.5) * rng.exponential(0.5)
            axes = 0.5 * rng.exponential(), 0.5 * rng.exponential()
            row[:] = value, *axes, rng.rand() - 0.5, rng.rand() - 0.5, 2 * np.pi * rng.rand()
    return tables


def paper_train(device: torch.device | str = "cpu") -> Tensor:
    """The paper's 4000 training images, (4000, 1, 128, 128), float32."""
    return images_of(paper_tables()[:PAPER_TRAIN], device=device)


def paper_test(device: torch.device | str = "cpu") -> Tensor:
    """The paper's 100 test images, (100, 1, 128, 128), float32."""
    return images_of(paper_tables()[PAPER_TRAIN:], device=device)
