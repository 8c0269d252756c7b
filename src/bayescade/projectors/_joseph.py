"""Joseph's line integrals (Joseph 1982): the pixels of a ray and their weights.

The sum goes along the dominant axis of the ray, one pixel row at a time. In each row the image is interpolated linearly between
the two pixels beside the ray, and the row has as weight the length p / |d| of the ray inside it, d being the direction's
component along the dominant axis.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bayescade.physics.geometry import Geometry


class Taps(NamedTuple):
    """Pixels of consecutive rays, ray by ray, in increasing order within a ray."""

    counts: Tensor  # (rays,) int64: how many pixels each ray meets
    pixels: Tensor  # (entries,) int32: flat pixel index
    weights: Tensor  # (entries,) float64


def joseph_taps(geometry: Geometry, first: int, last: int, device: torch.device) -> Taps:
    """Taps of all rays of views `first` to `last` - 1."""
    height, width = geometry.image_shape
    points, directions = (torch.tensor(part, device=device).reshape(-1, 2) for part in geometry.rays(first, last))
    along_y = directions[:, 1].abs() >= directions[:, 0].abs()  # the dominant axis of each ray
    major = torch.where(along_y, directions[:, 1], directions[:, 0])
    slope = torch.where(along_y, directions[:, 0], directions[:, 1]) / major
    point_major = torch.where(along_y, points[:, 1], points[:, 0])
    point_minor = torch.where(along_y, points[:, 0], points[:, 1])
    size_major = torch.where(along_y, width, height)[:, None]
    size_minor = torch.where(along_y, height, width)[:, None]

    step = torch.arange(max(height, width), device=device)[None, :]
    position = (step - (size_major.double() - 1) / 2) * geometry.pixel_size
    minor = (point_minor[:, None] + (position - point_major[:, None]) * slope[:, None]) / geometry.pixel_size
    minor = minor + (size_minor.double() - 1) / 2  # (rays, steps) in pixels, 0 = first pixel
    below = torch.floor(minor)
    fraction = minor - below

    near = torch.stack([below, below + 1], -1)  # (rays, steps, 2)
    weight = torch.stack([1 - fraction, fraction], -1) * (geometry.pixel_size / major.abs())[:, None, None]
    inside = (near >= 0) & (near < size_minor[..., None]) & (weight > 0) & (step < size_major)[..., None]
    near = near.clamp(0, max(height, width) - 1).to(torch.int32)
    step32 = step.to(torch.int32)[..., None]
    pixel = torch.where(along_y[:, None, None], near * width + step32, step32 * width + near)

    pixel, weight, inside = (part.flatten(1) for part in (pixel, weight, inside))
    pixel = torch.where(inside, pixel, height * width)  # sorted after every pixel
    pixel, order = torch.sort(pixel, dim=1)
    weight, inside = weight.gather(1, order), inside.gather(1, order)
    return Taps(inside.sum(1), pixel[inside], weight[inside])
