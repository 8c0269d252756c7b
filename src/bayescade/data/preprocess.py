"""From measured data to line integrals: flat and dark fields, logarithm, fewer bins, fewer views, centre of rotation.

Every function returns new values. Where bins or views change, the geometry changes with them. The order of a typical scan:

    transmission = flat_and_dark(counts, flats, darks)
    sinogram = minus_log(transmission).sinogram
    sinogram, geometry = average_bins(sinogram, with_centre(geometry, 296.0), 4)

The mean of line integrals is what the projectors compute for a wider bin. With few photons (below about 100 in a bin) the
logarithm of a noisy number is too large on average: then average the transmission first.
"""

import dataclasses
import math
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry

AnyGeometry = TypeVar("AnyGeometry", bound=Geometry)

LARGEST_STEP = math.pi / 2  # radians: views of one group that are farther apart are not neighbours


@dataclasses.dataclass(frozen=True)
class LineIntegrals:
    """Line integrals, and how many of them come from replaced values."""

    sinogram: Tensor  # (..., views, bins)
    replaced: int  # number of rays whose transmission was zero or negative


def flat_and_dark(
    counts: Tensor,  # (..., views, bins), as measured
    flats: Tensor,  # (bins,) or (..., number, bins): without the object
    darks: Tensor,  # (bins,) or (..., number, bins): without the beam
) -> Tensor:
    """The transmission (counts - dark) / (flat - dark), with the means over all flats and all darks, (..., views, bins)."""
    if counts.ndim < 2:
        raise UserError(f"counts: expected shape (..., views, bins), got {tuple(counts.shape)}")
    counts, flat, dark = _floats("counts", counts), _field("flats", flats, counts), _field("darks", darks, counts)
    beam = flat - dark
    bad = (beam <= 0).flatten(0, -2).any(0)  # (bins,)
    if bad.any():
        raise UserError(
            f"flats: expected more than the darks in every bin, got {int(bad.sum())} of {len(bad)} bins with as much or less, "
            f"the first is bin {int(bad.nonzero()[0, 0])}; check that flats and darks are not exchanged, and replace or cut "
            "off dead bins in counts, flats and darks"
        )
    return (counts - dark) / beam


def minus_log(
    transmission: Tensor,  # (..., views, bins)
) -> LineIntegrals:
    """The line integrals -ln(transmission).

    Zero and negative values have no logarithm: they are replaced by the smallest positive value of the same sinogram.
    """
    transmission = _floats("transmission", transmission)
    if transmission.ndim < 2:
        raise UserError(f"transmission: expected shape (..., views, bins), got {tuple(transmission.shape)}")
    positive = transmission > 0
    smallest = torch.where(positive, transmission, torch.inf).amin((-2, -1), keepdim=True)
    if not torch.isfinite(smallest).all():
        raise UserError(
            "transmission: expected positive values, got a sinogram without any; give counts that are divided by the flats, "
            "as flat_and_dark does, before the logarithm"
        )
    sinogram = -torch.where(positive, transmission, smallest).log()
    return LineIntegrals(sinogram, int(positive.numel() - positive.sum()))


def average_bins(
    sinogram: Tensor,  # (..., views, bins)
    geometry: AnyGeometry,
    factor: int,
) -> tuple[Tensor, AnyGeometry]:
    """Means over groups of `factor` neighbouring bins, and their geometry.

    Bins at the end that do not fill a group are dropped. With B = groups `factor` bins of the N that there were, the middle of
    the bins moves by -(N - B) / 2 bins, and so does the offset.
    """
    _check_sinogram(sinogram, geometry)
    groups = _groups("bins", geometry.bins, factor)
    used = groups * factor
    means = _floats("sinogram", sinogram[..., :used]).unflatten(-1, (groups, factor)).mean(-1)
    return means, dataclasses.replace(
        geometry,
        bins=groups,
        bin_width=geometry.bin_width * factor,
        offset=geometry.offset - (geometry.bins - used) / 2 * geometry.bin_width,
    )


def average_views(
    sinogram: Tensor,  # (..., views, bins)
    geometry: AnyGeometry,
    factor: int,
) -> tuple[Tensor, AnyGeometry]:
    """Means over groups of `factor` consecutive views, at the means of their angles.

    Views at the end that do not fill a group are dropped. A group may cross 2 pi: the mean of 359 and 1 degrees is 360 degrees.
    """
    _check_sinogram(sinogram, geometry)
    groups = _groups("views", geometry.views, factor)
    angles = np.unwrap(np.reshape(geometry.angles[: groups * factor], (groups, factor)), axis=1)
    step = float(abs(np.diff(angles, axis=1)).max(initial=0.0))
    if step > LARGEST_STEP:
        raise UserError(
            f"angles: expected consecutive views that are neighbours, got views {math.degrees(step):.0f} degrees apart in one "
            "group; sort the views by their angles first, and do not take angles modulo 180 degrees"
        )
    means = _floats("sinogram", sinogram[..., : groups * factor, :]).unflatten(-2, (groups, factor)).mean(-2)
    return means, dataclasses.replace(geometry, angles=tuple(angles.mean(1).tolist()))


