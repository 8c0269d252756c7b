"""Scanner geometries: where the pixels, the detector bins and the rays are.

Axes, for every geometry. Lengths share one unit (a pixel, a millimetre), angles are radians.

- Pixel `image[i, j]` is at x = (i - (H-1)/2) p, y = (j - (W-1)/2) p: axis 0 is x, axis 1 is y, both increasing.
- Bin b of the detector is at s = (b - (B-1)/2) w + offset.
- A parallel ray at angle t and detector position s is the line x cos t + y sin t = s.
- A fan beam has its source at angle t at SOD (sin t, -cos t) and its flat detector along (cos t, sin t), at distance SDD from
  the source; it tends to the parallel beam as SOD grows.

A geometry is a value: frozen, comparable, written as JSON text into every file that depends on it.
"""

import dataclasses
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bayescade.errors import UserError

# Larger than any scan of a few turns in radians, smaller than most scans in degrees.
LARGEST_ANGLE = 8 * math.pi
LARGEST_COUNT = 10_000_000
LARGEST_LENGTH = 1e9
CLOSE = 1e-5  # tolerance for equal angles (radians) and equal lengths (relative)
SAME_DIRECTION = 1e-6  # radians: views closer than this measure the same lines
HOLE = 1.9  # gaps above this multiple of those around are holes: a missing view makes one, golden angles none


