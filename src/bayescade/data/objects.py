"""Objects of many kinds in turn: what a model for any scan is trained on.

The kinds follow each other in a fixed pattern, so that an image depends on the seed and on its index only. Stored images, for
instance of patients, are turned, mirrored, zoomed and moved at random. Objects for tests (bars, text, discs with holes,
Shepp-Logan phantoms) are not among them.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from bayescade import phantoms, plugins
from bayescade.data.random_scans import radius_measured, radius_seen
from bayescade.data.sources import Source
from bayescade.physics.geometry import Geometry
from bayescade.seeds import derived_seed

STORED = "stored"
OTHERS = ("textured", "polygons", "lines", "inserts", "textured")
PHANTOMS = tuple(kind for other in OTHERS for kind in ("ellipses", other))
WITH_STORED = tuple(kind for other in OTHERS for kind in ("ellipses", other, STORED))
LEAST_ZOOM, MOST_ZOOM, MOST_SHIFT = 0.75, 1.15, 0.05  # shift: of half the image


def mixed_source(
    shape: tuple[int, int],
    seed: int,
    stored: Tensor | None = None,  # (images, 1, height, width), values in [0, 1]
    device: torch.device | str = "cpu",
    only_stored: bool = False,
) -> Source:
    """An endless list of objects; with stored images about every third object is one of them, or all are."""
    pattern = PHANTOMS if stored is None else (STORED,) if only_stored else WITH_STORED

    def images(first: int, count: int, supersample: int) -> Tensor:
        height, width = (size * supersample for size in shape)
        out = torch.empty(count, 1, height, width, device=device)
        for kind in dict.fromkeys(pattern):
            indices = [index for index in range(first, first + count) if pattern[index % len(pattern)] == kind]
            if not indices:
                continue
            kind_seed, numbers = derived_seed(seed, kind), [rank_in_kind(pattern, index) for index in indices]
            if kind == STORED:
                assert stored is not None
                made = moved_images(stored, (height, width), kind_seed, numbers, device)
            else:
                made = plugins.load(phantoms, kind).generate(
                    len(numbers), shape, seed=kind_seed, first=numbers[0], supersample=supersample, device=device
                )
            out[[index - first for index in indices]] = made.to(out)
        return out

    return Source(images, None, None)


def rank_in_kind(pattern: Sequence[str], index: int) -> int:
    """How many objects before this index are of its kind."""
    kind, rounds = pattern[index % len(pattern)], index // len(pattern)
    return rounds * pattern.count(kind) + pattern[: index % len(pattern)].count(kind)


def moved_images(
    stored: Tensor,  # (images, 1, height, width)
    shape: tuple[int, int],
    seed: int,
    numbers: Sequence[int],
    device: torch.device | str = "cpu",
) -> Tensor:
    """Stored images, turned, mirrored, zoomed and moved at random, interpolated to `shape`, (count, 1, *shape)."""
    chosen, maps = [], []
    for number in numbers:
        rng = np.random.default_rng(derived_seed(seed, number))
        u = rng.random(4)
        chosen.append(int(rng.integers(len(stored))))
        angle, zoom = 2 * math.pi * u[0], LEAST_ZOOM + u[1] * (MOST_ZOOM - LEAST_ZOOM)
        cosine, sine, mirror = math.cos(angle) / zoom, math.sin(angle) / zoom, 1 if rng.random() < 0.5 else -1
        shift = MOST_SHIFT * (2 * u[2:] - 1)
        maps.append([[cosine, -sine, shift[0]], [mirror * sine, mirror * cosine, shift[1]]])
    grid = affine_grid(torch.tensor(maps, dtype=torch.float32, device=device), [len(numbers), 1, *shape], False)
    return grid_sample(stored[chosen].to(device), grid, mode="bilinear", align_corners=False)


def within_circle(
    images: Tensor,  # (count, 1, height, width)
    radii: Sequence[float],  # of each image, in units of half its shorter side
) -> Tensor:
    """The images without what is outside the circle around their middle."""
    height, width = images.shape[-2:]
    shorter = min(height, width)
    x = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None] * 2 / shorter
    y = (torch.arange(width, device=images.device) - (width - 1) / 2)[None, :] * 2 / shorter
    limits = torch.tensor(list(radii), device=images.device).reshape(-1, 1, 1, 1)
    return torch.where(x**2 + y**2 <= limits**2, images, 0.0)


def seen_whole(
    images: Tensor,  # (count, 1, height f, width f)
    geometries: Sequence[Geometry],  # one for each image
) -> Tensor:
    """The images without what is outside the circle that every view sees whole."""
    radii = [2 * radius_seen(scan) / (min(scan.image_shape) * scan.pixel_size) for scan in geometries]
    return within_circle(images, radii)


def measured_with_border(
    images: Tensor,  # (count, 1, height f, width f)
    geometry: Geometry,
    border: int,  # bins at each end of the detector that stay empty
) -> Tensor:
    """The images without what is outside the circle whose lines are all measured."""
    radius = 2 * radius_measured(geometry, border) / (min(geometry.image_shape) * geometry.pixel_size)
    return within_circle(images, [radius] * len(images))
