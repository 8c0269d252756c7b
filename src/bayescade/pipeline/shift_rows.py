"""The rows of `bayescade benchmark shift`: scans with a fault, or of objects that no model of ours was trained on.

A row says how its scans differ from clean ones (simulated on a grid of 2 x 2 pixels for every pixel, 1 % Gaussian noise,
which the file states), and which warning would name the fault. `SEALED` rows are of kinds that nothing was chosen on: they
are run once, at the end.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescade.data.noise import Noise, common_noise
from bayescade.data.scanner import ScanErrors, blurred, no_errors
from bayescade.physics.geometry import Geometry
from bayescade.projectors import ray_transform
from bayescade.seeds import derived_seed

PATIENTS = "patients"
FINE = 2  # pixels per axis of the simulation for every pixel
RAYS = 2  # over the width of a bin
ATTENUATION = 3.0  # of the largest line integral, for effects that depend on it
Random = np.random.Generator
Errors = Callable[[Geometry, Random], ScanErrors]


@dataclasses.dataclass(frozen=True)
class Shift:
    """One row."""

    name: str
    kind: str  # the kind of fault: rows of one kind stand together
    objects: str = "ellipses"  # a phantom, or `patients`: images of a file
    grid: int = FINE
    noise: float = 0.01  # relative to the mean of the sinogram; the file states 0.01
    photons: float | None = None  # counted photons instead, which the file states
    errors: Errors | None = None  # of the scanner
    change: Callable[[Tensor, Geometry, Random], Tensor] | None = None  # of the sinogram (1, 1, views, bins) at the end
    objects_change: Callable[[Tensor, Random], Tensor] | None = None  # of the object (1, 1, height, width)
    narrow: float = 1.0  # the detector has this part of its bins
    causes: tuple[str, ...] = ()  # warnings that name the fault; empty: there is none

    def stated(self, geometry: Geometry) -> Geometry:
        """The geometry that the file states: the detector may be narrower than the object."""
        if self.narrow == 1:
            return geometry
        bins = round(self.narrow * geometry.bins / 2) * 2 + geometry.bins % 2
        return dataclasses.replace(geometry, bins=bins)

    def scan_noise(self, largest: float) -> Noise:
        """The noise of the scans; `largest` is their largest line integral."""
        return (
            common_noise(self.noise) if self.photons is None else common_noise(0.0, self.photons, ATTENUATION / largest)
        )

    def stated_noise(self, largest: float) -> Noise:
        """The noise that the file states."""
        return common_noise(0.01) if self.photons is None else self.scan_noise(largest)

    def generator(self, seed: int, index: int) -> Random:
        """The random numbers of the fault of a scan."""
        return np.random.default_rng(derived_seed(seed, "shift", self.name, index))


def fault(**values: Callable[[Geometry, Random], Any]) -> Errors:
    """An otherwise perfect scanner with these errors, which may be random."""
    return lambda geometry, rng: dataclasses.replace(
        no_errors(geometry), **{name: value(geometry, rng) for name, value in values.items()}
    )


def centre(bins: float) -> Errors:
    """A centre that is wrong by so many bins, to either side."""
    return fault(centre=lambda geometry, rng: bins * rng.choice((-1, 1)))


def angles(degrees: float) -> Errors:
    """Angles with independent errors."""
    return fault(angles=lambda geometry, rng: math.radians(degrees) * rng.standard_normal(geometry.views))


def twice_the_arc() -> Errors:
    """Views over twice the stated arc."""
    return fault(angles=lambda geometry, rng: np.asarray(geometry.angles))


def gains(std: float) -> Errors:
    """Views with independent gains."""
    return fault(view_gains=lambda geometry, rng: std * rng.standard_normal(geometry.views))


def drift(most: float) -> Errors:
    """A gain that falls from the first to the last view."""
    return fault(view_gains=lambda geometry, rng: most * np.linspace(-1, 1, geometry.views))


def rings(std: float) -> Errors:
    """Bins with independent gains."""
    return fault(bin_gains=lambda geometry, rng: std * rng.standard_normal(geometry.bins))


def dead(count: int) -> Errors:
    """Bins that are interpolated."""
    return fault(dead=lambda geometry, rng: np.sort(rng.choice(geometry.bins, count, replace=False)))


def hardening(size: float) -> Errors:
    """A polychromatic beam."""
    return fault(hardening=lambda geometry, rng: size)


def scatter(size: float) -> Errors:
    """Scattered light."""
    return fault(scatter=lambda geometry, rng: size)


def correlated(sinogram: Tensor, geometry: Geometry, rng: Random) -> Tensor:
    """Noise of 1 % that is blurred along the bins, added to a scan with little noise."""
    noise = torch.from_numpy(rng.standard_normal(tuple(sinogram.shape))).to(sinogram)
    noise = blurred(noise, 0.8)
    return sinogram + 0.01 * sinogram.abs().mean() * noise / noise.std()


def metal(image: Tensor, rng: Random) -> Tensor:
    """The object with a disc of value 10."""
    height, width = image.shape[-2:]
    x, y = (torch.linspace(-1, 1, size) for size in (height, width))
    radius, turn = 0.5 * rng.random(), 2 * math.pi * rng.random()
    a, b = radius * math.cos(turn), radius * math.sin(turn)
    inside = (x[:, None] - a) ** 2 + (y[None, :] - b) ** 2 < 0.05**2
    return torch.where(inside.to(image.device), 10.0, image)


def counts(sinogram: Tensor, geometry: Geometry, rng: Random) -> Tensor:
    """Counts of photons instead of line integrals."""
    return 3e4 * torch.exp(-ATTENUATION * sinogram / sinogram.amax())


def transmission(sinogram: Tensor, geometry: Geometry, rng: Random) -> Tensor:
    """I / I0 instead of line integrals."""
    return torch.exp(-ATTENUATION * sinogram / sinogram.amax())


def hounsfield(sinogram: Tensor, geometry: Geometry, rng: Random) -> Tensor:
    """Line integrals of an image in Hounsfield units, in which air is -1000 and 0.5 is water."""
    ones = torch.ones((1, 1, *geometry.image_shape))
    return 2000 * sinogram - 1000 * ray_transform(geometry)(ones).to(sinogram)


CLEAN = Shift("clean", "clean")


def all_shifts() -> list[Shift]:
    """All rows but the sealed ones, in the order of the table."""
    noise, bent = ("noise",), ("hardening or scatter",)
    return [
        CLEAN,
        Shift("grid-4", "grid", grid=4),
        Shift("grid-6", "grid", grid=6),
        *(Shift(f"noise-{factor:g}", "noise", noise=0.01 * factor, causes=noise) for factor in (0.25, 0.5, 2, 4)),
        Shift("photons-1e4", "noise", photons=1e4),
        Shift("correlated-noise", "noise", noise=0.001, change=correlated, causes=("correlated noise", "noise")),
        *(Shift(f"centre-{c:g}", "centre", errors=centre(c), causes=("centre",)) for c in (0.1, 0.3, 1, 2)),
        *(Shift(f"angles-{a:g}", "angles", errors=angles(a), causes=("angles",)) for a in (0.1, 0.3, 1)),
        Shift("drift-2", "gain", errors=drift(0.02), causes=("gain", "background")),
        *(Shift(f"gain-{100 * g:g}", "gain", errors=gains(g), causes=("gain", "background")) for g in (0.003, 0.01)),
        Shift("dead-3", "detector", errors=dead(3), causes=("dead bins",)),
        Shift("rings-1", "detector", errors=rings(0.01), causes=("rings", "background", "noise")),
        Shift("truncation", "detector", narrow=0.5, causes=("truncation", "centre")),
        *(Shift(f"hardening-{100 * h:g}", "beam", errors=hardening(h), causes=bent) for h in (0.05, 0.15)),
        *(
            Shift(f"scatter-{100 * s:g}", "beam", errors=scatter(s), causes=(*bent, "background"))
            for s in (0.05, 0.1, 0.2)
        ),
        Shift("metal", "content", objects_change=metal),
        *(
            Shift(name, "content", objects=name)
            for name in ("textured", "bars", "text", "random-shepp-logan", PATIENTS)
        ),
        Shift("counts", "values", change=counts, causes=("counts",)),
        Shift("transmission", "values", change=transmission, causes=("transmission",)),
        Shift("hounsfield", "values", change=hounsfield, causes=("Hounsfield units",)),
        Shift("half-the-arc-stated", "angles", errors=twice_the_arc(), causes=("angles",)),
    ]


def tilt(sinogram: Tensor, geometry: Geometry, rng: Random) -> Tensor:
    """A detector whose baseline rises from one end to the other by 1 % of the largest value."""
    line = torch.linspace(-0.5, 0.5, sinogram.shape[-1])
    return sinogram + 0.01 * sinogram.amax() * line.to(sinogram)


def flicker(sinogram: Tensor, geometry: Geometry, rng: Random) -> Tensor:
    """A source whose intensity changes by 1 % with a period of seven views."""
    views = torch.arange(sinogram.shape[2])
    return sinogram + 0.01 / ATTENUATION * sinogram.amax() * torch.sin(2 * math.pi * views / 7)[:, None].to(sinogram)


def zingers(sinogram: Tensor, geometry: Geometry, rng: Random) -> Tensor:
    """Single rays, 0.2 % of all, that are far too small, as where a photon hits the sensor itself."""
    hit = torch.from_numpy(rng.random(tuple(sinogram.shape)) < 0.002).to(sinogram.device)
    return torch.where(hit, sinogram - 0.5 * sinogram.amax(), sinogram)


def lost_view(sinogram: Tensor, geometry: Geometry, rng: Random) -> Tensor:
    """One view of which only the one before is there."""
    out = sinogram.clone()
    view = int(rng.integers(1, sinogram.shape[2]))
    out[:, :, view] = sinogram[:, :, view - 1]
    return out


def checks(image: Tensor, rng: Random) -> Tensor:
    """A disc of checks of 5 to 12 % of its width, turned at random."""
    x, y, radius = _coordinates(image, rng)
    edge = 0.05 + 0.07 * rng.random()
    dark = (torch.floor(x / edge) + torch.floor(y / edge)) % 2
    return torch.where(x**2 + y**2 < radius**2, 0.5 + 0.5 * dark, 0.0).reshape(image.shape).to(image)


def foam(image: Tensor, rng: Random) -> Tensor:
    """A disc with many round holes."""
    x, y, radius = _coordinates(image, rng)
    out = (x**2 + y**2 < radius**2).to(image.dtype)
    for _ in range(120):
        r, turn = radius * math.sqrt(rng.random()), 2 * math.pi * rng.random()
        size = 0.015 + 0.05 * rng.random()
        out = torch.where((x - r * math.cos(turn)) ** 2 + (y - r * math.sin(turn)) ** 2 < size**2, 0.0, out)
    return out.reshape(image.shape).to(image)


def smooth(image: Tensor, rng: Random) -> Tensor:
    """A sum of broad Gaussian bumps: no edges at all."""
    x, y, radius = _coordinates(image, rng)
    out = torch.zeros_like(x)
    for _ in range(12):
        r, turn = 0.6 * radius * math.sqrt(rng.random()), 2 * math.pi * rng.random()
        size = 0.08 + 0.15 * rng.random()
        square = (x - r * math.cos(turn)) ** 2 + (y - r * math.sin(turn)) ** 2
        out = out + rng.random() * torch.exp(-0.5 * square / size**2)
    return (out / out.max()).reshape(image.shape).to(image)


def _coordinates(image: Tensor, rng: Random) -> tuple[Tensor, Tensor, float]:
    """Turned coordinates of the pixels, and the radius of the object."""
    height, width = image.shape[-2:]
    x, y = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    turn = 2 * math.pi * rng.random()
    return (
        x * math.cos(turn) - y * math.sin(turn),
        x * math.sin(turn) + y * math.cos(turn),
        0.6 + 0.25 * rng.random(),
    )


SEALED = [
    Shift("sealed-tilt", "sealed", change=tilt, causes=("background", "centre")),
    Shift("sealed-flicker", "sealed", change=flicker, causes=("gain", "background")),
    Shift("sealed-zingers", "sealed", change=zingers),
    Shift("sealed-lost-view", "sealed", change=lost_view, causes=("angles",)),
    Shift("sealed-checks", "sealed", objects_change=checks),
    Shift("sealed-foam", "sealed", objects_change=foam),
    Shift("sealed-smooth", "sealed", objects_change=smooth),
]