@dataclasses.dataclass(frozen=True)
class Geometry(ABC):
    """What all geometries share. Abstract: use `ParallelBeam` or `FanBeam`."""

    angles: Sequence[float]  # (views,) radians
    bins: int  # detector bins per view
    bin_width: float = 1.0  # distance of neighbouring bins, on the detector
    offset: float = 0.0  # position s of the middle of the bins; s = 0 is the centre of rotation
    pixel_size: float = 1.0  # edge of the square pixels
    image_shape: tuple[int, int] = (128, 128)  # (height, width): pixels along x and along y

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        angles = _numbers("angles", self.angles)
        if not angles:
            raise UserError("angles: expected at least one view angle in radians, got an empty list")
        largest = max(abs(angle) for angle in angles)
        if largest > LARGEST_ANGLE:
            raise UserError(
                f"angles: expected radians, got values up to {largest:g}, which look like degrees; multiply by pi/180"
            )
        if len(_numbers("image_shape", self.image_shape)) != 2:
            raise UserError(f"image_shape: expected two numbers (height, width), got {list(self.image_shape)}")
        object.__setattr__(self, "angles", angles)
        object.__setattr__(self, "image_shape", tuple(_count("image_shape", n) for n in self.image_shape))
        object.__setattr__(self, "bins", _count("bins", self.bins))
        object.__setattr__(self, "offset", _numbers("offset", [self.offset])[0])
        for name in self.length_names():
            object.__setattr__(self, name, _length(name, getattr(self, name)))
        self._check_coverage()

    def _check_coverage(self) -> None:
        reach = math.hypot(*self.image_shape) * self.pixel_size / 2
        nearest = float(self.ray_distances().min())
        if nearest > reach + self.pixel_size:
            raise UserError(
                f"no ray meets the image: the nearest is {nearest:g} from the centre, the image reaches to {reach:g}; "
                "check offset, bin_width and pixel_size, which share one unit"
            )

    @classmethod
    def length_names(cls) -> tuple[str, ...]:
        """Names of the fields that must be positive lengths."""
        return ("bin_width", "pixel_size")

    @abstractmethod
    def rays(self, first: int, last: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A point on each ray of views `first` to `last` - 1, and its unit direction: two (views, bins, 2) arrays."""

    @abstractmethod
    def ray_distances(self) -> NDArray[np.float64]:
        """How far from the centre of rotation the ray of each bin passes, (bins,)."""

    @property
    @abstractmethod
    def ray_spacing(self) -> float:
        """Distance of neighbouring rays of a view at the centre of rotation."""

    @property
    @abstractmethod
    def divergence(self) -> float:
        """Tangent of the angle between a ray and the central ray of its view, divided by the detector position s."""

    @property
    def views(self) -> int:
        """Number of view angles."""
        return len(self.angles)

    @property
    def sinogram_shape(self) -> tuple[int, int]:
        """(views, bins)."""
        return (self.views, self.bins)

    def bin_positions(self) -> NDArray[np.float64]:
        """Detector positions s of the bin centres, (bins,)."""
        return (np.arange(self.bins, dtype=np.float64) - (self.bins - 1) / 2) * self.bin_width + self.offset

    def to_json(self) -> str:
        """JSON text with exactly the fields of the geometry and its kind."""
        return json.dumps({"kind": self.kind, **dataclasses.asdict(self)}, sort_keys=True)


@dataclasses.dataclass(frozen=True)
class ParallelBeam(Geometry):
    """Parallel beam: the ray at angle t and detector position s is x cos t + y sin t = s."""

    kind: ClassVar[str] = "parallel"

    @property
    def ray_spacing(self) -> float:
        return self.bin_width

    @property
    def divergence(self) -> float:
        return 0.0

    def ray_distances(self) -> NDArray[np.float64]:
        return abs(self.bin_positions())

    def rays(self, first: int, last: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        angles = np.asarray(self.angles[first:last])[:, None]
        normals = np.stack([np.cos(angles), np.sin(angles)], axis=-1)  # (views, 1, 2)
        directions = np.stack([-np.sin(angles), np.cos(angles)], axis=-1)
        points = self.bin_positions()[None, :, None] * normals
        return points, np.broadcast_to(directions, points.shape)


@dataclasses.dataclass(frozen=True)
class FanBeam(Geometry):
    """Flat-detector fan beam: at angle t the source is at SOD (sin t, -cos t), the detector opposite, SDD from the source.

    With g = atan(s / SDD) the ray is the parallel ray at angle t - g and position SOD sin g; the same line is seen again at
    angle t + pi - 2 g, at fan angle -g.
    """

    source_origin: float = dataclasses.field(kw_only=True)  # SOD: source to centre of rotation
    source_detector: float = dataclasses.field(kw_only=True)  # SDD: source to detector; `bin_width` is measured there

    kind: ClassVar[str] = "fan"

    def __post_init__(self) -> None:
        super().__post_init__()
        reach = math.hypot(*self.image_shape) * self.pixel_size / 2
        if self.source_origin <= reach:
            raise UserError(
                f"source_origin: the source is {self.source_origin:g} from the centre, inside the image, which reaches to "
                f"{reach:g}; check pixel_size and image_shape, which share one unit with it"
            )
        if self.source_detector < self.source_origin:
            raise UserError(
                f"source_detector: expected at least source_origin ({self.source_origin:g}), got {self.source_detector:g}; "
                "it is measured from the source"
            )

    @classmethod
    def length_names(cls) -> tuple[str, ...]:
        return (*super().length_names(), "source_origin", "source_detector")

    @property
    def ray_spacing(self) -> float:
        return self.bin_width * self.source_origin / self.source_detector

    @property
    def divergence(self) -> float:
        return 1 / self.source_detector

    def fan_angles(self) -> NDArray[np.float64]:
        """Angle g of the ray of each bin to the central ray, (bins,), radians."""
        return np.arctan2(self.bin_positions(), self.source_detector)

    def ray_distances(self) -> NDArray[np.float64]:
        return abs(self.source_origin * np.sin(self.fan_angles()))

    def rays(self, first: int, last: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        # Computed as parallel rays: the point nearest to the centre is accurate, however far the source is.
        fan = self.fan_angles()
        angles = np.asarray(self.angles[first:last])[:, None] - fan
        normals = np.stack([np.cos(angles), np.sin(angles)], axis=-1)  # (views, bins, 2)
        points = (self.source_origin * np.sin(fan))[None, :, None] * normals
        return points, np.stack([-np.sin(angles), np.cos(angles)], axis=-1)


def measured_arc(geometry: Geometry) -> float:
    """Measured arc in degrees, out of 180: the sum of all gaps between views, where a hole counts as one step.

    Angles are taken modulo 180 degrees: a full turn measures each line twice and has 180 degrees. A gap is a
    hole when it is more than `HOLE` times the second largest of the gaps around it (five on each side, fewer for few views),
    which is the step. So equal steps over N degrees give N, also in several parts, and steps may vary along the arc. A single
    direction gives 0.

    For a fan: the directions of its central rays, which are those of the lines through the centre of rotation. At other points
    the arc is rotated, by at most half the fan angle.
    """
    turned = np.sort(np.mod(np.asarray(geometry.angles), math.pi))
    gaps = np.diff(turned, append=turned[0] + math.pi)
    gaps = gaps[gaps > SAME_DIRECTION]
    if len(gaps) == 1:
        return 0.0
    reach = min(max((len(gaps) - 1) // 2, 1), 5)
    around = np.stack([np.roll(gaps, shift) for shift in range(-reach, reach + 1) if shift])
    step = np.sort(around, axis=0)[-2]
    return math.degrees(np.where(gaps > HOLE * step, step, gaps).sum())


def geometry_difference(expected: Geometry, other: Geometry) -> str | None:
    """The first difference of the two scans, in words; None where they differ by rounding only.

    Rounding is `CLOSE`: of an angle in radians, of a length relative to itself, of the offset relative to the width of a bin.
    """
    if expected.kind != other.kind:
        return f"kind: expected {expected.kind}, the scan has {other.kind}"
    for field in dataclasses.fields(expected):
        value, given = getattr(expected, field.name), getattr(other, field.name)
        if np.size(value) != np.size(given):
            return f"{field.name}: expected {np.size(value)} of them, the scan has {np.size(given)}"
        if field.name == "angles":
            rounding = CLOSE
        elif field.name == "offset":
            rounding = CLOSE * expected.bin_width
        else:
            rounding = CLOSE * value if field.name in expected.length_names() else 0.0  # the rest are counts
        if not np.allclose(value, given, rtol=0, atol=rounding):
            return f"{field.name}: expected {_text(value)}, the scan has {_text(given)}"
    return None


def _text(value: Any) -> str:
    return f"{list(value) if isinstance(value, tuple) else value!s:.60}"


KINDS: dict[str, type[Geometry]] = {ParallelBeam.kind: ParallelBeam, FanBeam.kind: FanBeam}


def geometry_from_json(text: str | bytes) -> Geometry:
    """The geometry written by `Geometry.to_json`; unknown and missing keys are errors that name them."""
    try:
        values = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"geometry: expected JSON text, got something else ({error})") from None
    return geometry_from_dict(values)


def geometry_from_dict(values: Any) -> Geometry:
    """The geometry with these values; `kind` says which class."""
    if not isinstance(values, dict):
        raise UserError(f"geometry: expected a table of keys and values, got {type(values).__name__}")
    values = dict(values)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(f"geometry: expected kind {_alternatives(KINDS)}, got {kind!r}")
    fields = dataclasses.fields(KINDS[kind])
    known = [field.name for field in fields]
    unknown = [key for key in values if key not in known]
    if unknown:
        raise UserError(f"geometry: unknown key '{unknown[0]}'; the keys are kind, {', '.join(known)}")
    missing = [name for name in known if name not in values]
    if missing:
        raise UserError(f"geometry: missing key '{missing[0]}'; the keys are kind, {', '.join(known)}")
    return KINDS[kind](**values)


def _alternatives(names: Any) -> str:
    return " or ".join(f"'{name}'" for name in names)


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    """Finite numbers as a tuple of floats."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{name}: expected numbers, got {values!r:.60}") from None
    if array.ndim != 1:
        raise UserError(f"{name}: expected a list of numbers, got an array of {array.ndim} dimensions")
    if not np.isfinite(array).all():
        bad = int(np.flatnonzero(~np.isfinite(array))[0])
        raise UserError(f"{name}: expected finite numbers, got {array[bad]} at position {bad}")
    return tuple(array.tolist())


def _count(name: str, value: Any) -> int:
    """A positive whole number."""
    (number,) = _numbers(name, [value])
    if number < 1 or number != int(number) or number > LARGEST_COUNT:
        raise UserError(f"{name}: expected a positive whole number up to {LARGEST_COUNT}, got {value!r:.60}")
    return int(number)


def _length(name: str, value: Any) -> float:
    """A positive number."""
    (number,) = _numbers(name, [value])
    if not 1 / LARGEST_LENGTH <= number <= LARGEST_LENGTH:
        raise UserError(f"{name}: expected a positive length from 1e-9 to 1e9, got {value!r}")
    return number
