"""Random ellipses with a word across them: out-of-distribution images, where the unknown pixels are known.

Without the word, an image equals the ellipse image of the same seed and index.
"""

import numpy as np
import torch
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from torch import Tensor

from bayescade.phantoms import ellipses
from bayescade.phantoms._raster import grid_axis

WORD = "Uncertain?"
WIDTH = 1.6  # of the word; the image has width 2
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
    """The pixels of the word, (height f, width f) bool; it is read along x, axis 0."""
    polygons = TextPath((0, 0), WORD, size=1).to_polygons()
    outlines = [Path(polygon) for polygon in polygons]
    ends = np.concatenate(polygons)
    corners = np.array([ends.min(0), ends.max(0)])
    scale = WIDTH / (corners[1, 0] - corners[0, 0])
    x, y = (grid_axis(size, max(shape), supersample) / scale for size in shape)
    points = np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2) + corners.mean(0)
    crossed = sum(outline.contains_points(points).astype(int) for outline in outlines)  # 2 in a letter's hole
    return torch.from_numpy(crossed % 2 == 1).reshape(len(x), len(y))
