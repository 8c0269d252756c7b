"""Filtered back-projection of fan beams on a flat detector.

With the detector scaled to the centre of rotation, a = s SOD / SDD, and U = SOD - r . e the distance of a point r from the
source (in direction e from the centre) along the central ray,

    x(r) = sum over views  c_v  (SOD / U)^2  Q_v(SOD (r . n) / U),   Q_v = h * (w y SOD / sqrt(SOD^2 + a^2)),

h the ramp filter, n the direction of the detector (Kak and Slaney 1988, section 3.4.2). c_v and w depend on the scan:

- full: every line is seen twice, from both sides; w shares it between the two, half and half for a detector centred on the
  axis. A view measured twice (at 0 and at 360 degrees) has half the angle, twice.
- short (at least 180 degrees plus the fan angle): w are Parker's weights (Parker 1982), so that a line seen twice counts once.
- limited (less): lines are missing, and no weight replaces them; w shares those that are seen twice.
"""

import dataclasses
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.physics.filters import apply_ramp
from bayescade.physics.geometry import FanBeam

FULL_TURN = 2 * math.pi
SLACK = 1e-6  # radians: angles in files are rounded


def scan_kind(geometry: FanBeam) -> str:
    """`full`, `short` (at least 180 degrees plus the fan angle, give or take one step) or `limited`."""
    if geometry.views < 3:
        return "limited"
    _, gaps = _gaps(geometry)
    step = _step(gaps)
    if gaps.max() <= min(2.5 * step, FULL_TURN / 4):
        return "full"
    arc = FULL_TURN - float(gaps.max()) + step
    return "short" if arc >= math.pi + 2 * float(abs(geometry.fan_angles()).max()) - SLACK else "limited"


def _turned(geometry: FanBeam) -> NDArray[np.float64]:
    """The angles in [0, 2 pi), (views,)."""
    turned = np.mod(np.asarray(geometry.angles), FULL_TURN)
    return np.where(turned > FULL_TURN - SLACK, 0.0, turned)


def _gaps(geometry: FanBeam) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
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

    The first and the last view are neighbours on the circle. The hole beside an arc was not measured and does not count.
    """
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

    For an arc of pi + 2 d: sin^2(pi/4 b / (d + g)) at the start, b < 2 (d + g), the same mirrored at the end, and 1 between.
    """
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


def _bump(x: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    return np.maximum(x - low, 0) * np.maximum(high - x, 0)


def fan_filtered_back_projection(
    geometry: FanBeam,
    sinogram: Tensor,  # (..., 1, views, bins)
    window: str = "ram-lak",
    ramp: str = "band-limited",
) -> Tensor:
    """The image (..., 1, height, width): full scan, short scan or limited angle, by `scan_kind`.

    If the detector reaches further on one side, bins of zeros are added on the other, where the weights are zero too: the
    filtered sinogram is not zero there. (Not for the ramp `shifted`, whose taps depend on the number of bins.)
    """
    scale = geometry.source_origin / geometry.source_detector
    weights = parker_weights(geometry) if scan_kind(geometry) == "short" else shared_weights(geometry)
    weights = weights * np.cos(geometry.fan_angles())[None, :]
    weighted = sinogram * torch.as_tensor(weights, dtype=sinogram.dtype, device=sinogram.device)
    if ramp != "shifted":
        before, after = missing_bins(geometry)
        weighted = torch.nn.functional.pad(weighted, (before, after))
        offset = geometry.offset + (after - before) * geometry.bin_width / 2
        geometry = dataclasses.replace(geometry, bins=weighted.shape[-1], offset=offset)
    filtered = apply_ramp(weighted, geometry.bin_width * scale, window, ramp)
    return _back_project(geometry, filtered, view_weights(geometry))


def missing_bins(geometry: FanBeam) -> tuple[int, int]:
    """Bins to add before the first and after the last, so that the detector reaches as far on both sides of the axis."""
    missing = round(2 * geometry.offset / geometry.bin_width)
    return max(missing, 0), max(-missing, 0)


def _back_project(
    geometry: FanBeam,
    filtered: Tensor,  # (..., 1, views, bins)
    weights: NDArray[np.float64],  # (views,)
) -> Tensor:
    """Sum over views of c (SOD / U)^2 Q(a), Q interpolated linearly between bins and zero outside the detector."""
    height, width = geometry.image_shape
    device, dtype = filtered.device, filtered.dtype
    x = (torch.arange(height, device=device, dtype=dtype) - (height - 1) / 2)[:, None] * geometry.pixel_size
    y = (torch.arange(width, device=device, dtype=dtype) - (width - 1) / 2)[None, :] * geometry.pixel_size
    sinograms = filtered.reshape(-1, geometry.views, geometry.bins)
    image = torch.zeros(len(sinograms), height * width, device=device, dtype=dtype)
    first_bin = float(geometry.bin_positions()[0])
    for view, (angle, weight) in enumerate(zip(geometry.angles, weights, strict=True)):
        cosine, sine = math.cos(angle), math.sin(angle)
        ratio = geometry.source_origin / (geometry.source_origin - (x * sine - y * cosine))  # SOD / U
        detector = (x * cosine + y * sine) * ratio * (geometry.source_detector / geometry.source_origin)
        position = ((detector - first_bin) / geometry.bin_width).flatten()
        below = position.floor()
        part = position - below
        index = below.to(torch.int64)
        factor = weight * (ratio * ratio).flatten()
        for offset, share in ((0, 1 - part), (1, part)):
            tap = index + offset
            inside = (tap >= 0) & (tap < geometry.bins)
            values = sinograms[:, view].index_select(1, tap.clamp(0, geometry.bins - 1))
            image += values * (share * factor * inside)
    return image.reshape(*filtered.shape[:-3], 1, height, width)
