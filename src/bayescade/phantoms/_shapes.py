"""Random tables of shapes for `bayescade.phantoms._raster`, made from numbers that are uniform in [0, 1)."""

import math

import numpy as np
from numpy.typing import NDArray

from bayescade.phantoms._raster import AXIS_0, CENTRE_0, ROTATION, uniforms

Array = NDArray[np.float64]

PIXEL = 2 / 127  # distance of two pixels at 128 x 128
CIRCLE = 0.95  # radius of the circle in which whole objects lie

# Cuts of an ellipse: directions in radians and distances (`_raster.inside`).
Cuts = tuple[tuple[float, float], ...]
NO_CUT = (0.0, 2.0)  # all points of the ellipse have a distance of at most 1
ELLIPSE: Cuts = ()
RECTANGLE: Cuts = tuple((k * math.pi / 2, math.sqrt(0.5)) for k in range(4))  # sides: sqrt(2) times the half-axes
TRIANGLE: Cuts = tuple((k * math.pi * 2 / 3, 0.5) for k in range(3))  # its corners are on the ellipse
SLOT: Cuts = ((math.pi / 2, 0.6), (-math.pi / 2, 0.6))  # two straight sides and two round ends


def uniform_blocks(count: int, *blocks: tuple[int, ...], seed: int, first: int = 0) -> list[Array]:
    """Numbers uniform in [0, 1): an array (count, *block) per block, of the images `first` to `first` + `count` - 1."""
    sizes = [math.prod(block) for block in blocks]
    numbers = np.split(uniforms(count, sum(sizes), seed=seed, first=first), np.cumsum(sizes)[:-1], axis=1)
    return [part.reshape(count, *block) for part, block in zip(numbers, blocks, strict=True)]


def between(u: Array, low: float, high: float) -> Array:
    """Numbers uniform in [low, high)."""
    return low + (high - low) * u


def log_between(u: Array, low: float, high: float) -> Array:
    """Numbers in [low, high) whose logarithm is uniform."""
    return low * (high / low) ** u


def whole_between(u: Array, low: int, high: int) -> NDArray[np.int64]:
    """Whole numbers from low to high, both included, all with the same probability."""
    return low + np.floor(u * (high - low + 1)).astype(np.int64)


def table_of(
    value: Array,  # (..., shapes)
    half_axes: Array,  # (..., shapes, 2)
    centre: Array,  # (..., shapes, 2)
    rotation: Array,  # (..., shapes), radians
    cuts: Array | Cuts = ELLIPSE,  # (..., shapes, cuts, 2), or (cuts, 2) when all shapes have the same
) -> Array:
    """A table of shapes, (..., shapes, 6 + 2 per cut)."""
    cuts = np.reshape(cuts, (*np.shape(cuts)[:-2], -1))
    cuts = np.broadcast_to(cuts, (*value.shape, cuts.shape[-1]))
    return np.concatenate([value[..., None], half_axes, centre, rotation[..., None], cuts], axis=-1)


def where_used(tables: Array, used: NDArray[np.bool_]) -> Array:
    """The tables with half-axes 0, which means no shape, where `used`, (images, shapes), is false."""
    tables = tables.copy()
    tables[..., AXIS_0:CENTRE_0] *= used[..., None]
    return tables


def first_shapes(tables: Array, number: NDArray[np.int64]) -> Array:
    """The tables with the first `number`, (images), shapes of every image only."""
    return where_used(tables, np.arange(tables.shape[1]) < number[:, None])


def padded(cuts: Cuts, number: int) -> Array:
    """The cuts, followed by cuts that cut nothing, (number, 2)."""
    return np.array([*cuts, *[NO_CUT] * (number - len(cuts))])


def chosen_cuts(kind: NDArray[np.int64], *kinds: Cuts) -> Array:
    """The cuts of the kinds that `kind`, (...), chooses by number, (..., cuts, 2)."""
    return np.stack([padded(cuts, max(map(len, kinds))) for cuts in kinds])[kind]


