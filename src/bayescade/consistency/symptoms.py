"""Symptoms: numbers that are large where a scan has a certain fault, from the data alone.

| symptom | large where |
|---|---|
| `angles` | changes of the angles of the views explain more of the data than noise would |
| `hardening` | large values are too small, compared with what an object can give: hardening or scatter |
| `gain` | the borders of the detector differ from view to view: the intensity of the source drifts |
| `background` | the borders are not zero in most views |
| `truncation` | the borders see the object in some views: it is larger than the detector |
| `rings` | the borders differ more from bin to bin than from view to view |
| `correlated` | the borders differ less from bin to bin than from view to view: blurred noise |
| `stripes` | a bin differs from its neighbours in most views |
| `dead` | a bin is constant, or the mean of its neighbours, in most views |
| `noise` | there is more or less noise than the scan file states |

The first two are from the fit of a random object (`field`). They are no tests yet: how large is too large is known from
clean simulated scans of the same geometry (`p_values`).
"""

import torch
from torch import Tensor

from bayescade.consistency.centre_fit import hardening_column, shifted
from bayescade.consistency.field import FieldFit, ObjectField
from bayescade.consistency.moments import border_bins

TINY = 1e-12
FLAT = 1e-4  # second differences below this part of the noise are those of bins that were not measured
VIEWS_FLAT = 0.5  # of the views, from which a bin counts as dead
LARGEST_VALUE = 0.999  # this quantile of all values is the largest value
MIDDLE = 0.25  # of the half detector around the centre, where the object itself may look like a stripe
LEAST_TRUNCATION = 0.02  # of the largest value: borders below this are no truncation
MEDIAN_ERROR = 1.2533  # standard error of a median relative to that of a mean, for normal numbers
NORMAL_MEDIAN = 0.6745  # of the absolute value of a standard normal number
SQUARE_MEDIAN = 0.4549  # of the square of a standard normal number


def symptoms(
    field: ObjectField,
    sinogram: Tensor,  # (batch, 1, views, bins)
    shift: Tensor,  # (batch,): errors of the offset, in bins (`centre`)
    noise: Tensor,  # (batch,): estimated standard deviation of the noise
    stated: Tensor | None = None,  # (batch,): the same as the scan file states it, if it does
) -> dict[str, Tensor]:
    """All symptoms of every scan, (batch,) each, float64."""
    borders = Borders(sinogram)
    found = {**field_symptoms(field, sinogram, shift), **borders.symptoms(), **bin_symptoms(sinogram, noise)}
    if stated is not None:
        found["noise"] = (borders.noise / stated.double().clamp_min(TINY)).log().abs()
    return found


def field_symptoms(field: ObjectField, sinogram: Tensor, shift: Tensor) -> dict[str, Tensor]:
    """Symptoms from the fit of a random object to the data with the right centre."""
    y = sinogram.double() / sinogram.double().abs().mean((1, 2, 3), keepdim=True).clamp_min(TINY)
    fit = field.fit(field.coarse(shifted(y, shift)))
    bent = field.effect(fit, hardening_column(field, fit, fit.data.amax(1).clamp_min(TINY)))
    return {
        "angles": explained(field, fit, field.angle_columns(fit)).log(),
        "hardening": -bent.value[:, 0] / bent.std[:, 0].clamp_min(TINY),
    }


def explained(
    field: ObjectField,
    fit: FieldFit,
    columns: Tensor,  # (batch, faults, rays)
) -> Tensor:
    """The median over the columns of what each alone explains, relative to what noise gives; about 1 without a fault,
    (batch,).

    The level of the noise is that of the data without all these effects: a fault would raise it.
    """
    together = field.effect(fit, columns)
    level, _ = field.levels(fit.data - (together.value[:, :, None] * columns).sum(1))
    precise = field.precise(columns, fit.ratio)
    information = (precise * columns).sum(2).clamp_min(TINY)
    score = (precise * fit.data[:, None]).sum(2).square() / level[:, None]
    return ((score / information).median(1).values / SQUARE_MEDIAN).clamp_min(TINY)


