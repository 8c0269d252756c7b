"""Thin straight lines, thin gaps and dots on a background of random ellipses and rectangles.

The background has 2 to 5 shapes, whose values are added; its largest value becomes 1. Over it are painted 3 to 15 lines, which
are 0.3 to 3 pixels wide at 128 x 128, and 0 to 8 dots. A line or a dot has a random value in [0, 1], so it is brighter or
darker than what it covers. In half of the images everything outside a circle of radius 0.98 is 0.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.phantoms._raster import Grid, covered, generator, inside_circle, scaled, summed
from bayescade.phantoms._shapes import (
    ELLIPSE,
    PIXEL,
    RECTANGLE,
    between,
    chosen_cuts,
    circle_radius,
    first_shapes,
    log_between,
    table_of,
    uniform_blocks,
    whole_between,
)

FEWEST_SHAPES, MOST_SHAPES = 2, 5  # of the background
FEWEST_LINES, MOST_LINES = 3, 15
MOST_DOTS = 8
THINNEST, THICKEST = 0.3 * PIXEL, 3 * PIXEL  # widths of lines


def paint(
    grid: Grid,
    background: NDArray[np.float64],  # (images, shapes, 14)
    lines: NDArray[np.float64],  # (images, lines, 14)
    dots: NDArray[np.float64],  # (images, dots, 6)
    radius: NDArray[np.float64],  # (images)
) -> Tensor:
    """The backgrounds, scaled to [0, 1], with lines and dots over them, inside the circles."""
    images = scaled(inside_circle(grid, summed(grid, background), radius))
    return inside_circle(grid, covered(grid, covered(grid, images, lines), dots), radius).to(torch.float32)


def random_parameters(count: int, *, seed: int, first: int = 0) -> tuple[NDArray[np.float64], ...]:
    """Tables of the background, (count, 5, 14), of lines, (count, 15, 14), and of dots, (count, 8, 6); radii of the circles."""
    image, shapes, lines, dots = uniform_blocks(
        count, (4,), (MOST_SHAPES, 7), (MOST_LINES, 6), (MOST_DOTS, 4), seed=seed, first=first
    )
    return (
        first_shapes(random_background(shapes), whole_between(image[:, 0], FEWEST_SHAPES, MOST_SHAPES)),
        first_shapes(random_lines(lines), whole_between(image[:, 1], FEWEST_LINES, MOST_LINES)),
        first_shapes(random_dots(dots), whole_between(image[:, 2], 0, MOST_DOTS)),
        circle_radius(image[:, 3]),
    )


def random_background(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ellipses and rectangles, the first one large, from numbers (images, shapes, 7)."""
    half_axes, centre = log_between(u[..., :2], 0.15, 0.8), between(u[..., 2:4], -0.6, 0.6)
    half_axes[:, 0], centre[:, 0] = between(u[:, 0, :2], 0.5, 0.9), between(u[:, 0, 2:4], -0.2, 0.2)
    cuts = chosen_cuts(whole_between(u[..., 4], 0, 1), ELLIPSE, RECTANGLE)
    return table_of(between(u[..., 5], 0.1, 1), half_axes, centre, np.pi * u[..., 6], cuts)


def random_lines(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Thin rectangles from numbers (images, lines, 6)."""
    length, width = log_between(u[..., 0], 0.15, 1.6), log_between(u[..., 1], THINNEST, THICKEST)
    half_axes = np.stack([length, width], axis=-1) / np.sqrt(2)  # the sides of the rectangle are sqrt(2) times these
    return table_of(u[..., 2], half_axes, between(u[..., 3:5], -0.6, 0.6), np.pi * u[..., 5], RECTANGLE)


def random_dots(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Small discs from numbers (images, dots, 4)."""
    radius = log_between(u[..., 0], 0.5 * PIXEL, 2.5 * PIXEL)
    return table_of(
        u[..., 1], np.stack([radius, radius], axis=-1), between(u[..., 2:4], -0.65, 0.65), np.zeros(u.shape[:2])
    )


generate = generator(paint, random_parameters)
