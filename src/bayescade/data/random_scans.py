"""Random geometries: the scans that a model for any scan is trained on. Lengths are in pixels.

| what | distribution |
|---|---|
| beam | parallel, or a flat fan with `fan_share`; source 2 to 10 half-diagonals from the centre, log-uniform |
| views | `least_views` to `most_views`, log-uniform |
| arc | with `full_share` 360 degrees, or 180 (fan: plus the fan angle); else `least_arc` to 180 (fan: to 360), uniform |
| start | any |
| steps | equal; with `unequal_share` each angle is moved by up to 40 % of a step |
| rays | 0.6 to 1.6 pixels apart at the centre, log-uniform |
| detector | with `circle_share` it covers the inscribed circle of the image, otherwise its corners too; 0 to 10 % wider |
| offset | with `offset_share` up to 10 % of the detector; the detector grows, so that it covers as much |

Not in this distribution, and so tests of what is outside: golden angles, several arcs, fewer than `least_views` or more than
`most_views`, arcs below `least_arc`, sources nearer than 2 half-diagonals, rays further apart than 1.6 pixels.
"""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from bayescade.errors import UserError
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.physics.redundancy import is_full_circle
from bayescade.projectors.any_scan import in_pixels
from bayescade.seeds import derived_seed, log_uniform

LEAST_SOURCE, MOST_SOURCE = 2.0, 10.0  # distance of the source from the centre, in half-diagonals
MOST_MAGNIFICATION = 3.0  # SDD / SOD
LEAST_SPACING, MOST_SPACING = 0.6, 1.6  # of the rays at the centre, in pixels
MOST_WIDER, MOST_OFFSET, MOST_JITTER = 0.1, 0.1, 0.4
ROUNDING = 1e-6  # relative, of lengths and steps that are compared with a limit
SEARCH_STEPS = 80  # of a ternary search