class Borders:
    """The ends of the detector, which should see nothing but noise."""

    def __init__(self, sinogram: Tensor):
        y = sinogram[:, 0].double()
        width = border_bins(y.shape[-1])
        self.largest = largest_values(y)
        ends = torch.stack([y[..., :width], y[..., -width:]], 1)  # (batch, 2, views, width)
        self.means = ends.mean(-1)  # (batch, 2, views)
        wide = max(6, 2 * width)
        ends = torch.stack([y[..., :wide], y[..., -wide:]], 1)
        ends = ends - ends.mean(-1, keepdim=True)  # without what all bins of a view have in common
        self.noise = second_difference_std(ends, 2) / (1 - 1 / wide) ** 0.5
        self.bin_noise = second_difference_std(ends, 3)
        self.mean_error = self.noise / width**0.5

    def symptoms(self) -> dict[str, Tensor]:
        """Symptoms of the borders, (batch,) each."""
        typical = self.means.flatten(1).median(1).values
        drift = second_difference_std(self.means[..., None], 2)
        ratio = (self.bin_noise.clamp_min(TINY) / self.noise).log()
        beside = self.means.flatten(1) - typical[:, None].clamp_min(0)
        # Drift and noise give high and low values, an object at a few borders high ones only. Where most borders see it,
        # the two ends of a view differ, which a constant of the view does not make them do.
        high, low = beside.quantile(0.9, 1), beside.quantile(0.1, 1).clamp_max(0)
        ends_differ = self.means.diff(dim=1)[:, 0].abs().quantile(0.9, 1)
        seen = torch.maximum(high + low, ends_differ) / self.largest
        return {
            "gain": (drift / self.mean_error).clamp_min(TINY).log(),
            "background": (typical.abs() / self.largest).clamp_min(1e-6).log(),
            "truncation": seen.clamp_min(LEAST_TRUNCATION).log(),
            "rings": ratio,
            "correlated": -ratio,
        }


def second_difference_std(
    values: Tensor,  # (batch, 2, views, width)
    axis: int,
) -> Tensor:
    """The standard deviation of white noise from second differences along an axis, (batch,); robust against the object."""
    if values.shape[axis] < 3:
        return torch.full((len(values),), TINY, dtype=values.dtype)
    differences = values.diff(n=2, dim=axis).abs().flatten(1)
    return (differences.median(1).values / (NORMAL_MEDIAN * 6**0.5)).clamp_min(TINY)


def largest_values(y: Tensor) -> Tensor:
    """The largest value of every sinogram (batch, views, bins), without single bright rays, (batch,)."""
    flat = y.flatten(1)
    count = max(1, round((1 - LARGEST_VALUE) * flat.shape[1]))
    return flat.topk(count, 1).values[:, -1].clamp_min(TINY)


def bin_symptoms(sinogram: Tensor, noise: Tensor) -> dict[str, Tensor]:
    """Symptoms of single bins, the same in most views."""
    y = sinogram[:, 0].double()
    noise = noise.double().clamp_min(TINY)
    bent = y[..., 2:] - 2 * y[..., 1:-1] + y[..., :-2]
    error = 6**0.5 * MEDIAN_ERROR * noise[:, None] / y.shape[1] ** 0.5
    steady = (bent.median(1).values / error).abs()
    position = torch.linspace(-1, 1, bent.shape[-1], dtype=y.dtype).abs()
    steady = torch.where(position > MIDDLE, steady, 0.0)
    unmeasured = (bent.abs() < FLAT * noise[:, None, None]) | (y[..., 1:-1].diff(dim=1, prepend=y[:, -1:, 1:-1]) == 0)
    dead = (unmeasured.double().mean(1) > VIEWS_FLAT).sum(1)
    return {"stripes": steady.amax(1).clamp_min(TINY).log(), "dead": dead.double()}
