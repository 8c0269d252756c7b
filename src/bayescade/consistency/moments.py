"""The centre of rotation from moments of the views, in closed form; for scans that see the whole object, with empty
borders.

Parallel beams: the first moment of a view over its zeroth moment is the projection of the centre of mass,

    m(t) = offset error + x cos t + y sin t,

so the constant of a linear regression is the error of the offset (Helgason and Ludwig). Full circles of a flat fan: with
fan angles g every line is measured twice, at opposite g, so the sum over all views of f(g) p with f(g) = sin g cos^3 g is
zero. (f is the distance of a ray from the centre times the density of lines, up to a constant.) An offset error e of the
detector gives e times the sum of f' p.

The constant of every view is estimated from its borders and removed before. The moments assume a monochromatic beam and an
object that is seen whole: see `centre`, which compares them with the fit of an object.
"""

import math

import numpy as np
import torch
from torch import Tensor

from bayescade.physics.geometry import FanBeam, Geometry
from bayescade.physics.noise_level import noise_std

BORDER = 0.03  # of the bins at each end, at least two: beside the object
LEAST_VIEWS = 6
CERTAIN = 4.0  # standard errors from which a tilt of the detector is removed
FULL_CIRCLE = 0.01  # relative error of the steps of a full circle


def moments_apply(geometry: Geometry) -> bool:
    """Whether the centre is known from moments: parallel beams, and fans over full circles in equal steps."""
    if geometry.views < LEAST_VIEWS:
        return False
    if not isinstance(geometry, FanBeam):
        return True
    turned = np.sort(np.mod(geometry.angles, 2 * math.pi))
    steps = np.diff(turned, append=turned[0] + 2 * math.pi)
    return bool(np.abs(steps * geometry.views / (2 * math.pi) - 1).max() < FULL_CIRCLE)


def border_bins(bins: int) -> int:
    """How many bins at each end of the detector count as its border."""
    return max(2, round(BORDER * bins))


def without_baseline(
    y: Tensor,  # (batch, views, bins)
) -> Tensor:
    """The data without the constant of every view, and without the tilt of all views where it is certain.

    The constant is the mean of both borders of a view. The tilt is the difference of the borders, the same in all views.
    """
    border = border_bins(y.shape[-1])
    left, right = y[..., :border].mean(-1), y[..., -border:].mean(-1)
    y = y - ((left + right) / 2)[..., None]
    difference = right - left  # (batch, views)
    mean = difference.mean(1)
    error = difference.std(1) / math.sqrt(y.shape[1])
    tilt = torch.where(mean.abs() > CERTAIN * error, mean, 0.0) / (y.shape[-1] - border)
    line = torch.arange(y.shape[-1], dtype=y.dtype, device=y.device) - (y.shape[-1] - 1) / 2
    return y - tilt[:, None, None] * line


def centre_by_moments(
    geometry: Geometry,
    sinogram: Tensor,  # (batch, 1, views, bins)
) -> tuple[Tensor, Tensor]:
    """The error of the offset in bins and its standard error, (batch,) each, float64."""
    y = without_baseline(sinogram[:, 0].double())
    if isinstance(geometry, FanBeam):
        return _full_circle(geometry, y, noise_std(sinogram.double()))
    return _regression(geometry, y)


def _regression(geometry: Geometry, y: Tensor) -> tuple[Tensor, Tensor]:
    """The standard error is that of the regression, from its own residuals."""
    positions = torch.from_numpy(geometry.bin_positions())
    totals = y.sum(2)
    mean = totals.mean(1, keepdim=True)
    least = 1e-9 * y.abs().sum((1, 2))[:, None] + 1e-300
    centres = (y @ positions) / torch.where(mean.abs() > least, mean, least)
    angles = torch.tensor(geometry.angles, dtype=torch.float64)
    design = torch.stack([torch.ones_like(angles), angles.cos(), angles.sin()], 1)
    inverse = torch.linalg.pinv(design.T @ design, hermitian=True)
    coefficients = centres @ design @ inverse
    left = (centres - coefficients @ design.T).square().sum(1) / (geometry.views - 3)
    # A ray at position b w + offset was measured where the true offset is larger by the constant of the regression,
    # negative.
    return -coefficients[:, 0] / geometry.bin_width, (left * inverse[0, 0]).sqrt() / geometry.bin_width


def _full_circle(geometry: FanBeam, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The standard error is that of white noise."""
    fan = torch.from_numpy(geometry.fan_angles())
    weight = fan.sin() * fan.cos() ** 3
    slope = (fan.cos() ** 4 - 3 * fan.sin() ** 2 * fan.cos() ** 2) * fan.cos() ** 2 / geometry.source_detector
    change = (y.sum(1) @ slope) * geometry.bin_width
    change = torch.where(change.abs() > 1e-300, change, 1e-300)
    error = noise * math.sqrt(geometry.views * float(weight.square().sum()))
    return -(y.sum(1) @ weight) / change, error / change.abs()
