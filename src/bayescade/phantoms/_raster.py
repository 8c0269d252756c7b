"""Shapes on a pixel grid.

The grid is that of the paper: n points from -1 to 1, both ends included (these are not pixel centres). A point on the
boundary of a shape is inside the shape. With `supersample` f every pixel has f x f evenly spaced points. The mean over the
points of a pixel then approximates the mean over its area.

A shape is an ellipse, or what straight cuts leave of an ellipse: four cuts leave a rectangle. A table of shapes has one line
per shape: value, half-axes, centre, rotation in radians, and for every cut its direction in radians and its distance
(`inside`). `_shapes.py` makes such tables.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Pixels computed at once: a number that fits the cache of a CPU (7 times faster than large chunks), or that keeps a GPU busy.
CHUNK = {"cpu": 200_000, "cuda": 50_000_000}

# Columns of a table of shapes; the columns of the cuts follow.
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


@dataclass(frozen=True)
class Grid:
    """The sample points of an image, and the device that computes the image."""

    x: NDArray[np.float64]  # (height f)
    y: NDArray[np.float64]  # (width f)
    device: torch.device

    def axes(self) -> tuple[Tensor, Tensor]:
        """The coordinates on the device, (height f, 1) and (1, width f)."""
        return torch.tensor(self.x, device=self.device)[:, None], torch.tensor(self.y, device=self.device)[None, :]


def painted(
    paint: Callable[..., Tensor],  # paint(grid, *parameters) gives (images, height f, width f)
    parameters: tuple[NDArray[np.float64], ...],  # every array has the image as its first axis
    shape: tuple[int, int],
    supersample: int = 1,  # f
    device: torch.device | str = "cpu",
) -> Tensor:
    """The images of the parameters, (images, 1, height f, width f), computed in chunks of images."""
    x, y = (grid_axis(size, max(shape), supersample) for size in shape)
    grid = Grid(x, y, torch.device(device))
    step = max(1, CHUNK[grid.device.type] // (len(x) * len(y)))
    starts = range(0, len(parameters[0]), step)
    return torch.cat([paint(grid, *(array[start : start + step] for array in parameters)) for start in starts])[:, None]


def generator(
    paint: Callable[..., Tensor],  # paint(grid, *parameters) gives (images, height f, width f)
    random_parameters: Callable[..., tuple[NDArray[np.float64], ...]],  # random_parameters(count, seed=, first=)
) -> Callable[..., Tensor]:
    """The function `generate` of a phantom whose images are painted from random parameters."""

    def generate(
        count: int,
        shape: tuple[int, int] = (128, 128),
        *,
        seed: int,
        first: int = 0,
        supersample: int = 1,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Images `first` to `first` + `count` - 1 of the list of this seed, (count, 1, height f, width f), float32.

        f is `supersample`.
        """
        return painted(paint, random_parameters(count, seed=seed, first=first), shape, supersample, device)

    return generate


