"""Random convex polygons and rectangles, some of them cut out of the others.

An image has 3 to 9 shapes: polygons with 3 to 8 corners, or rectangles. The values of the shapes are added; those that are
cut out have negative values. Negative sums become 0 and the largest value becomes 1. In half of the images everything outside
a circle of radius 0.98 is 0.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.phantoms._raster import Grid, generator, inside_circle, scaled, summed
from bayescade.phantoms._shapes import (
    RECTANGLE,
    between,
    circle_radius,
    first_shapes,
    log_between,
    padded,
    polygon_cuts,
    table_of,
    uniform_blocks,
    whole_between,
)

FEWEST, MOST = 3, 9  # shapes per image
MOST_CORNERS = 8


def paint(grid: Grid, tables: NDArray[np.float64], radius: NDArray[np.float64]) -> Tensor:
    """Sums of the shapes inside the circles, scaled to [0, 1]."""
    return scaled(inside_circle(grid, summed(grid, tables), radius)).to(torch.float32)


def random_parameters(count: int, *, seed: int, first: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Tables of shapes, (count, 9, 22), and radii of the circles, (count)."""
    image, u, corners = uniform_blocks(count, (2,), (MOST, 9), (MOST, MOST_CORNERS), seed=seed, first=first)
    half_axes, centre = log_between(u[..., :2], 0.08, 0.7), between(u[..., 2:4], -0.75, 0.75)
    half_axes[:, 0], centre[:, 0] = between(u[:, 0, :2], 0.4, 0.85), between(u[:, 0, 2:4], -0.25, 0.25)
    # The centre of shape 0 is never cut out, so that no image is empty.
    distance = np.linalg.norm(centre - centre[:, :1], axis=-1)
    cut_out = (u[..., 4] < 0.5) & (distance > half_axes.max(-1) + 0.05)
    value = np.where(cut_out, -1, between(u[..., 5], 0.2, 1))
    polygons = polygon_cuts(whole_between(u[..., 6], 3, MOST_CORNERS), corners)
    cuts = np.where(u[..., 7, None, None] < 0.35, padded(RECTANGLE, MOST_CORNERS), polygons)
    tables = table_of(value, half_axes, centre, 2 * np.pi * u[..., 8], cuts)
    return first_shapes(tables, whole_between(image[:, 0], FEWEST, MOST)), circle_radius(image[:, 1])


generate = generator(paint, random_parameters)
