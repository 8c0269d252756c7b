"""A disc with holes, like those of the Helsinki Tomography Challenge 2022, for tests: no model of ours is trained on it.

The disc has value 1 and a radius of 0.6 to 0.85, and is slightly off centre. It has 3 to 15 holes of value 0: circles,
ellipses, rectangles, triangles and slots. They do not overlap each other or the rim.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.phantoms._raster import AXIS_0, Grid, covered, generator, summed
from bayescade.phantoms._shapes import (
    ELLIPSE,
    RECTANGLE,
    SLOT,
    TRIANGLE,
    apart,
    centres_inside,
    chosen_cuts,
    chosen_first,
    disc,
    log_between,
    table_of,
    uniform_blocks,
    where_used,
    whole_between,
)

FEWEST, MOST = 3, 15  # holes per image
CANDIDATES = 60  # holes that are tried
KINDS = (ELLIPSE, ELLIPSE, RECTANGLE, TRIANGLE, SLOT)  # the first are circles
RATIOS = np.array([(1, 1), (0.35, 0.9), (0.3, 1), (0.7, 1), (0.45, 0.8)])  # of the half-axes, smallest and largest
GAP = 0.02  # half the smallest distance of two holes


def paint(grid: Grid, discs: NDArray[np.float64], holes: NDArray[np.float64]) -> Tensor:
    """The discs with their holes."""
    return covered(grid, summed(grid, discs), holes).to(torch.float32)


def random_parameters(count: int, *, seed: int, first: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Tables of the discs, (count, 1, 6), and of the holes, (count, 15, 14)."""
    image, u = uniform_blocks(count, (4,), (CANDIDATES, 6), seed=seed, first=first)
    discs = disc(image[:, :3], np.ones(count), (0.6, 0.85))
    number = whole_between(image[:, 3], FEWEST, MOST)
    kind = whole_between(u[..., 0], 0, len(KINDS) - 1)
    smallest_ratio, largest_ratio = np.moveaxis(RATIOS[kind], -1, 0)
    larger = discs[..., AXIS_0] * 0.6 / np.sqrt(number[:, None]) * log_between(u[..., 1], 0.4, 1)
    half_axes = np.stack([larger, larger * (smallest_ratio + (largest_ratio - smallest_ratio) * u[..., 2])], axis=-1)
    centre = centres_inside(discs, larger + GAP, u[..., 3:5])
    chosen = apart(centre, larger + GAP, number)
    holes = table_of(np.zeros(kind.shape), half_axes, centre, 2 * np.pi * u[..., 5], chosen_cuts(kind, *KINDS))
    return discs, chosen_first(where_used(holes, chosen), chosen, MOST)


generate = generator(paint, random_parameters)
