"""Random ellipses with a word across them: out-of-distribution images; `letters` gives the pixels of the word.

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
WIDTH = 1.6  # of the word; the longest axis of the image has length 2
WHITE = 1.0  # value of the word's pixels


def generate(
    count: int,
    shape: tuple[int, int] = (128, 128),
    *,
    seed: int,
    first: int = 0,
    supersample: int = 1,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Images `first` to `first` + `count` - 1 of the list of this seed, (count, 1, height f, width f), float32.

    f is `supersample`.
    """
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
    """A mask of the pixels of the word, (height f, width f) bool; the word runs along x, which is axis 0."""
    polygons = TextPath((0, 0), WORD, size=1).to_polygons()
    outlines = [Path(polygon) for polygon in polygons]
    vertices = np.concatenate(polygons)
    corners = np.array([vertices.min(0), vertices.max(0)])
    scale = WIDTH / (corners[1, 0] - corners[0, 0])
    x, y = (grid_axis(size, max(shape), supersample) / scale for size in shape)
    points = np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2) + corners.mean(0)
    # Number of outlines around a point: 1 in a stroke of a letter, 2 in the hole of a letter.
    outlines_around = sum(outline.contains_points(points).astype(int) for outline in outlines)
    return torch.from_numpy(outlines_around % 2 == 1).reshape(len(x), len(y))
