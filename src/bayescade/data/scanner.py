"""A simulated scanner: its grid and bins, its errors of position, and what its detector does to the line integrals.

Gains, hardening and scatter act on attenuations p = m y: y are line integrals, and m is chosen so that the largest p of a
scan is `attenuation`. They are effective models, not spectra:

    hardening h   p -> p (1 - h p / max p): the largest attenuation loses the fraction h
    scatter s     e^-p -> e^-p + s (mean of 1 - e^-p over the view): light that the object took from the beam, evenly
    gain g        p -> p - g, for every view or for every bin

The order is: mean over the rays of a bin, hardening, scatter, noise, blur (of the noise too, which becomes correlated), gains,
dead bins. The errors of a scan depend on the seed and on its index only.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import conv1d, pad

from bayescade.errors import UserError
from bayescade.physics.geometry import LARGEST_ANGLE, Geometry
from bayescade.seeds import derived_seed

BLUR_REACH = 4  # the kernel of the blur ends at this many standard deviations


@dataclasses.dataclass(frozen=True)
class Scanner:
    """Settings of a simulated scanner; the defaults are those of the paper: an ideal scanner on the grid of the image."""

    grid_factor: int = 1  # the object has this many pixels per axis in a pixel of the image
    rays_per_bin: int = 1  # rays over the width of a bin whose mean is measured
    centre_error: float = 0.0  # standard deviation of the error of `offset`, in bins
    angle_error: float = 0.0  # standard deviation of the error of every angle, in degrees
    view_gain: float = 0.0  # standard deviation of the relative gain of every view
    bin_gain: float = 0.0  # standard deviation of the relative gain of every bin, the same in all views: rings
    dead_bins: int = 0  # most bins that are dead; their values are interpolated between their neighbours
    hardening: float = 0.0  # most hardening
    scatter: float = 0.0  # most scatter
    blur: float = 0.0  # largest standard deviation of the blur, in bins
    attenuation: float = 3.0  # the largest of a scan
    share: float = 1.0  # probability of each of these errors in a scan

    def __post_init__(self) -> None:
        for name, largest in (("grid_factor", 8), ("rays_per_bin", 16)):
            if not 1 <= getattr(self, name) <= largest:
                words = name.replace("_", " ")
                raise UserError(f"{words}: expected a whole number from 1 to {largest}, got {getattr(self, name)}")
        limits = {
            "centre_error": 100,
            "angle_error": 45,
            "view_gain": 1,
            "bin_gain": 1,
            "dead_bins": 1000,
            "hardening": 0.9,
            "scatter": 10,
            "blur": 100,
            "share": 1,
        }
        for name, limit in limits.items():
            if not 0 <= getattr(self, name) <= limit:
                raise UserError(f"setting {name}: expected a number from 0 to {limit}, got {getattr(self, name)}")
        if not 0 < self.attenuation <= 100:
            raise UserError(f"setting attenuation: expected a positive number up to 100, got {self.attenuation}")

    @property
    def has_errors(self) -> bool:
        """Whether a scan may have errors; the grid and the width of a bin are none."""
        positions = (self.centre_error, self.angle_error)
        effects = (self.view_gain, self.bin_gain, self.dead_bins, self.hardening, self.scatter, self.blur)
        return self.share > 0 and any((*positions, *effects))


@dataclasses.dataclass(frozen=True)
class ScanErrors:
    """The errors of one scan."""

    centre: float  # of the offset, in bins
    angles: NDArray[np.float64]  # (views,), radians
    view_gains: NDArray[np.float64]  # (views,)
    bin_gains: NDArray[np.float64]  # (bins,)
    dead: NDArray[np.int_]  # indices of bins
    hardening: float
    scatter: float
    blur: float  # in bins


def no_errors(geometry: Geometry) -> ScanErrors:
    """The errors of a perfect scanner."""
    views, bins = np.zeros(geometry.views), np.zeros(geometry.bins)
    return ScanErrors(0.0, views, views, bins, np.zeros(0, dtype=int), 0.0, 0.0, 0.0)


def draw_errors(scanner: Scanner, geometry: Geometry, seed: int, index: int) -> ScanErrors:
    """The errors of the scan with this index."""
    rng = np.random.default_rng(derived_seed(seed, "scanner", index))
    present = rng.random(8) < scanner.share
    amount = rng.random(3) * present[5:8]
    centre = rng.standard_normal() * present[0]
    dead_count = rng.integers(scanner.dead_bins + 1) * present[4]
    streams = rng.spawn(4)  # so that one error does not depend on how many numbers another one needs
    return ScanErrors(
        centre=scanner.centre_error * centre,
        angles=math.radians(scanner.angle_error) * present[1] * streams[0].standard_normal(geometry.views),
        view_gains=scanner.view_gain * present[2] * streams[1].standard_normal(geometry.views),
        bin_gains=scanner.bin_gain * present[3] * streams[2].standard_normal(geometry.bins),
        dead=np.sort(streams[3].choice(geometry.bins, min(dead_count, geometry.bins - 1), replace=False)),
        hardening=scanner.hardening * amount[0],
        scatter=scanner.scatter * amount[1],
        blur=scanner.blur * amount[2],
    )


def true_geometry(geometry: Geometry, scanner: Scanner, errors: ScanErrors | None = None) -> Geometry:
    """The rays that a scan with these errors measures: on the finer grid, `rays_per_bin` for every bin."""
    rays, factor = scanner.rays_per_bin, scanner.grid_factor
    changes: dict[str, Any] = {
        "bins": geometry.bins * rays,
        "bin_width": geometry.bin_width / rays,
        "pixel_size": geometry.pixel_size / factor,
        "image_shape": tuple(size * factor for size in geometry.image_shape),
    }
    if errors is not None:
        angles = np.asarray(geometry.angles) + errors.angles
        changes["angles"] = np.clip(angles, -LARGEST_ANGLE, LARGEST_ANGLE)
        changes["offset"] = geometry.offset + errors.centre * geometry.bin_width
    return dataclasses.replace(geometry, **changes)


def mean_over_bins(
    rays: Tensor,  # (..., views, bins rays_per_bin)
    scanner: Scanner,
) -> Tensor:
    """The means over the rays of every bin, (..., views, bins)."""
    count = scanner.rays_per_bin
    return rays.unflatten(-1, (rays.shape[-1] // count, count)).mean(-1) if count > 1 else rays


def before_noise(
    sinogram: Tensor,  # (1, views, bins): line integrals of one scan
    scanner: Scanner,
    errors: ScanErrors,
) -> Tensor:
    """The line integrals after hardening and scatter, of the same shape."""
    factor = attenuation_factor(sinogram, scanner)
    if factor == 0 or not (errors.hardening or errors.scatter):
        return sinogram
    p = sinogram * factor
    p = p * (1 - errors.hardening * p / scanner.attenuation)
    if errors.scatter:
        transmitted = torch.exp(-p)
        p = -torch.log(transmitted + errors.scatter * (1 - transmitted).mean(-1, keepdim=True))
    return p / factor


def after_noise(
    sinogram: Tensor,  # (1, views, bins), with noise
    scanner: Scanner,
    errors: ScanErrors,
) -> Tensor:
    """The line integrals after blur, gains and dead bins, of the same shape."""
    if errors.blur:
        sinogram = blurred(sinogram, errors.blur)
    factor = attenuation_factor(sinogram, scanner)
    if factor and (errors.view_gains.any() or errors.bin_gains.any()):
        gains = torch.from_numpy(errors.view_gains[:, None] + errors.bin_gains[None, :])
        sinogram = sinogram - (gains / factor).to(sinogram)
    return interpolated(sinogram, errors.dead) if len(errors.dead) else sinogram


def attenuation_factor(sinogram: Tensor, scanner: Scanner) -> float:
    """The factor m between attenuations and line integrals; 0 if no line integral is positive."""
    largest = float(sinogram.max())
    return scanner.attenuation / largest if largest > 0 else 0.0


def blurred(sinogram: Tensor, std: float) -> Tensor:
    """The sinogram blurred along its bins with a Gaussian kernel; the values beyond the detector are those at its ends."""
    reach = min(max(1, math.ceil(BLUR_REACH * std)), sinogram.shape[-1] - 1)
    steps = torch.arange(-reach, reach + 1, dtype=sinogram.dtype, device=sinogram.device)
    kernel = torch.exp(-0.5 * (steps / std) ** 2)
    views = sinogram.reshape(-1, 1, sinogram.shape[-1])
    out = conv1d(pad(views, (reach, reach), mode="replicate"), (kernel / kernel.sum()).reshape(1, 1, -1))
    return out.reshape(sinogram.shape)


def interpolated(sinogram: Tensor, dead: NDArray[np.int_]) -> Tensor:
    """The sinogram with the values of these bins interpolated linearly between the nearest other bins."""
    bins = sinogram.shape[-1]
    good = np.setdiff1d(np.arange(bins), dead)
    position = np.interp(dead, good, np.arange(len(good)))  # in the list of good bins
    left = np.floor(position).astype(int)
    right = np.minimum(left + 1, len(good) - 1)
    share = torch.from_numpy(position - left).to(sinogram)
    repaired = sinogram.clone()
    repaired[..., dead] = (1 - share) * sinogram[..., good[left]] + share * sinogram[..., good[right]]
    return repaired
