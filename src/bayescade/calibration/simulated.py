"""Simulated scans of one geometry and noise, as good as a good scanner makes them: for calibration and for tests of it."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bayescade.consistency.centre import STATED
from bayescade.consistency.moments import border_bins
from bayescade.data.noise import Noise
from bayescade.data.objects import measured_with_border
from bayescade.data.scanner import Scanner, draw_errors
from bayescade.data.simulate import scans_with_these_errors
from bayescade.data.sources import Source, image_source
from bayescade.physics.geometry import Geometry
from bayescade.projectors import ray_transform
from bayescade.seeds import derived_seed

FAMILIES = ("ellipses", "textured", "polygons", "lines", "inserts")
# A finer grid, bins that are areas, and a centre of rotation that is known as well as a stated one usually is.
CLEAN = Scanner(grid_factor=2, rays_per_bin=2, centre_error=STATED)
AT_ONCE = 10  # scans
LARGEST_STEPS = 4  # of the largest line integral: so many steps to a factor of 2
MORE_BORDER = 1  # bin beside the borders of the detector that is empty too: the centre is not exactly known
SCALE_FREE = ("gaussian",)  # noise models that do not depend on the units of the data


@dataclasses.dataclass(frozen=True)
class ScanKind:
    """Which scans are simulated."""

    geometry: Geometry
    noise: Noise
    # The largest line integral of every scan. Only for noise that depends on it: counted photons.
    largest: float | None = None
    scanner: Scanner = CLEAN

    @property
    def needs_scale(self) -> bool:
        """Whether the noise depends on the values of the data."""
        return self.noise.model not in SCALE_FREE


@dataclasses.dataclass(frozen=True)
class SimulatedScan:
    """One scan, its truth, and what was wrong with its centre."""

    sinogram: Tensor  # (1, 1, views, bins)
    truth: Tensor  # (1, 1, height, width)
    family: str
    shift: float  # bins: the true offset is larger than that of the geometry by this
    index: int


def simulated_scans(
    kind: ScanKind,
    count: int,
    *,
    seed: int,
    split: str,
    families: Sequence[str] = FAMILIES,  # in turn
    device: torch.device | str = "cpu",
) -> Iterator[SimulatedScan]:
    """The scans 0 to count - 1. Scan i depends on the seed, the split and on i only."""
    shape, factor = kind.geometry.image_shape, kind.scanner.grid_factor
    sources = {name: image_source(name, shape, seed=seed, split=split, device=device) for name in families}
    scan_seed = derived_seed(seed, split, "scans")
    border = border_bins(kind.geometry.bins) + MORE_BORDER
    for first in range(0, count, AT_ONCE):
        indices = range(first, min(first + AT_ONCE, count))
        images = torch.cat([one_image(sources, families, index, factor) for index in indices])
        images = scaled(measured_with_border(images, kind.geometry, border), kind)
        geometries = [kind.geometry] * len(images)
        errors = [draw_errors(kind.scanner, kind.geometry, scan_seed, index) for index in indices]
        scans = scans_with_these_errors(images, geometries, kind.scanner, errors, kind.noise, scan_seed, indices)
        for number, index in enumerate(indices):
            part = slice(number, number + 1)
            family = families[index % len(families)]
            yield SimulatedScan(scans.sinogram[part], scans.truth[part], family, float(errors[number].centre), index)


def one_image(sources: dict[str, Source], families: Sequence[str], index: int, factor: int) -> Tensor:
    """The image of a scan: the families take turns."""
    return sources[families[index % len(families)]].images(index // len(families), 1, factor)


def scaled(images: Tensor, kind: ScanKind) -> Tensor:
    """The images with values for which the largest line integral is that of the kind, if the noise depends on it."""
    if not kind.needs_scale or kind.largest is None:
        return images
    largest = largest_integrals(images, kind.geometry).clamp_min(1e-30)
    stated = 2 ** (steps_of(kind.largest) / LARGEST_STEPS)  # kinds that share a calibration have the same scans
    return images * (stated / largest).reshape(-1, 1, 1, 1)


def steps_of(largest: float) -> int:
    """The largest line integral in steps of a fourth of an octave."""
    return round(LARGEST_STEPS * math.log2(largest))


def largest_integrals(
    images: Tensor,  # (count, 1, height f, width f)
    geometry: Geometry,
) -> Tensor:
    """The largest line integral of every image on a finer grid, (count,)."""
    coarse = torch.nn.functional.avg_pool2d(images, images.shape[-1] // geometry.image_shape[-1])
    return ray_transform(geometry, images.device)(coarse).amax((1, 2, 3))
