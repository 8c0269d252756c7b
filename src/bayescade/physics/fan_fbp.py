"""Filtered back-projection of fan beams on a flat detector.

With the detector scaled to the centre of rotation, a = s SOD / SDD, and U = SOD - r . e the distance of a point r from the
source (in direction e from the centre) along the central ray,

    x(r) = sum over views  c_v  (SOD / U)^2  Q_v(SOD (r . n) / U),   Q_v = h * (w y SOD / sqrt(SOD^2 + a^2)),

h the ramp filter, n the direction of the detector (Kak and Slaney 1988, section 3.4.2). What c_v and w are depends on the scan:

- full: every line is seen twice; c_v is half the angle a view stands for, w = 1. A view measured twice (at 0 and at 360
  degrees) stands for half the angle, twice.
- short (at least 180 degrees plus the fan angle): w are Parker's weights (Parker 1982), so that a line seen twice counts once.
- limited (less): some lines are missing, and no weight brings them back; w = 1, every line counts once.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.physics.filters import apply_ramp
from bayescade.physics.geometry import FanBeam

FULL_TURN = 2 * math.pi
SLACK = 1e-6  # radians: angles come from files in decimals


def view_angles(geometry: FanBeam) -> tuple[NDArray[np.float64], float]:
    """The angle each view stands for, half the way to its neighbours on both sides, (views,), and the largest gap between two.

    On the circle, so that the first and the last view are neighbours.
    """
    turned = np.mod(np.asarray(geometry.angles), FULL_TURN)
    turned = np.where(turned > FULL_TURN - SLACK, 0.0, turned)
    order = np.argsort(turned, kind="stable")
    gaps = np.diff(turned[order], append=turned[order[0]] + FULL_TURN)  # from each view to the next
    stands_for = np.empty(len(order))
    stands_for[order] = (gaps + np.roll(gaps, 1)) / 2
    return stands_for, float(gaps.max())


def scan_kind(geometry: FanBeam) -> str:
    """`full`, `short` (at least 180 degrees plus the fan angle) or `limited`."""
    _, largest = view_angles(geometry)
    step, arc = _step_and_arc(geometry)
    if largest <= 2.5 * step:
        return "full"
    return "short" if arc >= math.pi + 2 * float(abs(geometry.fan_angles()).max()) - SLACK else "limited"


def _step_and_arc(geometry: FanBeam) -> tuple[float, float]:
    """The middle step between views, and the arc from the first to the last (the views may be in any order)."""
    turned = np.sort(np.mod(np.asarray(geometry.angles), FULL_TURN))
    gaps = np.diff(turned, append=turned[0] + FULL_TURN)
    steps = gaps[gaps > SLACK]
    return float(np.median(steps)), FULL_TURN - float(gaps.max())


def arc_position(geometry: FanBeam) -> NDArray[np.float64]:
    """Angle of each view from the start of the arc, the end of the largest gap, (views,)."""
    turned = np.mod(np.asarray(geometry.angles), FULL_TURN)
    order = np.sort(turned)
    gaps = np.diff(order, append=order[0] + FULL_TURN)
    start = order[(int(gaps.argmax()) + 1) % len(order)]
    position = np.mod(turned - start, FULL_TURN)
    return np.where(position > FULL_TURN - SLACK, 0.0, position)


def parker_weights(geometry: FanBeam) -> NDArray[np.float64]:
    """w(b, g) of view b from the start of the arc and fan angle g, (views, bins); a line and its twin add up to 1.

    For an arc of pi + 2 d: sin^2(pi/4 b / (d + g)) at the start, b < 2 (d + g), the same mirrored at the end, and 1 between.
    """
    b = arc_position(geometry)[:, None]
    g = geometry.fan_angles()[None, :]
    d = (float(b.max()) - math.pi) / 2
    tiny = 1e-12
    start = np.sin(math.pi / 4 * np.minimum(b / np.maximum(d + g, tiny), 2)) ** 2
    end = np.sin(math.pi / 4 * np.clip((math.pi + 2 * d - b) / np.maximum(d - g, tiny), 0, 2)) ** 2
    return np.where(b < 2 * (d + g), start, np.where(b > math.pi + 2 * g, end, 1.0))


def fan_filtered_back_projection(
    geometry: FanBeam,
    sinogram: Tensor,  # (..., 1, views, bins)
    window: str = "ram-lak",
) -> Tensor:
    """The image (..., 1, height, width): full scan, short scan or limited angle, by `scan_kind`."""
    kind = scan_kind(geometry)
    scale = geometry.source_origin / geometry.source_detector
    cosine = np.cos(geometry.fan_angles())[None, :]
    weights = cosine * (parker_weights(geometry) if kind == "short" else 1.0)
    weighted = sinogram * torch.as_tensor(weights, dtype=sinogram.dtype, device=sinogram.device)
    filtered = apply_ramp(weighted, geometry.bin_width * scale, window)
    return _back_project(geometry, filtered, _view_weights(geometry, kind))


def _view_weights(geometry: FanBeam, kind: str) -> NDArray[np.float64]:
    """c_v: the angle a view stands for, halved in a full scan; at the ends of an arc a view stands for one step at most."""
    stands_for, _ = view_angles(geometry)
    if kind == "full":
        return stands_for / 2
    step, _ = _step_and_arc(geometry)
    return np.minimum(stands_for, step)


def _back_project(
    geometry: FanBeam,
    filtered: Tensor,  # (..., 1, views, bins)
    weights: NDArray[np.float64],  # (views,)
) -> Tensor:
    """Sum over views of c (SOD / U)^2 Q(a), Q interpolated linearly between bins and zero beside the detector."""
    height, width = geometry.image_shape
    device, dtype = filtered.device, filtered.dtype
    x = (torch.arange(height, device=device, dtype=dtype) - (height - 1) / 2)[:, None] * geometry.pixel_size
    y = (torch.arange(width, device=device, dtype=dtype) - (width - 1) / 2)[None, :] * geometry.pixel_size
    rows = filtered.reshape(-1, geometry.views, geometry.bins)
    image = torch.zeros(len(rows), height * width, device=device, dtype=dtype)
    first_bin = float(geometry.bin_positions()[0])
    for view, (angle, weight) in enumerate(zip(geometry.angles, weights, strict=True)):
        cosine, sine = math.cos(angle), math.sin(angle)
        ratio = geometry.source_origin / (geometry.source_origin - (x * sine - y * cosine))  # SOD / U
        detector = (x * cosine + y * sine) * ratio * (geometry.source_detector / geometry.source_origin)
        place = ((detector - first_bin) / geometry.bin_width).flatten()
        below = place.floor()
        part = place - below
        index = below.to(torch.int64)
        factor = weight * (ratio * ratio).flatten()
        for offset, share in ((0, 1 - part), (1, part)):
            tap = index + offset
            inside = (tap >= 0) & (tap < geometry.bins)
            values = rows[:, view].index_select(1, tap.clamp(0, geometry.bins - 1))
            image += values * (share * factor * inside)
    return image.reshape(*filtered.shape[:-3], 1, height, width)
