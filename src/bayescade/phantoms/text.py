"""Random ellipses with a word across them: images that no training on ellipses has seen, with known places of the unknown.

Without the word an image is that of the same seed and place on the ellipse list: its clean twin.
"""

import numpy as np
import torch
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from torch import Tensor

from bayescade.phantoms import ellipses
from bayescade.phantoms._raster import grid_axis

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
    clean = ellipses.generate(count, shape, seed=seed, first=first, supersample=supersample, device=device)
    return written(clean, supersample)


def written(
    images: Tensor,  # (count, 1, height f, width f)
    supersample: int = 1,  # f
) -> Tensor:
    """The images with the word across them, in white."""
    height, width = images.shape[-2] // supersample, images.shape[-1] // supersample
    return torch.where(letters((height, width), supersample).to(images.device), WHITE, images)


def letters(shape: tuple[int, int], supersample: int = 1) -> Tensor:
    """Where the word is, (height f, width f): axis 0 is x, along which it is read; axis 1 is y."""
    polygons = TextPath((0, 0), WORD, size=1).to_polygons()
    outlines = [Path(polygon) for polygon in polygons]
    ends = np.concatenate(polygons)
    corners = np.array([ends.min(0), ends.max(0)])
    scale = WIDTH / (corners[1, 0] - corners[0, 0])
    x, y = (grid_axis(size, max(shape), supersample) / scale for size in shape)
    points = np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2) + corners.mean(0)
    crossed = sum(outline.contains_points(points).astype(int) for outline in outlines)  # 2 in a letter's hole
    return torch.from_numpy(crossed % 2 == 1).reshape(len(x), len(y))
