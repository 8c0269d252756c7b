"""How much each ray and each view counts in filtered back-projection, where some lines are measured twice.

Of a fan beam the ray at view angle b and fan angle g is measured again at b + pi - 2 g, at fan angle -g. Weights
depend on the scan:

- full: every line is seen twice, from both sides; the weights share it between the two, half and half for a detector
  centred on the axis. A view measured twice (at 0 and at 360 degrees) has half the angle, twice.
- short (at least 180 degrees plus the fan angle): Parker's weights (Parker 1982), so that a line seen twice counts
  once.
- limited (less): lines are missing, and no weight replaces them; lines that are seen twice are shared.

Of a parallel beam only full circles with a displaced detector need weights.
"""

import math

import numpy as np
from numpy.typing import NDArray

from bayescade.physics.geometry import FanBeam, Geometry

FULL_TURN = 2 * math.pi
SLACK = 1e-6  # radians: angles in files are rounded
HOLE = 2.5  # steps between neighbouring views: a larger gap is a hole
EQUAL = 1e-3  # difference of weights of views that is rounding


def is_full_circle(geometry: Geometry) -> bool:
    """Whether the views go all around: no gap between neighbours is larger than 2.5 steps or a quarter turn."""
    if geometry.views < 3:
        return False
    _, gaps = _gaps(geometry)
    return bool(gaps.max() <= min(HOLE * _step(gaps), FULL_TURN / 4))


def scan_kind(geometry: FanBeam) -> str:
    """`full`, `short` (at least 180 degrees plus the fan angle, give or take one step) or `limited`."""
    if geometry.views < 3:
        return "limited"
    if is_full_circle(geometry):
        return "full"
    _, gaps = _gaps(geometry)
    step = _step(gaps)
    arc = FULL_TURN - float(gaps.max()) + step
    return "short" if arc >= math.pi + 2 * float(abs(geometry.fan_angles()).max()) - SLACK else "limited"


def _turned(geometry: Geometry) -> NDArray[np.float64]:
    """The angles in [0, 2 pi), (views,)."""
    turned = np.mod(np.asarray(geometry.angles), FULL_TURN)
    return np.where(turned > FULL_TURN - SLACK, 0.0, turned)


