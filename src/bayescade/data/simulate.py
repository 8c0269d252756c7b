"""Scans of known images: projection, the errors of a scanner, and noise."""

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from bayescade import noise as noise_models
from bayescade import plugins
from bayescade.data.cache import Arrays, cached
from bayescade.data.noise import Noise, add_noise
from bayescade.data.scanner import (
    ScanErrors,
    Scanner,
    after_noise,
    before_noise,
    draw_errors,
    mean_over_bins,
    true_geometry,
)
from bayescade.data.sources import Source
from bayescade.physics.geometry import Geometry
from bayescade.projectors import PerImageProjector, ray_transform
from bayescade.threads import in_order

CACHE_VERSION = 1  # increase it when the same settings give other simulated data
CHUNK_NUMBERS = 20_000_000  # pixels and rays of the images that are computed at once, at most
IDEAL = Scanner()


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
    scanner: Scanner = IDEAL,
    device: torch.device | str = "cpu",
) -> Iterator[Scans]:
    """Scans of the first `count` images of a source, batch by batch.

    An ideal scanner simulates the data on the grid of the reconstruction (as in the paper; an inverse crime). With a
    `grid_factor` f > 1 every pixel is split into f x f pixels before projection, and the truth is the mean of these pixels.
    """
    operator = ray_transform(true_geometry(geometry, scanner), device) if not scanner.has_errors else None
    for first, number in chunks(geometry, count, scanner):
        images = source.images(first, number, scanner.grid_factor).to(device)
        if operator is None:
            yield scans_with_errors(images, [geometry] * number, scanner, noise, seed, range(first, first + number))
            continue
        sinogram = add_noise(mean_over_bins(operator(images), scanner), noise, seed=seed, first=first)
        yield Scans(sinogram, mean_over_pixels(images, scanner))


def scans_with_errors(
    images: Tensor,  # (scans, 1, height f, width f), f being the grid factor of the scanner
    geometries: Sequence[Geometry],  # one for each image
    scanner: Scanner,
    noise: Noise,
    seed: int,
    indices: Sequence[int],  # of the scans
) -> Scans:
    """Scans of the images, each with a geometry and errors of its own; sinograms are padded with zeros to the largest."""
    pairs = zip(geometries, indices, strict=True)
    errors = [draw_errors(scanner, geometry, seed, index) for geometry, index in pairs]
    return scans_with_these_errors(images, geometries, scanner, errors, noise, seed, indices)


def scans_with_these_errors(
    images: Tensor,  # (scans, 1, height f, width f), f being the grid factor of the scanner
    geometries: Sequence[Geometry],
    scanner: Scanner,
    errors: Sequence[ScanErrors],  # one for each image, as the geometries and the indices
    noise: Noise,
    seed: int,
    indices: Sequence[int],  # of the scans
) -> Scans:
    """Scans of the images with the given errors; sinograms are padded with zeros to the largest."""
    true = [true_geometry(geometry, scanner, error) for geometry, error in zip(geometries, errors, strict=True)]
    rays = PerImageProjector(true, images.device, images.dtype).forward(images)
    stored = mean_over_bins(rays, scanner).cpu()
    out = torch.zeros_like(stored)

    def measure(number: int) -> None:
        views, bins = geometries[number].sinogram_shape
        single = before_noise(stored[number, :, :views, :bins], scanner, errors[number])
        noisy = add_noise(single[None], noise, seed=seed, first=indices[number])[0]
        out[number, :, :views, :bins] = after_noise(noisy, scanner, errors[number])

    for _ in in_order(measure, range(len(stored)), most=len(stored)):
        pass
    return Scans(out.to(images.device), mean_over_pixels(images, scanner))


def mean_over_pixels(images: Tensor, scanner: Scanner) -> Tensor:
    """The truth, (scans, 1, height, width): the means of the finer pixels."""
    return avg_pool2d(images, scanner.grid_factor) if scanner.grid_factor > 1 else images


def scan_set(
    source: Source,
    geometry: Geometry,
    noise: Noise,
    *,
    seed: int,
    count: int,
    scanner: Scanner = IDEAL,
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
        "scanner": dataclasses.asdict(scanner),
    }

    def make() -> Arrays:
        batches = list(scan_batches(source, geometry, noise, seed=seed, count=count, scanner=scanner, device=device))
        sinogram = torch.cat([batch.sinogram for batch in batches])
        truth = torch.cat([batch.truth for batch in batches])
        return {"sinogram": sinogram.cpu().numpy(), "truth": truth.cpu().numpy()}

    can_be_cached = source.key is not None and noise.model in plugins.our_names(noise_models)
    arrays = cached(key, make) if can_be_cached else make()
    return Scans(*(torch.from_numpy(arrays[name]).to(device) for name in ("sinogram", "truth")))


def chunks(geometry: Geometry, count: int, scanner: Scanner = IDEAL) -> Iterator[tuple[int, int]]:
    """Divides `count` images into chunks that fit memory: (index of the first image, number of images) of each chunk."""
    pixels = geometry.image_shape[0] * geometry.image_shape[1] * scanner.grid_factor**2
    rays = geometry.views * geometry.bins * scanner.rays_per_bin
    step = max(1, min(100, CHUNK_NUMBERS // (pixels + rays)))
    return ((first, min(step, count - first)) for first in range(0, count, step))