def polygon_cuts(
    corners: NDArray[np.int64],  # (...): number of corners, at least 3
    u: Array,  # (..., largest number of corners): moves the corners along the ellipse
) -> Array:
    """Cuts of convex polygons with their corners on an ellipse, (..., largest number of corners, 2).

    Corner k of n has the angle 2 pi (k + s) / n on the unit circle, where s is in [-0.3, 0.3). The cut between corners with
    angles p and q has direction (p + q) / 2 and distance cos((q - p) / 2).
    """
    n = corners[..., None]
    k = np.arange(u.shape[-1])
    angle = 2 * np.pi * (k + between(u, -0.3, 0.3)) / n
    following = np.where(k == n - 1, angle[..., :1] + 2 * np.pi, np.roll(angle, -1, axis=-1))
    cuts = np.stack([(angle + following) / 2, np.cos((following - angle) / 2)], axis=-1)
    return np.where((k < n)[..., None], cuts, NO_CUT)


def circle_radius(u: Array) -> Array:
    """Radius of the circle outside of which an image becomes 0: 0.98 in half of the images, infinite in the others."""
    return np.where(u < 0.5, 0.98, np.inf)


def on_disc(u: Array, radius: Array | float) -> Array:
    """Points of a disc around 0 that are uniform in its area, (..., 2), from numbers (..., 2)."""
    length, angle = radius * np.sqrt(u[..., 0]), 2 * np.pi * u[..., 1]
    return np.stack([length * np.cos(angle), length * np.sin(angle)], axis=-1)


def ellipse_in_circle(
    u: Array,  # (images, 5)
    value: Array,  # (images)
    half_axis: tuple[float, float],  # range of the larger half-axis
    ratio: float,  # smallest ratio of the half-axes
) -> Array:
    """A table with one ellipse per image that is inside the circle of radius 0.95, (images, 1, 6)."""
    larger = between(u[:, 0], *half_axis)
    half_axes = np.stack([larger, larger * between(u[:, 1], ratio, 1)], axis=-1)
    centre = on_disc(u[:, 2:4], CIRCLE - larger)
    return table_of(value, half_axes, centre, np.pi * u[:, 4])[:, None]


def centres_inside(
    ellipse: Array,  # (images, 1, 6)
    radius: Array,  # (images, shapes)
    u: Array,  # (images, shapes, 2)
) -> Array:
    """Centres of shapes that lie inside the ellipse, (images, shapes, 2).

    No point of a shape is farther than `radius` from its centre, and `radius` is smaller than both half-axes of the ellipse.
    """
    half_axes = ellipse[..., AXIS_0:CENTRE_0]
    x, y = np.moveaxis(on_disc(u, 1 - radius / half_axes.min(-1)) * half_axes, -1, 0)
    cosine, sine = np.cos(ellipse[..., ROTATION]), np.sin(ellipse[..., ROTATION])
    return ellipse[..., CENTRE_0:ROTATION] + np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1)


def disc(
    u: Array,  # (images, 3)
    value: Array,  # (images)
    radius: tuple[float, float],  # range
) -> Array:
    """A table with one disc per image that is near the centre and inside the circle of radius 0.95, (images, 1, 6)."""
    radii = between(u[:, 0], *radius)
    centre = on_disc(u[:, 1:3], np.minimum(CIRCLE - radii, 0.1))
    return table_of(value, np.stack([radii, radii], axis=-1), centre, np.zeros(len(u)))[:, None]


def apart(
    centre: Array,  # (images, candidates, 2)
    radius: Array,  # (images, candidates)
    number: NDArray[np.int64],  # (images): how many are wanted
) -> NDArray[np.bool_]:
    """Which candidates are chosen, (images, candidates): the first ones whose circles meet no circle chosen before."""
    chosen = np.zeros(radius.shape, dtype=bool)
    for index in range(radius.shape[1]):
        distance = np.linalg.norm(centre[:, :index] - centre[:, index, None], axis=-1)
        meets = chosen[:, :index] & (distance < radius[:, :index] + radius[:, index, None])
        chosen[:, index] = ~meets.any(1) & (chosen.sum(1) < number)
    return chosen


def chosen_first(
    tables: Array,  # (images, candidates, columns)
    chosen: NDArray[np.bool_],  # (images, candidates)
    most: int,
) -> Array:
    """The chosen lines of the tables, followed by lines that were not chosen, (images, most, columns)."""
    order = np.argsort(~chosen, axis=1, kind="stable")[:, :most]
    return np.take_along_axis(tables, order[..., None], axis=1)
