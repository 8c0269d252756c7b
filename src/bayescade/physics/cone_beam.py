"""Circular cone beams: a fan beam with rows of bins, for volumes of several slices.

Slice l of the volume is at z = (l - (L-1)/2) p, row k of the detector at height h = (k - (K-1)/2) v + row_offset.
Seen along the axis of rotation, the rays of a bin are the ray of that bin of the fan beam, whatever the row. At a
point whose distance from the source along the central ray is U, the ray of row k is at z = h U / SDD. So the middle
slice, seen by the row at h = 0, is the fan beam."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from bayescade.errors import UserError
from bayescade.physics.geometry import FanBeam

LARGEST_SLOPE = 1.0  # tangent of the cone angle: beyond 45 degrees z would be the dominant axis of a ray


@dataclasses.dataclass(frozen=True)
class ConeBeam:
    """A source on a circle and a flat detector parallel to the axis of rotation; voxels are cubes."""

    fan: FanBeam  # of the middle slice
    detector_rows: int
    row_height: float = 1.0  # distance of neighbouring rows, on the detector
    row_offset: float = 0.0  # height of the middle row; 0 is the height of the source
    slices: int = 1  # of the volume

    def __post_init__(self) -> None:
        if not isinstance(self.fan, FanBeam):
            raise UserError(f"fan: expected a FanBeam, got {type(self.fan).__name__}")
        for name in ("detector_rows", "slices"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name}: expected a positive whole number, got {value!r}")
        if not 0 < self.row_height < float("inf"):
            raise UserError(f"row_height: expected a positive length, got {self.row_height!r}")
        if not abs(self.row_offset) < float("inf"):
            raise UserError(f"row_offset: expected a finite height, got {self.row_offset!r}")
        slope = float(abs(self.row_heights()).max()) / self.fan.source_detector
        if slope > LARGEST_SLOPE:
            raise UserError(
                f"detector_rows: expected a cone angle of at most 45 degrees, got {np.degrees(np.arctan(slope)):.0f}"
            )

    @property
    def volume_shape(self) -> tuple[int, int, int]:
        """(slices, height, width)."""
        return (self.slices, *self.fan.image_shape)

    @property
    def data_shape(self) -> tuple[int, int, int]:
        """(views, rows, bins)."""
        return (self.fan.views, self.detector_rows, self.fan.bins)

    def row_heights(self) -> NDArray[np.float64]:
        """Heights h of the rows, (rows,)."""
        middle = (self.detector_rows - 1) / 2
        return (np.arange(self.detector_rows, dtype=np.float64) - middle) * self.row_height + self.row_offset
