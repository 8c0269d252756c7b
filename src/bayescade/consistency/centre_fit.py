"""The centre of rotation by a joint fit of object, constants of the views and centre (`field`), for every geometry.

The data are shifted along the bins to the present estimate, the object is fitted, and the offset that is left is estimated
from the derivative of the fitted data: a Gauss-Newton iteration. Beam hardening, which bends large values downwards, would
look like a shift of objects that are not symmetric; where it is certain, it is estimated and undone too.
"""

import dataclasses
import math

import torch
from torch import Tensor

from bayescade.consistency.field import FieldFit, ObjectField

REACH, STEP = 3.0, 0.5  # bins: the first search
MOST_REACH = 0.1  # of the detector: the search is widened while the best shift is at its end
FIRST_RATIO = 1e4  # r of the first search
LONGEST_STEP = 0.6  # bins, of one iteration
ITERATIONS, CLOSE = 6, 1e-4
CERTAIN = 5.0  # standard errors from which hardening is undone
MOST_HARDENING = 0.45  # of the largest value, which loses at most half of its value


@dataclasses.dataclass(frozen=True)
class CentreFit:
    """Centres of a batch of scans: the true offset is `geometry.offset` + `shift` bins."""

    shift: Tensor  # (batch,) bins, float64
    std: Tensor  # (batch,) standard errors, in bins
    hardening: Tensor  # (batch,): the largest value loses this fraction; 0 where hardening is not certain
    fit: FieldFit  # of the corrected data


def fit_centre(field: ObjectField, sinogram: Tensor) -> CentreFit:
    """The centre of every scan of a batch, (batch, 1, views, bins)."""
    y = sinogram.double() / sinogram.double().abs().mean((1, 2, 3), keepdim=True).clamp_min(1e-30)
    largest = y.amax((1, 2, 3)).clamp_min(1e-30)
    shift = first_search(field, y)
    hardening = torch.zeros_like(shift)
    for _ in range(ITERATIONS):
        fit = field.fit(field.coarse(shifted(without_hardening(y, hardening, largest), shift)))
        offset, tilt = field.offset_column(fit), tilt_column(field, len(y))
        columns = torch.cat([offset, tilt, hardening_column(field, fit, largest)], 1)
        with_hardening = field.effect(fit, columns)
        without = field.effect(fit, columns[:, :2])
        certain = (hardening > 0) | (-with_hardening.value[:, 2] > CERTAIN * with_hardening.std[:, 2])
        step = torch.where(certain, with_hardening.value[:, 0], without.value[:, 0]).clamp(-LONGEST_STEP, LONGEST_STEP)
        std = torch.where(certain, with_hardening.std[:, 0], without.std[:, 0])
        shift = shift + step
        change = torch.where(certain, -with_hardening.value[:, 2], 0.0)
        hardening = (hardening + change).clamp(0, MOST_HARDENING)
        if bool((step.abs() < CLOSE).all()) and bool((change.abs() < CLOSE).all()):
            break
    return CentreFit(shift, std, hardening, fit)


def first_search(field: ObjectField, y: Tensor) -> Tensor:
    """The shift on a grid, (batch,), with the smallest w' K^-1 w."""
    reach = REACH
    while True:
        shifts = torch.arange(-reach, reach + STEP / 2, STEP, dtype=torch.float64)
        ratio = torch.full((len(y),), FIRST_RATIO, dtype=torch.float64)
        values = []
        for shift in shifts.tolist():
            data = field.coarse(shifted(y, torch.full((len(y),), shift, dtype=torch.float64)))
            values.append((data * field.precise(data, ratio)).sum(1) / data.square().sum(1).clamp_min(1e-30))
        best = shifts[torch.stack(values).argmin(0)]
        if float(best.abs().max()) < reach or 2 * reach > MOST_REACH * y.shape[-1]:
            return best
        reach *= 2


def hardening_column(field: ObjectField, fit: FieldFit, largest: Tensor) -> Tensor:
    """The change of the data by hardening 1: p -> p + p^2 / max p, (batch, 1, rays)."""
    return (field.predicted(fit).square() / largest[:, None])[:, None]


def tilt_column(field: ObjectField, batch: int) -> Tensor:
    """A line along the bins, the same in all views, (batch, 1, rays)."""
    line = torch.linspace(-1, 1, field.bins, dtype=torch.float64)
    return line.repeat(batch, 1, field.views)


def without_hardening(
    y: Tensor,  # (batch, 1, views, bins)
    hardening: Tensor,  # (batch,) h
    largest: Tensor,  # (batch,)
) -> Tensor:
    """The values p with y = p (1 - h p / max p), for values up to the largest of the scan; y where h is 0."""
    h = hardening.reshape(-1, 1, 1, 1).clamp_min(1e-9)
    unit = (largest / (1 - hardening)).reshape(-1, 1, 1, 1)  # max p
    root = (1 - 4 * h * y.clamp_min(0) / unit).clamp_min(0).sqrt()
    undone = torch.where(y > 0, (1 - root) * unit / (2 * h), y)
    return torch.where(hardening.reshape(-1, 1, 1, 1) > 0, undone, y)


def shifted(
    y: Tensor,  # (batch, 1, views, bins)
    shift: Tensor,  # (batch,) bins
) -> Tensor:
    """The data of the scans with their offsets made right: values at b - shift of trigonometric interpolation.

    A scan whose true offset is larger by `shift` bins has measured at position b + shift what its geometry gives to b.
    Beyond the ends of the detector the data go on in a straight line to its other end.
    """
    bins = y.shape[-1]
    line = torch.linspace(0, 1, bins, dtype=y.dtype, device=y.device)
    periodic = torch.cat([y, y[..., -1:] + (y[..., :1] - y[..., -1:]) * line], -1)
    frequency = torch.arange(bins + 1, dtype=y.dtype, device=y.device) * (math.pi / bins)
    phase = torch.polar(torch.ones_like(frequency), frequency * -shift.to(y).reshape(-1, 1, 1, 1))
    return torch.fft.irfft(torch.fft.rfft(periodic) * phase, n=2 * bins)[..., :bins]
