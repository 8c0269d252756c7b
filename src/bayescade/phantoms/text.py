"""Random ellipses with a word across them: images that no training on ellipses has seen, with known places of the unknown.

Without the word an image is that of the same seed and place on the ellipse list: its clean twin.
"""

import numpy as np
import torch
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from torch import Tensor

from bayescade.phantoms import ellipses

WORD = "Uncertain?"
WIDTH = 1.6  # of the word, where the image is 2 wide
WHITE = 1.0


def generate(
    count: int,
    shape: tuple[int, int] = (128, 128),
    *,
    seed: int,
    first: int = 0,
    supersample: int = 1,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Images `first` to `first` + `count` - 1 of the list named by `seed`, (count, 1, height f, width f), float32."""
    return written(ellipses.generate(count, shape, seed=seed, first=first, supersample=supersample, device=device))


def written(
    images: Tensor,  # (count, 1, height, width)
) -> Tensor:
    """The images with the word across them, in white."""
    mask = letters((images.shape[-2], images.shape[-1])).to(images.device)
    return torch.where(mask, WHITE, images)


def letters(shape: tuple[int, int]) -> Tensor:
    """Where the word is, (height, width): axis 0 is x, along which it is read; axis 1 is y."""
    polygons = TextPath((0, 0), WORD, size=1).to_polygons()
    outlines = [Path(polygon) for polygon in polygons]
    ends = np.concatenate(polygons)
    corners = np.array([ends.min(0), ends.max(0)])
    scale = WIDTH / (corners[1, 0] - corners[0, 0])
    x, y = (np.linspace(-1, 1, size) / scale for size in shape)
    points = np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2) + corners.mean(0)
    crossed = sum(
        outline.contains_points(points).astype(int) for outline in outlines
    )  # twice inside: in a letter's hole
    return torch.from_numpy(crossed % 2 == 1).reshape(shape)
