"""A disc with groups of parallel bars, for tests: no model of ours is trained on it.

A disc has up to 7 groups, which do not overlap. A group has 3, 5, 7 or 9 bars with a random direction. Their period is 2 to 16
pixels at 128 x 128, and a bar is half a period wide. The bars of a group are brighter or darker than the disc. The largest
value becomes 1.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.phantoms._raster import CENTRE_0, ROTATION, Grid, generator, scaled, summed
from bayescade.phantoms._shapes import (
    PIXEL,
    RECTANGLE,
    apart,
    between,
    centres_inside,
    chosen_first,
    disc,
    log_between,
    table_of,
    uniform_blocks,
    where_used,
    whole_between,
)

FEWEST, MOST = 4, 7  # groups per image; fewer when there is no room
CANDIDATES = 60  # groups that are tried
GAP = 2 * PIXEL  # half the smallest distance of two groups
SHORTEST, LONGEST = 2 * PIXEL, 16 * PIXEL  # periods


def paint(
    grid: Grid,
    discs: NDArray[np.float64],  # (images, 1, 6)
    groups: NDArray[np.float64],  # (images, groups, 14)
    periods: NDArray[np.float64],  # (images, groups)
) -> Tensor:
    """The discs with the bars of their groups, scaled to [0, 1]."""
    images = summed(grid, discs)
    for index in range(groups.shape[1]):
        group = groups[:, index : index + 1]
        images += summed(grid, group) * bars(grid, group[:, 0], periods[:, index])
    return scaled(images).to(torch.float32)


def bars(
    grid: Grid,
    group: NDArray[np.float64],  # (images, 14): a rectangle per image
    period: NDArray[np.float64],  # (images)
) -> Tensor:
    """Which points are in bars, (images, height f, width f).

    A bar is half a period wide and runs across the rotation of the group. One bar is around the centre of the group.
    """
    x, y = grid.axes()
    columns = np.concatenate([group[:, CENTRE_0 : ROTATION + 1], period[:, None]], axis=1)[..., None, None]
    centre_0, centre_1, rotation, length = torch.tensor(columns, device=grid.device).unbind(1)
    along_x, along_y = torch.cos(rotation) * (x - centre_0), torch.sin(rotation) * (y - centre_1)
    return torch.remainder(along_x / length + (along_y / length + 0.25), 1) < 0.5


def random_parameters(count: int, *, seed: int, first: int = 0) -> tuple[NDArray[np.float64], ...]:
    """Tables of the discs, (count, 1, 6), tables of the groups, (count, 7, 14), and periods of the groups, (count, 7)."""
    image, u = uniform_blocks(count, (5,), (CANDIDATES, 8), seed=seed, first=first)
    disc_value = between(image[:, 0], 0.3, 0.7)
    discs = disc(image[:, 1:4], disc_value, (0.8, 0.93))
    periods, number = log_between(u[..., 0], SHORTEST, LONGEST), 1 + 2 * whole_between(u[..., 1], 1, 4)
    number = np.where(number * periods > 0.6, 3, number)  # not too wide
    sides = np.stack([(number - 0.5) * periods, between(u[..., 2], 0.15, 0.4)], axis=-1)
    radius = np.linalg.norm(sides, axis=-1) / 2 + GAP
    centre = centres_inside(discs, radius, u[..., 3:5])
    # The value of a group is added to that of the disc; the sum is in [0, 1].
    value = between(u[..., 6], 0.3, 1) * ((u[..., 5] < 0.5) - disc_value[:, None])
    groups = table_of(value, sides / np.sqrt(2), centre, np.pi * u[..., 7], RECTANGLE)
    chosen = apart(centre, radius, whole_between(image[:, 4], FEWEST, MOST))
    groups = chosen_first(where_used(groups, chosen), chosen, MOST)
    return discs, groups, chosen_first(periods[..., None], chosen, MOST)[..., 0]


generate = generator(paint, random_parameters)
