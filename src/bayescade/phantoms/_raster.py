"""Ellipses on a pixel grid.

The grid of the paper: n points from -1 to 1 with both ends, not pixel centres, boundaries included. With `supersample` f
every pixel has f x f evenly spaced points, so that the mean over a pixel is the area that the ellipses cover.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Pixels computed at once: on a CPU what fits its cache (7 times faster than large chunks), on a GPU enough to use all of it.
CHUNK = {"cpu": 200_000, "cuda": 50_000_000}

# Columns of an ellipse table.
VALUE, AXIS_0, AXIS_1, CENTRE_0, CENTRE_1, ROTATION = range(6)


def uniforms(count: int, columns: int, *, seed: int, first: int = 0) -> NDArray[np.float64]:
    """Lines `first` to `first` + `count` - 1 of an endless table of uniform numbers, (count, columns)."""
    stream = np.random.PCG64(seed)
    stream.advance(first * columns)  # one step per number
    return np.random.Generator(stream).random((count, columns))


def grid_axis(size: int, longest: int, supersample: int = 1) -> NDArray[np.float64]:
    """Coordinates of the sample points along an axis of `size` pixels; the longest axis reaches from -1 to 1."""
    pixel = np.arange(size * supersample) / supersample + (0.5 / supersample - 0.5) - (size - 1) / 2
    return pixel * (2 / max(longest - 1, 1))


def raster(
    ellipses: NDArray[np.float64],  # (images, count, 6): value, half-axes, centre, rotation in radians; value 0 = none
    shape: tuple[int, int],
    supersample: int = 1,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Sum of the ellipses' values, (images, 1, height f, width f), float64.

    A point is inside when ((x cos r + y sin r) / a)^2 + ((-x sin r + y cos r) / b)^2 <= 1.
    """
    x = torch.tensor(grid_axis(shape[0], max(shape), supersample), device=device)[:, None]
    y = torch.tensor(grid_axis(shape[1], max(shape), supersample), device=device)[None, :]
    step = max(1, CHUNK[x.device.type] // (x.numel() * y.numel()))
    parts = []
    for first in range(0, len(ellipses), step):
        table = torch.tensor(ellipses[first : first + step], device=device)
        image = torch.zeros(len(table), x.numel(), y.numel(), dtype=torch.float64, device=device)
        for one in table.unbind(1):
            value, axis_0, axis_1, centre_0, centre_1, rotation = (p[:, None, None] for p in one.unbind(1))
            cosine, sine = torch.cos(rotation), torch.sin(rotation)
            dx, dy = x - centre_0, y - centre_1
            along = (cosine * dx + sine * dy) / axis_0
            across = (-sine * dx + cosine * dy) / axis_1
            image += value * (along**2 + across**2 <= 1)
        parts.append(image)
    return torch.cat(parts)[:, None]


def normalised(images: Tensor) -> Tensor:
    """Each image moved and scaled to [0, 1]; an image of one value becomes zero."""
    images = images - images.amin((-2, -1), keepdim=True)
    largest = images.amax((-2, -1), keepdim=True)
    return images / torch.where(largest > 0, largest, 1)