@dataclasses.dataclass(frozen=True)
class RandomScans:
    """Settings of the distribution of geometries."""

    least_views: int = 8
    most_views: int = 360
    least_arc: float = 60.0  # degrees
    full_share: float = 0.5  # of full arcs
    fan_share: float = 0.4  # of fan beams
    unequal_share: float = 0.15
    circle_share: float = 0.5
    offset_share: float = 0.3

    def __post_init__(self) -> None:
        if not 1 <= self.least_views <= self.most_views <= 100_000:
            raise UserError(
                f"setting most_views: expected at least least_views, got {self.least_views} and {self.most_views}"
            )
        if not 1 <= self.least_arc <= 180:
            raise UserError(f"setting least_arc: expected 1 to 180 degrees, got {self.least_arc}")
        for name in ("full_share", "fan_share", "unequal_share", "circle_share", "offset_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"setting {name}: expected a number from 0 to 1, got {getattr(self, name)}")


def random_geometry(
    settings: RandomScans,
    shape: tuple[int, int],  # of the image
    seed: int,
    index: int,
) -> Geometry:
    """The geometry with this index; it depends on the seed and on the index only."""
    rng = np.random.default_rng(derived_seed(seed, "geometry", index))
    u = rng.random(12).tolist()
    is_fan = u[0] < settings.fan_share
    circle, diagonal = min(shape) / 2, math.hypot(*shape) / 2
    reach = (circle if u[1] < settings.circle_share else diagonal) * (1 + MOST_WIDER * u[2])
    source = diagonal * log_uniform(LEAST_SOURCE, MOST_SOURCE, u[3])
    half_fan = math.asin(min(reach / source, 0.99)) if is_fan else 0.0
    views = round(log_uniform(settings.least_views, settings.most_views, u[4]))
    if u[5] < settings.full_share:
        arc = math.pi + 2 * half_fan if u[6] < 0.5 else 2 * math.pi
    else:
        least = math.radians(settings.least_arc)
        arc = least + u[6] * ((2 * math.pi if is_fan else math.pi) - least)
    angles = 2 * math.pi * u[7] + arc / views * np.arange(views)
    if u[8] < settings.unequal_share:
        angles = angles + MOST_JITTER * arc / views * (2 * rng.random(views) - 1)
    spacing = log_uniform(LEAST_SPACING, MOST_SPACING, u[9])
    angle_list = tuple(angles.tolist())
    if not is_fan:
        bins, offset = bins_and_offset(2 * reach / spacing, settings, u[10], u[11])
        return ParallelBeam(angle_list, bins, spacing, offset * spacing, image_shape=shape)
    magnification = 1 + (MOST_MAGNIFICATION - 1) * rng.random()
    width = spacing * magnification
    flat_reach = source * magnification * math.tan(half_fan)
    bins, offset = bins_and_offset(2 * flat_reach / width, settings, u[10], u[11])
    return FanBeam(
        angle_list,
        bins,
        width,
        offset * width,
        image_shape=shape,
        source_origin=source,
        source_detector=source * magnification,
    )


def bins_and_offset(
    width: float,  # of the detector, in bins
    settings: RandomScans,
    chance: float,
    amount: float,  # both in [0, 1)
) -> tuple[int, float]:
    """The number of bins and the offset in bins."""
    offset = (2 * amount - 1) * MOST_OFFSET * width if chance < settings.offset_share else 0.0
    return math.ceil(width + 2 * abs(offset)), offset


def radius_seen(geometry: Geometry) -> float:
    """The radius of the circle around the centre that every view sees whole, in the units of the geometry."""
    ends = geometry.ray_distances()[[0, -1]] + geometry.ray_spacing / 2
    return float(ends.min())


def radius_measured(
    geometry: Geometry,
    border: int,  # bins at each end of the detector that are not used
) -> float:
    """The radius of the circle whose lines are all measured: all around, the further end of a displaced detector counts."""
    ends = geometry.ray_distances()[[border, -1 - border]] + geometry.ray_spacing / 2
    return float(ends.max() if is_full_circle(geometry) else ends.min())


def is_in_support(geometry: Geometry, settings: RandomScans) -> bool:
    """Whether `random_geometry` can give this geometry, apart from rounding.

    The size of the image does not matter. The shares of the settings are not looked at: each is taken to be neither 0 nor 1.
    """
    scan = in_pixels(geometry)
    if not settings.least_views <= scan.views <= settings.most_views:
        return False
    if not within(scan.ray_spacing, LEAST_SPACING, MOST_SPACING):
        return False
    return source_is_in_support(scan) and detector_is_in_support(scan) and angles_are_in_support(scan, settings)


def within(value: float, least: float, most: float) -> bool:
    """Whether least <= value <= most, apart from rounding."""
    return least * (1 - ROUNDING) <= value <= most * (1 + ROUNDING)


def source_is_in_support(scan: Geometry) -> bool:
    """Whether a fan has its source and its detector at distances that occur; True for a parallel beam."""
    if not isinstance(scan, FanBeam):
        return True
    distance = scan.source_origin / (math.hypot(*scan.image_shape) / 2)
    return within(distance, LEAST_SOURCE, MOST_SOURCE) and within(
        scan.source_detector / scan.source_origin, 1, MOST_MAGNIFICATION
    )


def detector_is_in_support(scan: Geometry) -> bool:
    """Whether the detector covers the circle or the corners of the image, and its offset is not too large."""
    offset = abs(scan.offset) / scan.bin_width
    if offset > MOST_OFFSET * (scan.bins - 2 * offset) * (1 + ROUNDING):
        return False
    reach = radius_seen(scan)
    bases = min(scan.image_shape) / 2, math.hypot(*scan.image_shape) / 2
    # The number of bins is rounded up, so a detector may be wider by a bin.
    return any(within(reach, base, base * (1 + MOST_WIDER) + scan.ray_spacing) for base in bases)


def angles_are_in_support(scan: Geometry, settings: RandomScans) -> bool:
    """Whether some equal steps over an arc that occurs are nowhere further from the angles than `MOST_JITTER` steps."""
    angles = along_arc(scan)
    full = 2 * math.pi / scan.views
    longest = full if isinstance(scan, FanBeam) else full / 2
    shortest = math.radians(settings.least_arc) / scan.views * (1 - ROUNDING)
    return min(excess(angles, full, full), excess(angles, shortest, longest * (1 + ROUNDING))) <= ROUNDING * full


def along_arc(scan: Geometry) -> NDArray[np.float64]:
    """The angles in their order along the arc, (views,), radians.

    This is the order of the scan if it goes around once at most; otherwise the order from the end of the largest gap.
    """
    angles = np.asarray(scan.angles)
    if bool((np.diff(angles) > 0).all()) and angles[-1] - angles[0] < 2 * math.pi:
        return angles
    turned = np.sort(np.mod(angles, 2 * math.pi))
    first = int(np.argmax(np.diff(turned, prepend=turned[-1] - 2 * math.pi)))
    return np.concatenate([turned[first:], turned[:first] + 2 * math.pi])


def excess(
    angles: NDArray[np.float64],  # (views,), increasing
    shortest: float,
    longest: float,
) -> float:
    """The least, over steps s between two limits, of max_i |angle_i - start - i s| - MOST_JITTER s, with the best start.

    It is at most 0 if the angles are such steps with a jitter that occurs. The function of s is convex: a ternary search.
    """

    def at(step: float) -> float:
        return float(np.ptp(angles - step * np.arange(len(angles)))) / 2 - MOST_JITTER * step

    for _ in range(SEARCH_STEPS if longest > shortest else 0):
        third = (longest - shortest) / 3
        if at(shortest + third) < at(longest - third):
            longest -= third
        else:
            shortest += third
    return at((shortest + longest) / 2)