def _gaps(geometry: Geometry) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The views in the order of their angles on the circle, and the gap from each to the next."""
    turned = _turned(geometry)
    order = np.argsort(turned, kind="stable")
    return order, np.diff(turned[order], append=turned[order[0]] + FULL_TURN)


def _step(gaps: NDArray[np.float64]) -> float:
    """The median step between different views, without the largest gap, which may be a hole."""
    steps = np.sort(gaps[gaps > SLACK])
    return float(np.median(steps[:-1] if len(steps) > 1 else steps))


def view_weights(geometry: FanBeam) -> NDArray[np.float64]:
    """c_v: the angle of each view, half the gaps to its two neighbours, (views,).

    The first and the last view are neighbours on the circle. The hole beside an arc was not measured and does not
    count."""
    order, gaps = _gaps(geometry)
    before, after = np.roll(gaps, 1), gaps.copy()
    if scan_kind(geometry) != "full":
        hole = int(gaps.argmax())
        following = (hole + 1) % len(gaps)
        after[hole] = before[hole]
        before[following] = gaps[following]
    weights = np.empty(len(order))
    weights[order] = (before + after) / 2
    return weights


def density_weights(geometry: Geometry) -> NDArray[np.float64] | None:
    """Weights of the views of a parallel beam, with mean 1: half the gaps to the two neighbours, (views,).

    Angles count modulo pi. A gap of more than HOLE steps, and HOLE times as large as the gaps beside it, was not measured:
    beside it a view counts by its other gap. None if the weights of all views are equal.
    """
    turned = np.mod(np.asarray(geometry.angles), math.pi)
    turned = np.where(turned > math.pi - SLACK, 0.0, turned)
    order = np.argsort(turned, kind="stable")
    gaps = np.diff(turned[order], append=turned[order[0]] + math.pi)
    before, after = np.roll(gaps, 1), gaps
    beside = np.maximum(before, np.roll(gaps, -1))
    is_hole = (gaps > HOLE * _step(gaps)) & (gaps > HOLE * beside)
    sides = np.where(is_hole, before, after) + np.where(np.roll(is_hole, 1), after, before)
    weights = np.empty(len(order))
    weights[order] = sides / sides.mean()
    return weights if np.ptp(weights) > EQUAL else None


def arc_position(geometry: FanBeam) -> NDArray[np.float64]:
    """Angle of each view from the start of the arc, the end of the largest gap, (views,)."""
    turned = _turned(geometry)
    order, gaps = _gaps(geometry)
    start = turned[order[(int(gaps.argmax()) + 1) % len(order)]]
    position = np.mod(turned - start, FULL_TURN)
    return np.where(position > FULL_TURN - SLACK, 0.0, position)


def parker_weights(geometry: FanBeam) -> NDArray[np.float64]:
    """w(b, g) of view b from the start of the arc and fan angle g, (views, bins).

    The weights of a line and of the same line from the other side add up to 1.

    For an arc of pi + 2 d: sin^2(pi/4 b / (d + g)) at the start, b < 2 (d + g), the same mirrored at the end, and 1
    between."""
    b = arc_position(geometry)[:, None]
    g = geometry.fan_angles()[None, :]
    d = (float(b.max()) - math.pi) / 2
    tiny = 1e-12
    start = np.sin(math.pi / 4 * np.minimum(b / np.maximum(d + g, tiny), 2)) ** 2
    end = np.sin(math.pi / 4 * np.clip((math.pi + 2 * d - b) / np.maximum(d - g, tiny), 0, 2)) ** 2
    return np.where(b < 2 * (d + g), start, np.where(b > math.pi + 2 * g, end, 1.0))


def shared_weights(geometry: FanBeam) -> NDArray[np.float64]:
    """m / (m + m of the opposite ray), (views, bins): 1 for a line that is seen once.

    The weights of a line and of the same line from the other side add up to 1.

    The twin of (b, g) is (b + pi - 2 g, -g). m is a smooth bump over the arc and over the detector, and 0 outside; on a
    full circle it is a bump over the detector only.
    """
    b, g = arc_position(geometry)[:, None], geometry.fan_angles()[None, :]
    positions = geometry.bin_positions()
    half = geometry.bin_width / 2
    edges = np.arctan2([positions[0] - half, positions[-1] + half], geometry.source_detector)
    weight, twin = _bump(g, *edges), _bump(-g, *edges)
    if scan_kind(geometry) != "full":
        _, gaps = _gaps(geometry)
        half_step, end = _step(gaps) / 2, float(b.max())
        twin_b = np.mod(b + math.pi - 2 * g + half_step, FULL_TURN) - half_step
        weight = weight * _bump(b, -half_step, end + half_step)
        twin = twin * _bump(twin_b, -half_step, end + half_step)
    return np.broadcast_to(weight / (weight + twin), (geometry.views, geometry.bins))


def ray_weights(geometry: FanBeam) -> NDArray[np.float64]:
    """w of every ray, (views, bins): Parker's weights for a short scan, else shared weights."""
    return parker_weights(geometry) if scan_kind(geometry) == "short" else shared_weights(geometry)


def _bump(x: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    return np.maximum(x - low, 0) * np.maximum(high - x, 0)


def displaced_weights(geometry: Geometry) -> NDArray[np.float64]:
    """2 m / (m + m of the mirrored bin), (bins,), for parallel beams all around: 2 for a line that is seen from one
    side only.

    m is a smooth bump over the detector, and 0 outside. For a detector centred on the axis all weights are 1.
    """
    position, half = geometry.bin_positions(), geometry.bin_width / 2
    edges = position[0] - half, position[-1] + half
    weight, twin = _bump(position, *edges), _bump(-position, *edges)
    return 2 * weight / (weight + twin)


def missing_bins(geometry: Geometry) -> tuple[int, int]:
    """Bins to add before the first and after the last, so that the detector reaches as far on both sides of the
    axis."""
    missing = round(2 * geometry.offset / geometry.bin_width)
    return max(missing, 0), max(-missing, 0)
