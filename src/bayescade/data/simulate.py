"""Scans of known images: projection and noise, on the grid of the images or on a finer grid."""

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from bayescade import noise as noise_models
from bayescade import plugins
from bayescade.data.cache import Arrays, cached
from bayescade.data.noise import Noise, add_noise
from bayescade.data.sources import Source
from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry
from bayescade.projectors import ray_transform

CACHE_VERSION = 1  # increase it when the same settings give other simulated data
CHUNK_NUMBERS = 20_000_000  # pixels and rays of the images that are computed at once, at most


@dataclasses.dataclass(frozen=True)
class Scans:
    """Sinograms and truths."""

    sinogram: Tensor  # (batch, 1, views, bins)
    truth: Tensor  # (batch, 1, height, width)


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
    """Scans of the first `count` images of a source, batch by batch.

    With `supersample` = 1 the data are simulated on the grid of the reconstruction (as in the paper; an inverse crime). With
    `supersample` = f > 1 every pixel is split into f x f pixels before projection, and the truth is the mean of these pixels.
    """
    check_supersample(supersample)
    operator = ray_transform(geometry.refined(supersample), device)
    for first, number in chunks(geometry, count, supersample):
        images = source.images(first, number, supersample).to(device)
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
    """Scans of the first `count` images of a source, all in memory; they are read from the cache if possible.

    Scans that use a plugin of another distribution are not cached: the code of the plugin may change but not its name.
    """
    key = {
        "what": "scans",
        "version": CACHE_VERSION,
        "source": source.key,
        "geometry": geometry.to_json(),
        "noise": noise.to_json(),
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

    can_be_cached = source.key is not None and noise.model in plugins.our_names(noise_models)
    arrays = cached(key, make) if can_be_cached else make()
    return Scans(*(torch.from_numpy(arrays[name]).to(device) for name in ("sinogram", "truth")))


def chunks(geometry: Geometry, count: int, supersample: int = 1) -> Iterator[tuple[int, int]]:
    """Divides `count` images into chunks that fit memory: (index of the first image, number of images) of each chunk."""
    numbers_per_image = (
        geometry.image_shape[0] * geometry.image_shape[1] * supersample**2 + geometry.views * geometry.bins
    )
    step = max(1, min(100, CHUNK_NUMBERS // numbers_per_image))
    return ((first, min(step, count - first)) for first in range(0, count, step))


def check_supersample(supersample: int) -> None:
    """Raises an error unless the factor is from 1 to 8."""
    if not 1 <= supersample <= 8:
        raise UserError(f"grid factor: expected a whole number from 1 to 8, got {supersample}")
