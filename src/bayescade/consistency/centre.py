"""The centre of rotation of a scan and how sure it is: by moments where they apply, by a joint fit of an object, and as
stated.

Both methods give a standard error. How far it is right depends on the geometry (a limited arc hardly tells a wrong centre
from a moved object), so errors are multiplied by the root mean square of (error / standard error) over clean simulated
scans of the same geometry (`CentreErrors`). The method with the smaller error is used, the other one is the check: where
the two differ by DISAGREE standard errors, the centre is unknown.

The offset in the geometry of a scan is a measurement too, with standard deviation STATED. It is combined with the estimate
by the usual weights, unless the two contradict each other: then the estimate alone counts, and the stated centre is wrong.
"""

import dataclasses
import math

import torch
from torch import Tensor

from bayescade.consistency.centre_fit import CentreFit, fit_centre
from bayescade.consistency.field import ObjectField
from bayescade.consistency.moments import centre_by_moments, moments_apply

FIT, MOMENTS = "fit", "moments"
STATED = 0.1  # bins: standard deviation of the error of a stated centre
DISAGREE = 3.0  # standard errors between the methods
CONTRADICTS = 4.0  # standard errors between estimate and stated centre
LEAST_STD = 1e-3  # bins
WIDE = 0.5  # bins: least standard deviation of an unknown centre
LEAST_SCANS = 5


@dataclasses.dataclass(frozen=True)
class CentreErrors:
    """By how much the standard errors of each method are multiplied; 1.5 and 1.2 are usual for full arcs."""

    factors: dict[str, float] = dataclasses.field(default_factory=lambda: {FIT: 1.5, MOMENTS: 1.2})


@dataclasses.dataclass(frozen=True)
class Centre:
    """The centres of a batch of scans, in bins relative to the stated offset; float64."""

    shift: Tensor  # (batch,): the true offset is `geometry.offset` + `shift` bins
    std: Tensor  # (batch,)
    estimate: Tensor  # (batch,): from the data alone
    estimate_std: Tensor  # (batch,)
    known: Tensor  # (batch,) bool: the methods agree
    distance: Tensor  # (batch,) bins: between the methods; 0 where only one applies
    stated_is_wrong: Tensor  # (batch,) bool: data and stated centre contradict each other
    fitted: CentreFit


def centre_errors(
    field: ObjectField,
    sinogram: Tensor,  # (batch, 1, views, bins): clean simulated scans of the geometry
    true_shift: Tensor,  # (batch,): their errors of the offset, in bins
) -> CentreErrors:
    """The factors of a geometry: the root mean square of error / standard error over the scans, at least 1."""
    if len(sinogram) < LEAST_SCANS:
        raise ValueError(f"expected at least {LEAST_SCANS} scans, got {len(sinogram)}")
    factors = {}
    for name, (shift, std, _) in estimates(field, sinogram).items():
        squares = ((shift - true_shift) / std.clamp_min(LEAST_STD)).square()
        factors[name] = max(1.0, math.sqrt(float(squares.mean())))
    return CentreErrors(factors)


def estimates(field: ObjectField, sinogram: Tensor) -> dict[str, tuple[Tensor, Tensor, CentreFit | None]]:
    """Shift, standard error and fit of every method that applies."""
    fitted = fit_centre(field, sinogram)
    found: dict[str, tuple[Tensor, Tensor, CentreFit | None]] = {FIT: (fitted.shift, fitted.std, fitted)}
    if moments_apply(field.geometry):
        found[MOMENTS] = (*centre_by_moments(field.geometry, sinogram), None)
    return found


def find_centre(
    field: ObjectField,
    sinogram: Tensor,  # (batch, 1, views, bins)
    errors: CentreErrors,
    *,
    stated_std: float = STATED,  # bins; infinite: the stated centre counts for nothing
    truncated: Tensor | None = None,  # (batch,) bool: scans in which moments are wrong
) -> Centre:
    """The centres of scans of the field's geometry."""
    by_method = estimates(field, sinogram)
    shifts = {name: values[0] for name, values in by_method.items()}
    stds = {
        name: values[1].clamp_min(LEAST_STD) * errors.factors.get(name, math.inf) for name, values in by_method.items()
    }
    if truncated is not None and MOMENTS in stds:
        stds[MOMENTS] = torch.where(truncated, math.inf, stds[MOMENTS])
    shift, std = shifts[FIT], stds[FIT]
    known, distance = torch.ones_like(shift, dtype=torch.bool), torch.zeros_like(shift)
    if MOMENTS in shifts:
        distance = (shift - shifts[MOMENTS]).abs()
        known = ~(distance > DISAGREE * torch.hypot(std, stds[MOMENTS]))
        better = stds[MOMENTS] < std
        shift, std = torch.where(better, shifts[MOMENTS], shift), torch.where(better, stds[MOMENTS], std)
        std = torch.where(known, std, torch.maximum(distance, std).clamp_min(WIDE))
    contradicts = shift.abs() > CONTRADICTS * torch.sqrt(std**2 + stated_std**2)
    weight = torch.where(contradicts, 1.0, 1 / (1 + std**2 / stated_std**2))  # of the estimate
    fitted = by_method[FIT][2]
    assert fitted is not None
    return Centre(
        shift=weight * shift,
        std=torch.where(contradicts | ~known, std, weight.sqrt() * std),
        estimate=shift,
        estimate_std=std,
        known=known,
        distance=distance,
        stated_is_wrong=contradicts & known,
        fitted=fitted,
    )
