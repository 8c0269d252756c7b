"""The rows of `bayescade benchmark any`: scans and objects on which a model for any scan is compared with total variation.

Groups: `full` (full arcs, from 16 views on), `arc` (arcs of at least 90 degrees, together), `few` (fewer views or degrees).

A row is `outside` if a training on `RandomScans` never has its geometry; otherwise its geometry is one that a training may
have. Objects are held out if no training has them. Lengths are in pixels. Unless the name of a row says otherwise: 128 x 128
pixels, parallel beams, rays as in the paper's cases (0.99 apart), a detector that covers the corners, 1 % Gaussian noise.

The same sampling as 32 views of 128 x 128 pixels has, at n x n pixels, n / 4 views and rays at the same distance in pixels; as
a fan it has twice the views over 360 degrees, because a full circle measures every line twice.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bayescade.data.noise import Noise, common_noise
from bayescade.data.random_scans import RandomScans, random_geometry
from bayescade.physics.cases import case_geometry
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.seeds import derived_seed

FULL, ARC, FEW = GROUPS = ("full", "arc", "few")
ELLIPSES, PATIENTS = "ellipses", "patients"
TRAINED = (ELLIPSES, "polygons", "textured", "lines", "inserts")
HELD_OUT = ("text", "bars", "random-shepp-logan", "discs-with-holes", PATIENTS)
SIZE = 128  # pixels per axis, unless a row says otherwise
HALF_DIAGONAL = SIZE / math.sqrt(2)
SPACING = case_geometry("sparse-32", SIZE).bin_width
GOLDEN_DEGREES = 180 * (math.sqrt(5) - 1) / 2
# The largest line integral of an ellipse image is 71 pixels, the mean of 200 validation images: an attenuation of 3.
PHOTONS, ATTENUATION = 1e4, 3 / 71
REFERENCE = "ellipses-views-32"  # the row that the summary shows


@dataclasses.dataclass(frozen=True)
class Row:
    """A kind of objects and a scan of them."""

    name: str
    group: str  # of GROUPS
    geometry: Geometry
    objects: str = ELLIPSES  # a phantom, or `patients`: images of a file
    noise: Noise = dataclasses.field(default_factory=Noise)
    outside: bool = False  # whether no training has this geometry

    @property
    def held_out(self) -> bool:
        """Whether no training has these objects."""
        return self.objects in HELD_OUT


def all_rows() -> list[Row]:
    """All rows, in the order of the table."""
    return [
        *full_rows(),
        *fan_rows(),
        *random_rows(),
        *full_rows_outside(),
        *arc_rows(),
        *arc_rows_outside(),
        *object_rows(),
        *patient_rows(),
        *few_rows(),
    ]


def full_rows() -> list[Row]:
    """Ellipses, full parallel scans that a training may have."""
    rows = [Row(f"ellipses-views-{views}", FULL, views_scan(views)) for views in (16, 24, 32, 50, 64, 90, 180, 360)]
    scan = views_scan(32)
    return [
        *rows,
        Row("ellipses-views-32-noise-0.25", FULL, scan, noise=common_noise(0.0025)),
        Row("ellipses-views-32-noise-4", FULL, scan, noise=common_noise(0.04)),
        Row("ellipses-views-32-photons-1e4", FULL, scan, noise=common_noise(photons=PHOTONS, attenuation=ATTENUATION)),
        Row("ellipses-views-32-turned-37", FULL, views_scan(32, first_degrees=37)),
        Row("ellipses-views-48-size-192", FULL, views_scan(48, size=192)),
        Row("ellipses-views-64-size-256", FULL, views_scan(64, size=256)),
    ]


def fan_rows() -> list[Row]:
    """Ellipses, fans that a training may have: full circles, a short scan, an offset."""
    short_degrees = 180 + 2 * math.degrees(half_fan(5))
    return [
        Row("ellipses-fan-64", FULL, fan_scan(64, 360, source=4)),
        Row("ellipses-fan-90-source-2.5", FULL, fan_scan(90, 360, source=2.5, first_degrees=11)),
        Row("ellipses-fan-120-short", FULL, fan_scan(120, short_degrees, source=5, first_degrees=203)),
        Row("ellipses-fan-96-offset-6", FULL, fan_scan(96, 360, source=3, offset=0.06)),
    ]


def random_rows() -> list[Row]:
    """Ellipses, random geometries of the distribution of a training: full arcs, full fans, arcs from 90 degrees.

    From 32 views on: an even number of views over 360 degrees has only half as many directions of parallel beams.
    """
    parallel = RandomScans(least_views=32, full_share=1, fan_share=0)
    fan = RandomScans(least_views=32, full_share=1, fan_share=1)
    arc = RandomScans(least_views=32, full_share=0, fan_share=0, least_arc=90)
    rows = []
    for name, group, settings in (("full", FULL, parallel), ("fan", FULL, fan), ("arc", ARC, arc)):
        seed = derived_seed("benchmark any", name)
        for number in range(3):
            geometry = random_geometry(settings, (SIZE, SIZE), seed, number)
            rows.append(Row(f"ellipses-random-{name}-{number + 1}", group, geometry))
    return rows


def full_rows_outside() -> list[Row]:
    """Ellipses, full scans that no training has."""
    rng = np.random.default_rng(derived_seed("benchmark any", "angles"))
    geometries = {
        # Golden angles are almost equal steps for 21, 34, 55, 89 and 144 views, so these numbers are not here.
        "golden-32": parallel_scan(GOLDEN_DEGREES * np.arange(32) % 180),
        "golden-100": parallel_scan(GOLDEN_DEGREES * np.arange(100) % 180),
        "views-400": views_scan(400),
        "views-720": views_scan(720),
        "irregular-64": parallel_scan(np.sort(180 * rng.random(64))),
        # Steps of 1 degree in a quarter of the arc, of 6.75 degrees in the rest.
        "two-densities-65": parallel_scan([*np.arange(45), *(45 + 6.75 * np.arange(20))]),
        "arc-240": parallel_scan(np.arange(240)),
        "fan-128-source-1.5": fan_scan(128, 360, source=1.5),
        "fan-128-source-15": fan_scan(128, 360, source=15),
        "views-64-rays-2": parallel_scan(equal_degrees(64, 180), spacing=2),
        "views-32-rays-0.4": parallel_scan(equal_degrees(32, 180), spacing=0.4),
        "views-64-offset-20": parallel_scan(equal_degrees(64, 180), offset=0.2),
    }
    return [Row(f"ellipses-{name}", FULL, geometry, outside=True) for name, geometry in geometries.items()]


def arc_rows() -> list[Row]:
    """Ellipses, arcs that a training may have."""
    return [
        Row("ellipses-arc-90", ARC, arc_scan(90)),
        Row("ellipses-arc-120", ARC, arc_scan(120)),
        Row("ellipses-arc-150", ARC, arc_scan(150)),
        Row("ellipses-fan-arc-150", ARC, fan_scan(150, 150, source=3, first_degrees=100)),
    ]


def arc_rows_outside() -> list[Row]:
    """Ellipses, arcs that no training has."""
    geometries = {
        "two-arcs-60": parallel_scan([*np.arange(60), *(90 + np.arange(60))]),
        "three-arcs-40": parallel_scan([*np.arange(40), *(60 + np.arange(40)), *(120 + np.arange(40))]),
        "fan-arc-150-source-1.5": fan_scan(150, 150, source=1.5, first_degrees=20),
        "arc-120-rays-2": parallel_scan(equal_degrees(120, 120, first=64), spacing=2),
    }
    return [Row(f"ellipses-{name}", ARC, geometry, outside=True) for name, geometry in geometries.items()]


def object_rows() -> list[Row]:
    """Other objects than ellipses: those of a training, then those held out, also with a geometry that no training has."""
    scans = (("views-32", FULL, views_scan(32)), ("views-60", FULL, views_scan(60)), ("arc-120", ARC, arc_scan(120)))
    rows = []
    for objects in (*TRAINED[1:], *HELD_OUT[:-1]):
        for name, group, geometry in scans:
            if objects in HELD_OUT or name != "views-60":
                rows.append(Row(f"{objects}-{name}", group, geometry, objects))
    outside = {row.name.removeprefix("ellipses-"): row for row in (*full_rows_outside(), *arc_rows_outside())}
    pairs = zip(HELD_OUT[:-1], ("fan-128-source-1.5", "two-arcs-60", "golden-32", "views-400"), strict=True)
    for objects, name in pairs:
        rows.append(dataclasses.replace(outside[name], name=f"{objects}-{name}", objects=objects))
    return rows


def patient_rows() -> list[Row]:
    """Images of patients, from a file."""
    return [
        *(Row(f"patients-views-{views}", FULL, views_scan(views), PATIENTS) for views in (24, 32, 60)),
        *(Row(f"patients-arc-{degrees}", ARC, arc_scan(degrees), PATIENTS) for degrees in (90, 120)),
    ]


def few_rows() -> list[Row]:
    """Ellipses, fewer than 16 views or than 90 degrees."""
    return [
        Row("ellipses-views-8", FEW, views_scan(8)),
        Row("ellipses-views-12", FEW, views_scan(12)),
        Row("ellipses-arc-60", FEW, arc_scan(60)),
        Row("ellipses-arc-75", FEW, arc_scan(75)),
        Row("ellipses-views-6", FEW, views_scan(6), outside=True),
        Row("ellipses-arc-55", FEW, arc_scan(55), outside=True),
    ]


def views_scan(views: int, *, size: int = SIZE, first_degrees: float = 0.0) -> ParallelBeam:
    """Equal steps over 180 degrees: the paper's case sparse-N, turned."""
    return turned(case_geometry(f"sparse-{views}", size), first_degrees)


