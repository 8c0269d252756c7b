"""Filtered back-projection: weights and ramp filter, before the projection back into the image.

Parallel beams, with A' the exact transpose of Joseph's line integrals,

    x = (pi / views) (w / p^2) A' (h * y).

The weights of such a transpose over the bins of one view add up to p^2 / w; dividing by that makes it an
interpolation. Every view has weight pi / views, as in the paper: exact for equal steps over 180 or 360 degrees; for a
limited arc the measured part is too large by the factor 180 degrees / arc. Views at unequal steps have weights in proportion
to their angles, with the same sum (not for the ramp `shifted`, which is the paper's).

Fan beams on a flat detector. With the detector scaled to the centre of rotation, a = s SOD / SDD, and U = SOD - r . e
the distance of a point r from the source (in direction e from the centre) along the central ray,

    x(r) = sum over views  c_v  (SOD / U)^2  Q_v(SOD (r . n) / U),   Q_v = h * (w y SOD / sqrt(SOD^2 + a^2)),

h the ramp filter, n the direction of the detector, Q_v interpolated linearly between bins (Kak and Slaney 1988,
section 3.4.2). `redundancy` has the weights c_v of views and w of rays.

If the detector reaches further on one side of the axis, bins of zeros are added on the other, where the weights are
zero too: the filtered sinogram is not zero there. (Not for the ramp `shifted`, whose taps depend on the number of
bins.)"""

import dataclasses
import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.physics.filters import apply_ramp
from bayescade.physics.geometry import FanBeam, Geometry
from bayescade.physics.redundancy import (
    density_weights,
    displaced_weights,
    is_full_circle,
    missing_bins,
    ray_weights,
    view_weights,
)

Beam = TypeVar("Beam", bound=Geometry)
# The last step of FBP, from filtered sinograms (..., 1, views, bins) to images: A' for parallel beams,
# `interpolated_back_projection` for fan beams.
BackProjection = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights of filtered back-projection; None stands for ones."""

    rays: NDArray[np.float64] | None  # (views, bins), before the filter
    views: NDArray[np.float64] | None  # (views,), after it
    scale: float  # of the image
    added: tuple[int, int]  # bins of zeros before the first bin and after the last


def fbp_weights(geometry: Geometry, ramp: str = "band-limited") -> Weights:
    """The weights for a geometry."""
    added = missing_bins(geometry) if ramp != "shifted" else (0, 0)
    if isinstance(geometry, FanBeam):
        return Weights(
            ray_weights(geometry) * np.cos(geometry.fan_angles())[None, :], view_weights(geometry), 1.0, added
        )
    scale = math.pi / geometry.views * geometry.bin_width / geometry.pixel_size**2
    views = density_weights(geometry) if ramp != "shifted" else None
    if ramp == "shifted" or not any(added) or not is_full_circle(geometry):
        return Weights(None, views, scale, (0, 0))
    return Weights(np.tile(displaced_weights(geometry), (geometry.views, 1)), views, scale, added)


class FilteredBackProjection:
    """FBP of one geometry, ready for many sinograms: its weights are computed once."""

    def __init__(
        self,
        geometry: Geometry,
        back_projector: Callable[[Geometry], BackProjection | None],
        ramp: str,
        device: torch.device,
        dtype: torch.dtype,
    ):
        weights = fbp_weights(geometry, ramp)

        def tensor(values: NDArray[np.float64] | None) -> Tensor | None:
            return torch.as_tensor(values, dtype=dtype, device=device) if values is not None else None

        self.rays, self.views = tensor(weights.rays), tensor(weights.views)
        self.scale, self.added, self.ramp = weights.scale, weights.added, ramp
        self.geometry = with_added_bins(geometry, weights.added) if any(weights.added) else geometry
        self.back = back_projector(self.geometry)

    def __call__(
        self,
        sinogram: Tensor,  # (..., 1, views, bins)
        window: str,
        adjoint: BackProjection,  # where there is no other back-projection
    ) -> Tensor:
        """The image, (..., 1, height, width)."""
        if self.rays is not None:
            sinogram = sinogram * self.rays
        if any(self.added):
            sinogram = torch.nn.functional.pad(sinogram, self.added)
        filtered = apply_ramp(sinogram, self.geometry.ray_spacing, window, self.ramp)
        if self.views is not None:
            filtered = filtered * self.views[:, None]
        image = (self.back or adjoint)(filtered)
        return image if self.scale == 1 else self.scale * image


def with_added_bins(geometry: Beam, added: tuple[int, int]) -> Beam:
    """The geometry with further bins before the first and after the last."""
    before, after = added
    offset = geometry.offset + (after - before) * geometry.bin_width / 2
    return dataclasses.replace(geometry, bins=geometry.bins + before + after, offset=offset)


def interpolated_back_projection(
    geometry: FanBeam,
    filtered: Tensor,  # (..., 1, views, bins)
) -> Tensor:
    """Sum over views of (SOD / U)^2 Q(a), (..., 1, height, width): Q interpolated between bins, and zero outside the
    detector.

    In PyTorch, view by view, and differentiable: the reference of the compiled kernels.
    """
    height, width = geometry.image_shape
    device, dtype = filtered.device, filtered.dtype
    x = (torch.arange(height, device=device, dtype=dtype) - (height - 1) / 2)[:, None] * geometry.pixel_size
    y = (torch.arange(width, device=device, dtype=dtype) - (width - 1) / 2)[None, :] * geometry.pixel_size
    sinograms = filtered.reshape(-1, geometry.views, geometry.bins)
    image = torch.zeros(len(sinograms), height * width, device=device, dtype=dtype)
    first_bin = float(geometry.bin_positions()[0])
    for view, angle in enumerate(geometry.angles):
        cosine, sine = math.cos(angle), math.sin(angle)
        ratio = geometry.source_origin / (geometry.source_origin - (x * sine - y * cosine))  # SOD / U
        detector = (x * cosine + y * sine) * ratio * (geometry.source_detector / geometry.source_origin)
        position = ((detector - first_bin) / geometry.bin_width).flatten()
        below = position.floor()
        fraction = position - below
        index = below.to(torch.int64)
        factor = (ratio * ratio).flatten()
        for offset, share in ((0, 1 - fraction), (1, fraction)):
            tap = index + offset
            inside = (tap >= 0) & (tap < geometry.bins)
            values = sinograms[:, view].index_select(1, tap.clamp(0, geometry.bins - 1))
            image = image + values * (share * factor * inside)
    return image.reshape(*filtered.shape[:-3], 1, height, width)
