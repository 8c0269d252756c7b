"""Filtered back-projection; for parallel beams with the exact transpose of the projector as the back-projector."""

import math
from collections.abc import Callable

from torch import Tensor

from bayescade.physics.fan_fbp import fan_filtered_back_projection
from bayescade.physics.filters import apply_ramp
from bayescade.physics.geometry import FanBeam, Geometry


def filtered_back_projection(
    geometry: Geometry,
    adjoint: Callable[[Tensor], Tensor],  # not used for fan beams
    sinogram: Tensor,  # (..., 1, views, bins)
    window: str = "ram-lak",
    ramp: str = "band-limited",
) -> Tensor:
    """x = (pi / views) (w / p^2) A' (h * y), (..., 1, height, width), for parallel beams; fan beams: see `fan_fbp`.

    The weights of a Joseph transpose over the bins of one view add up to p^2 / w; dividing by that makes it an
    interpolation. Every view has weight pi / views, as in the paper: exact for equal steps over 180 or 360
    degrees; for a limited arc the measured part is too large by the factor 180 degrees / arc.
    """
    if isinstance(geometry, FanBeam):
        return fan_filtered_back_projection(geometry, sinogram, window, ramp)
    scale = math.pi / geometry.views * geometry.bin_width / geometry.pixel_size**2
    return scale * adjoint(apply_ramp(sinogram, geometry.bin_width, window, ramp))
