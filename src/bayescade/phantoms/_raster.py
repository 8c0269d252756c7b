"""Ellipses on a pixel grid.

The grid is that of the paper: n points from -1 to 1, both ends included (these are not pixel centres). A point on the
boundary of an ellipse is inside the ellipse. With `supersample` f every pixel has f x f evenly spaced points. The
mean over the points of a pixel then approximates the mean over its area.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Pixels computed at once: a number that fits the cache of a CPU (7 times faster than large chunks), or that keeps a GPU busy.
CHUNK = {"cpu": 200_000, "cuda": 50_000_000}

# Columns of an ellipse table.
VALUE, AXIS_0, AXIS_1, CENTRE_0, CENTRE_1, ROTATION = range(6)


def uniforms(count: int, columns: int, *, seed: int, first: int = 0) -> NDArray[np.float64]:
    """Rows `first` to `first` + `count` - 1 of an endless random table, (count, columns), with numbers uniform in [0, 1)."""
    stream = np.random.PCG64(seed)
    stream.advance(first * columns)  # the generator makes one step per number
    return np.random.Generator(stream).random((count, columns))


def grid_axis(size: int, longest: int, supersample: int = 1) -> NDArray[np.float64]:
    """Coordinates of the sample points along an axis of `size` pixels; the longest axis reaches from -1 to 1."""
    pixel = np.arange(size * supersample) / supersample + (0.5 / supersample - 0.5) - (size - 1) / 2
    return pixel * (2 / max(longest - 1, 1))


def raster(
    # (images, ellipses per image, 6): value, half-axes, centre, rotation in radians; value 0: no ellipse
    ellipses: NDArray[np.float64],
    shape: tuple[int, int],
    supersample: int = 1,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Sum of the values of the ellipses around each point, (images, 1, height f, width f), float64, with f = `supersample`.

    A point (x, y), relative to the centre of an ellipse with half-axes a, b and rotation r, is inside the ellipse when
    ((x cos r + y sin r) / a)^2 + ((-x sin r + y cos r) / b)^2 <= 1.
    """
    x = torch.tensor(grid_axis(shape[0], max(shape), supersample), device=device)[:, None]
    y = torch.tensor(grid_axis(shape[1], max(shape), supersample), device=device)[None, :]
    step = max(1, CHUNK[x.device.type] // (x.numel() * y.numel()))
    chunks = []
    for first in range(0, len(ellipses), step):
        tables = torch.tensor(ellipses[first : first + step], device=device)
        images = torch.zeros(len(tables), x.numel(), y.numel(), dtype=torch.float64, device=device)
        for ellipse in tables.unbind(1):
            value, axis_0, axis_1, centre_0, centre_1, rotation = (
                column[:, None, None] for column in ellipse.unbind(1)
            )
            cosine, sine = torch.cos(rotation), torch.sin(rotation)
            dx, dy = x - centre_0, y - centre_1
            along = (cosine * dx + sine * dy) / axis_0
            across = (-sine * dx + cosine * dy) / axis_1
            images += value * (along**2 + across**2 <= 1)
        chunks.append(images)
    return torch.cat(chunks)[:, None]


def normalised(images: Tensor) -> Tensor:
    """The images with their values shifted and scaled to [0, 1], image by image; a constant image becomes zero."""
    images = images - images.amin((-2, -1), keepdim=True)
    largest = images.amax((-2, -1), keepdim=True)
    return images / torch.where(largest > 0, largest, 1)