def raster(
    tables: NDArray[np.float64],  # (images, shapes per image, 6 + 2 per cut); value 0: no shape
    shape: tuple[int, int],
    supersample: int = 1,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Sum of the values of the shapes around each point, (images, 1, height f, width f), float64, with f = `supersample`."""
    return painted(summed, (tables,), shape, supersample, device)


def summed(
    grid: Grid,
    tables: NDArray[np.float64],  # (images, shapes per image, 6 + 2 per cut)
) -> Tensor:
    """Sum of the values of the shapes around each point, (images, height f, width f), float64."""
    images = torch.zeros(len(tables), len(grid.x), len(grid.y), dtype=torch.float64, device=grid.device)
    for box, value, mask in _masks(grid, tables):
        images[box].add_(value * mask)
    return images


def covered(
    grid: Grid,
    images: Tensor,  # (images, height f, width f)
    tables: NDArray[np.float64],  # (images, shapes per image, 6 + 2 per cut)
) -> Tensor:
    """The images with the shapes painted over them: a point has the value of the last shape around it."""
    images = images.clone()
    for box, value, mask in _masks(grid, tables):
        images[box] = torch.where(mask, value, images[box])
    return images


def inside(
    table: Tensor,  # (images, 6 + 2 per cut): one shape per image
    x: Tensor,  # (height, 1)
    y: Tensor,  # (1, width)
) -> Tensor:
    """Which points are inside the shape, (images, height, width), bool.

    A point (x, y), relative to the centre of an ellipse with half-axes a, b and rotation r, has the scaled coordinates
    u = (x cos r + y sin r) / a and v = (-x sin r + y cos r) / b. It is inside the shape when u^2 + v^2 <= 1, and
    u cos t + v sin t <= d for every cut with direction t and distance d. No point is inside when a half-axis is 0.
    """
    _, axis_0, axis_1, centre_0, centre_1, rotation, *cuts = (column[:, None, None] for column in table.unbind(1))
    cosine, sine = torch.cos(rotation), torch.sin(rotation)
    dx, dy = x - centre_0, y - centre_1
    along = (cosine * dx + sine * dy) / axis_0
    across = (-sine * dx + cosine * dy) / axis_1
    mask = along**2 + across**2 <= 1
    for direction, distance in zip(cuts[::2], cuts[1::2], strict=True):
        normal_0, normal_1 = torch.cos(direction) / axis_0, torch.sin(direction) / axis_1
        # Only the comparison has the size of the image.
        mask &= (normal_0 * cosine - normal_1 * sine) * dx <= distance - (normal_0 * sine + normal_1 * cosine) * dy
    return mask


def inside_circle(
    grid: Grid,
    images: Tensor,  # (images, height f, width f)
    radius: NDArray[np.float64],  # (images)
) -> Tensor:
    """The images with 0 outside a circle around their centre."""
    x, y = grid.axes()
    return images * (x**2 + y**2 <= torch.tensor(radius**2, device=grid.device)[:, None, None])


def _masks(
    grid: Grid,
    tables: NDArray[np.float64],  # (images, shapes per image, 6 + 2 per cut)
) -> Iterator[tuple[tuple[slice, slice, slice], Tensor, Tensor]]:
    """Shape by shape: a box of points, the value of the shape in every image, and which points of the box are inside."""
    x, y = grid.axes()
    on_device = torch.tensor(tables, device=grid.device)
    for index in range(tables.shape[1]):
        used = tables[:, index, AXIS_0] > 0
        if used.any():
            x_range, y_range = _box(grid, tables[used, index])
            table = on_device[:, index]
            mask = inside(table, x[x_range], y[:, y_range])
            yield (slice(None), x_range, y_range), table[:, VALUE, None, None], mask


def _box(
    grid: Grid,
    table: NDArray[np.float64],  # (images, 6 or more): one shape per image
) -> tuple[slice, slice]:
    """A box of points that holds the ellipses of all images."""
    cosine, sine = np.cos(table[:, ROTATION]), np.sin(table[:, ROTATION])
    half_x = np.hypot(cosine * table[:, AXIS_0], sine * table[:, AXIS_1])
    half_y = np.hypot(sine * table[:, AXIS_0], cosine * table[:, AXIS_1])
    ranges = []
    for axis, centre, half in ((grid.x, table[:, CENTRE_0], half_x), (grid.y, table[:, CENTRE_1], half_y)):
        margin = 1e-9  # for rounding
        first, last = np.searchsorted(axis, [(centre - half).min() - margin, (centre + half).max() + margin])
        ranges.append(slice(int(first), int(last)))
    return ranges[0], ranges[1]


def normalised(images: Tensor) -> Tensor:
    """The images with their values shifted and scaled to [0, 1], image by image; a constant image becomes zero."""
    return scaled(images - images.amin((-2, -1), keepdim=True))


def scaled(images: Tensor) -> Tensor:
    """The images with negative values set to 0 and the largest value scaled to 1, image by image."""
    images = images.clamp_min(0)
    largest = images.amax((-2, -1), keepdim=True)
    return images / torch.where(largest > 0, largest, 1)
