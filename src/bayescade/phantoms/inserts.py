"""Bodies of soft contrast with small bright inserts and holes.

A body is an ellipse of value 1 with 0 to 2 layers, which are smaller ellipses in it, and 2 to 8 regions inside. Layers and
regions add or subtract 1 to 20 %. Over the body are painted 0 to 4 holes of value 0 and 0 to 6 inserts, which are discs,
ellipses or rectangles of value 2 to 8. Then the largest value becomes 1.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.phantoms._raster import AXIS_0, CENTRE_0, VALUE, Grid, covered, generator, scaled, summed
from bayescade.phantoms._shapes import (
    ELLIPSE,
    RECTANGLE,
    between,
    centres_inside,
    chosen_cuts,
    ellipse_in_circle,
    first_shapes,
    log_between,
    table_of,
    uniform_blocks,
    whole_between,
)

MOST_LAYERS = 2
FEWEST_REGIONS, MOST_REGIONS = 2, 8
MOST_HOLES, MOST_INSERTS = 4, 6


def paint(
    grid: Grid,
    bodies: NDArray[np.float64],  # (images, ellipses, 6)
    holes: NDArray[np.float64],  # (images, holes, 6)
    inserts: NDArray[np.float64],  # (images, inserts, 14)
) -> Tensor:
    """The bodies with holes and inserts painted over them, scaled to [0, 1]."""
    return scaled(covered(grid, covered(grid, summed(grid, bodies), holes), inserts)).to(torch.float32)


def random_parameters(count: int, *, seed: int, first: int = 0) -> tuple[NDArray[np.float64], ...]:
    """Tables of the bodies, (count, 11, 6), of holes, (count, 4, 6), and of inserts, (count, 6, 14)."""
    image, layers, regions, holes, inserts = uniform_blocks(
        count, (9,), (MOST_LAYERS, 3), (MOST_REGIONS, 7), (MOST_HOLES, 5), (MOST_INSERTS, 7), seed=seed, first=first
    )
    body = ellipse_in_circle(image[:, :5], np.ones(count), (0.6, 0.92), 0.6)
    return (
        np.concatenate(
            [
                body,
                first_shapes(random_layers(body, layers), whole_between(image[:, 5], 0, MOST_LAYERS)),
                first_shapes(random_regions(body, regions), whole_between(image[:, 6], FEWEST_REGIONS, MOST_REGIONS)),
            ],
            axis=1,
        ),
        first_shapes(random_holes(body, holes), whole_between(image[:, 7], 0, MOST_HOLES)),
        first_shapes(random_inserts(body, inserts), whole_between(image[:, 8], 0, MOST_INSERTS)),
    )


def random_contrast(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values of 0.01 to 0.2 or -0.2 to -0.01 from numbers (..., 2)."""
    return np.where(u[..., 0] < 0.5, -1, 1) * log_between(u[..., 1], 0.01, 0.2)


def random_layers(body: NDArray[np.float64], u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ellipses, each 3 to 15 % smaller than the one before, the first smaller than the body; numbers (images, layers, 3)."""
    layers = np.repeat(body, u.shape[1], axis=1)
    layers[..., VALUE] = random_contrast(u)
    layers[..., AXIS_0:CENTRE_0] *= np.cumprod(between(u[..., 2:], 0.85, 0.97), axis=1)
    return layers


def random_regions(body: NDArray[np.float64], u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ellipses inside the body, from numbers (images, regions, 7)."""
    half_axes = log_between(u[..., :2], 0.04, 0.35)
    return table_of(
        random_contrast(u[..., 5:7]), half_axes, centres_inside(body, half_axes.max(-1), u[..., 2:4]), np.pi * u[..., 4]
    )


def random_holes(body: NDArray[np.float64], u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ellipses of value 0 inside the body, from numbers (images, holes, 5)."""
    half_axes = log_between(u[..., :2], 0.03, 0.2)
    centre = centres_inside(body, half_axes.max(-1), u[..., 2:4])
    return table_of(np.zeros(u.shape[:2]), half_axes, centre, np.pi * u[..., 4])


def random_inserts(body: NDArray[np.float64], u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Discs, ellipses and rectangles inside the body, from numbers (images, inserts, 7)."""
    half_axes = log_between(u[..., :2], 0.03, 0.12)
    kind = whole_between(u[..., 5], 0, 2)
    half_axes[..., 1] = np.where(kind == 0, half_axes[..., 0], half_axes[..., 1])  # discs
    centre = centres_inside(body, half_axes.max(-1), u[..., 2:4])
    cuts = chosen_cuts(kind, ELLIPSE, ELLIPSE, RECTANGLE)
    return table_of(log_between(u[..., 6], 2, 8), half_axes, centre, np.pi * u[..., 4], cuts)


generate = generator(paint, random_parameters)