def every_view(
    sinogram: Tensor,  # (..., views, bins)
    geometry: AnyGeometry,
    step: int,
    first: int = 0,  # 0 to step - 1
) -> tuple[Tensor, AnyGeometry]:
    """The views `first`, `first` + `step`, `first` + 2 `step`, ... and their geometry."""
    _check_sinogram(sinogram, geometry)
    return _views(sinogram, geometry, _every(geometry.views, step, first))


def other_views(
    sinogram: Tensor,  # (..., views, bins)
    geometry: AnyGeometry,
    step: int,
    first: int = 0,  # 0 to step - 1
) -> tuple[Tensor, AnyGeometry]:
    """The views that `every_view` leaves out, in their order, and their geometry."""
    _check_sinogram(sinogram, geometry)
    chosen = set(_every(geometry.views, step, first))
    others = [view for view in range(geometry.views) if view not in chosen]
    if not others:
        raise UserError(
            f"step: expected views to be left out, but step {step} takes all {geometry.views}; use 2 or more"
        )
    return _views(sinogram, geometry, others)


def with_centre(
    geometry: AnyGeometry,
    bin_position: float,  # of the centre of rotation on the detector; 0 is the middle of the first bin
) -> AnyGeometry:
    """The geometry whose centre of rotation is projected to this bin position, which may be between two bins."""
    if not math.isfinite(bin_position):
        raise UserError(f"bin_position: expected a finite number, got {bin_position}")
    return dataclasses.replace(geometry, offset=((geometry.bins - 1) / 2 - bin_position) * geometry.bin_width)


def _views(sinogram: Tensor, geometry: AnyGeometry, views: list[int]) -> tuple[Tensor, AnyGeometry]:
    index = torch.tensor(views, device=sinogram.device)
    angles = tuple(geometry.angles[view] for view in views)
    return sinogram.index_select(-2, index), dataclasses.replace(geometry, angles=angles)


def _every(views: int, step: int, first: int) -> list[int]:
    if step < 1:
        raise UserError(f"step: expected 1 or more, got {step}")
    if not 0 <= first < min(step, views):
        raise UserError(f"first: expected a view from 0 to {min(step, views) - 1} for step {step}, got {first}")
    return list(range(first, views, step))


def _groups(name: str, count: int, factor: int) -> int:
    """How many groups of `factor` there are."""
    if not isinstance(factor, int) or not 1 <= factor <= count:
        raise UserError(f"factor: expected a whole number from 1 to {count}, the number of {name}, got {factor}")
    return count // factor


def _check_sinogram(sinogram: Tensor, geometry: Geometry) -> None:
    if tuple(sinogram.shape[-2:]) != geometry.sinogram_shape:
        raise UserError(
            f"sinogram: expected shape (..., views, bins) with {geometry.views} views and {geometry.bins} bins, as in the "
            f"geometry, got {tuple(sinogram.shape)}"
        )


def _field(name: str, field: Tensor, counts: Tensor) -> Tensor:
    """The mean over all flats or all darks, (..., 1, bins)."""
    field = _floats(name, field)
    field = field[None] if field.ndim == 1 else field
    shape = tuple(counts.shape[:-2])
    if field.ndim < 2 or field.shape[-1] != counts.shape[-1] or tuple(field.shape[:-2]) not in ((), shape):
        text = "".join(f"{size}, " for size in shape)
        raise UserError(
            f"{name}: expected shape ({counts.shape[-1]},), (number, {counts.shape[-1]}) or ({text}number, {counts.shape[-1]}) "
            f"to match counts of shape {tuple(counts.shape)}, got {tuple(field.shape)}; the bins are the last axis"
        )
    if field.shape[-2] == 0:
        raise UserError(f"{name}: expected at least one, got none")
    return field.mean(-2, keepdim=True).to(counts.device)


def _floats(name: str, values: Tensor) -> Tensor:
    """Floating-point numbers, all finite."""
    if values.is_complex() or values.dtype == torch.bool:
        raise UserError(f"{name}: expected real numbers, got {values.dtype}")
    values = values if values.is_floating_point() else values.to(torch.float32)
    if not torch.isfinite(values).all():
        raise UserError(
            f"{name}: expected finite numbers, got {int((~torch.isfinite(values)).sum())} that are NaN or infinite; replace or "
            "remove them"
        )
    return values
