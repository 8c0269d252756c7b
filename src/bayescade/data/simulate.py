"""Scans of known images: projection and noise, on the grid of the images or on a finer one."""

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from bayescade.data.cache import Arrays, cached
from bayescade.data.sources import Source
from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry
from bayescade.physics.noise import check_photons, check_relative, poisson_noise, scaled_noise
from bayescade.projectors import ray_transform
from bayescade.seeds import derived_seed

CACHE_VERSION = 1  # raise it when simulated data change for the same settings
CHUNK_NUMBERS = 20_000_000  # pixels and rays of the images worked on at once


@dataclasses.dataclass(frozen=True)
class Noise:
    """Measurement noise: Gaussian, as in the paper, or counted photons."""

    relative: float = 0.01  # standard deviation over the mean |A x| of the image; not used with photons
    photons: float = 0.0  # per bin with nothing in the way; 0 = Gaussian noise
    attenuation: float = 0.02  # of an image value of 1 over a length of 1; used with photons only

    def __post_init__(self) -> None:
        check_relative(self.relative)
        if self.photons:
            check_photons(self.photons, self.attenuation)


@dataclasses.dataclass(frozen=True)
class Scans:
    """Sinograms with what was scanned."""

    sinogram: Tensor  # (batch, 1, views, bins)
    truth: Tensor  # (batch, 1, height, width)


def add_noise(
    sinogram: Tensor,  # (batch, 1, views, bins), without noise
    noise: Noise,
    *,
    seed: int,
    first: int = 0,  # place of the first image: its noise depends on the seed and its place only
) -> Tensor:
    """The sinograms with noise."""
    generators = [
        torch.Generator().manual_seed(derived_seed(seed, "noise", place))
        for place in range(first, first + len(sinogram))
    ]
    if not noise.photons:
        draw = torch.empty(sinogram.shape, dtype=sinogram.dtype)
        for one, generator in zip(draw, generators, strict=True):
            torch.randn(one.shape, generator=generator, out=one)
        return scaled_noise(sinogram, noise.relative, draw.to(sinogram.device))
    pairs = zip(sinogram.split(1), generators, strict=True)
    return torch.cat(
        [poisson_noise(one, noise.photons, noise.attenuation, generator=generator) for one, generator in pairs]
    )


def scan_batches(
    source: Source,
    geometry: Geometry,
    noise: Noise,
    *,
    seed: int,
    count: int,
    supersample: int = 1,
    device: torch.device | str = "cpu",
) -> Iterator[Scans]:
    """Scans of the first `count` images of a source, a run at a time.

    With `supersample` = 1 data and reconstruction share one discretisation (the paper, and an inverse crime). With f > 1
    every pixel is split f x f before it is projected, and the truth is the mean over a pixel.
    """
    check_supersample(supersample)
    operator = ray_transform(geometry.refined(supersample), device)
    for first, number in chunks(geometry, count, supersample):
        images = source.take(first, number, supersample).to(device)
        truth = avg_pool2d(images, supersample) if supersample > 1 else images
        yield Scans(add_noise(operator(images), noise, seed=seed, first=first), truth)


def scan_set(
    source: Source,
    geometry: Geometry,
    noise: Noise,
    *,
    seed: int,
    count: int,
    supersample: int = 1,
    device: torch.device | str = "cpu",
) -> Scans:
    """Scans of the first `count` images of a source in memory, out of the cache when they are there."""
    key = {
        "what": "scans",
        "version": CACHE_VERSION,
        "source": source.key,
        "geometry": geometry.to_json(),
        "noise": dataclasses.asdict(noise),
        "seed": seed,
        "count": count,
        "supersample": supersample,
    }

    def make() -> Arrays:
        batches = list(
            scan_batches(source, geometry, noise, seed=seed, count=count, supersample=supersample, device=device)
        )
        sinogram = torch.cat([batch.sinogram for batch in batches])
        truth = torch.cat([batch.truth for batch in batches])
        return {"sinogram": sinogram.cpu().numpy(), "truth": truth.cpu().numpy()}

    arrays = cached(key, make)
    return Scans(*(torch.from_numpy(arrays[name]).to(device) for name in ("sinogram", "truth")))


def chunks(geometry: Geometry, count: int, supersample: int = 1) -> Iterator[tuple[int, int]]:
    """(first, number) of runs of images that fit memory comfortably."""
    numbers = geometry.image_shape[0] * geometry.image_shape[1] * supersample**2 + geometry.views * geometry.bins
    step = max(1, min(100, CHUNK_NUMBERS // numbers))
    return ((first, min(step, count - first)) for first in range(0, count, step))


def check_supersample(supersample: int) -> None:
    """Raises unless the factor is one we can work with."""
    if not 1 <= supersample <= 8:
        raise UserError(f"grid factor: expected a whole number from 1 to 8, got {supersample}")