def arc_scan(degrees: int) -> ParallelBeam:
    """A view per degree: the paper's case limited-N, turned by an angle that differs from arc to arc."""
    return turned(case_geometry(f"limited-{degrees}", SIZE), 1.7 * degrees % 180)


def turned(geometry: ParallelBeam, degrees: float) -> ParallelBeam:
    """The geometry with all angles increased."""
    return dataclasses.replace(geometry, angles=tuple(angle + math.radians(degrees) for angle in geometry.angles))


def equal_degrees(views: int, arc: float, first: float = 0.0) -> Sequence[float]:
    """Angles of equal steps over an arc, in degrees."""
    return [first + (number + 0.5) * arc / views for number in range(views)]


def parallel_scan(
    degrees: Any,  # (views,)
    *,
    spacing: float = SPACING,  # of the rays
    offset: float = 0.0,  # in widths of the detector, which grows so that it covers as much
) -> ParallelBeam:
    """Parallel beams at these angles."""
    width = 2 * HALF_DIAGONAL
    return ParallelBeam(
        angles=tuple(np.deg2rad(np.asarray(degrees, dtype=np.float64)).tolist()),
        bins=math.ceil((1 + 2 * offset) * width / spacing),
        bin_width=spacing,
        offset=offset * width,
        image_shape=(SIZE, SIZE),
    )


def half_fan(source: float) -> float:
    """Half the fan angle that covers the corners, in radians, of a source at this many half-diagonals from the centre."""
    return math.asin(1 / source)


def fan_scan(
    views: int,
    arc_degrees: float,
    *,
    source: float,  # distance from the centre, in half-diagonals
    first_degrees: float = 0.0,
    offset: float = 0.0,  # in widths of the detector, which grows so that it covers as much
) -> FanBeam:
    """A fan with equal steps, whose rays at the centre are as far apart as those of the paper's cases."""
    distance, magnification = source * HALF_DIAGONAL, 1.5
    width = 2 * distance * magnification * math.tan(half_fan(source))  # of the detector
    bin_width = SPACING * magnification
    return FanBeam(
        angles=tuple(np.deg2rad(equal_degrees(views, arc_degrees, first_degrees)).tolist()),
        bins=math.ceil((1 + 2 * offset) * width / bin_width),
        bin_width=bin_width,
        offset=offset * width,
        image_shape=(SIZE, SIZE),
        source_origin=distance,
        source_detector=distance * magnification,
    )
