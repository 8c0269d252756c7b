"""Scans of many geometries for training: every object has a scan of its own."""

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bayescade.data.noise import Noise
from bayescade.data.objects import seen_whole
from bayescade.data.random_scans import RandomScans
from bayescade.data.scanner import Scanner
from bayescade.data.simulate import scans_with_errors
from bayescade.data.sources import Source
from bayescade.physics.geometry import Geometry

# The errors of a good scanner after its calibration; each is in one of five scans.
SMALL_ERRORS = Scanner(
    grid_factor=2,
    rays_per_bin=2,
    centre_error=0.05,
    angle_error=0.05,
    view_gain=0.003,
    bin_gain=0.001,
    dead_bins=2,
    hardening=0.05,
    scatter=0.03,
    blur=0.7,
    share=0.2,
)
GROUP = 256  # scans that are projected together, at most
BLOCK_PIXELS = 2**26  # of the objects that are in memory at once


@dataclasses.dataclass(frozen=True)
class ScanSettings:
    """What a model for any scan is trained on, and what its blocks see of a scan."""

    planes: str = (
        "level, filtered-residual, noise, coverage"  # inputs of a block beside the gradient (`projectors.any_scan`)
    )
    tv_iterations: int = 150  # of total variation, which give the first image; 0: the first image is FBP
    scanner: Scanner = SMALL_ERRORS
    geometries: RandomScans = dataclasses.field(default_factory=RandomScans)


@dataclasses.dataclass(frozen=True)
class ScanGroup:
    """Scans of different geometries."""

    geometries: list[Geometry]  # one for each scan
    sinogram: Tensor  # (scans, 1, views, bins), padded with zeros
    truth: Tensor  # (scans, 1, height, width)


def scan_groups(
    source: Source,
    geometries: Sequence[Geometry],  # with one image shape: geometry i for image i
    scanner: Scanner,
    noise: Noise,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    group: int = GROUP,
) -> Iterator[ScanGroup]:
    """The scans of the first objects of the source, one for each geometry, in groups.

    What no view sees whole is cut off: there is nothing outside the circle that the detector covers.
    """
    factor = scanner.grid_factor
    pixels = geometries[0].image_shape[0] * geometries[0].image_shape[1] * factor**2
    block = max(group, BLOCK_PIXELS // pixels // group * group)
    for first in range(0, len(geometries), block):
        of_block = geometries[first : first + block]
        objects = source.images(first, len(of_block), factor).to(device)
        objects = seen_whole(objects, of_block)
        for begin in range(0, len(of_block), group):
            chosen = of_block[begin : begin + group]
            indices = range(first + begin, first + begin + len(chosen))
            scans = scans_with_errors(objects[begin : begin + group], chosen, scanner, noise, seed, indices)
            yield ScanGroup(list(chosen), scans.sinogram, scans.truth)
