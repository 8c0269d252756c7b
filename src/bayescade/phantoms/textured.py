"""Bodies of random ellipses, every ellipse with a smooth random texture.

A body is one or two large ellipses, with 2 to 6 smaller ellipses inside the first. An ellipse adds its value times
1 + amplitude * texture, with an amplitude from 0 to 0.5. A texture is a sum of plane waves with random directions and phases.
Their wavelengths are in a random range between 4 and 64 pixels at 128 x 128. Negative sums become 0 and the largest value
becomes 1.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.phantoms._raster import VALUE, Grid, generator, scaled, summed
from bayescade.phantoms._shapes import (
    PIXEL,
    between,
    centres_inside,
    ellipse_in_circle,
    first_shapes,
    log_between,
    table_of,
    uniform_blocks,
    whole_between,
)

FEWEST, MOST = 2, 6  # smaller ellipses per image
TEXTURES, WAVES = 2, 32  # textures per image, which the ellipses use in turn, and waves per texture
FINEST, COARSEST = 4 * PIXEL, 64 * PIXEL  # wavelengths
AMPLITUDE = 0.5
TEXTURE_STD = 0.5  # so that most of a texture is between -1 and 1


def paint(
    grid: Grid,
    tables: NDArray[np.float64],  # (images, ellipses, 6)
    amplitude: NDArray[np.float64],  # (images, ellipses)
    waves: NDArray[np.float64],  # (images, textures, waves, 4)
) -> Tensor:
    """Sums of value (1 + amplitude * texture) over the ellipses, scaled to [0, 1]."""
    images = summed(grid, tables)
    changes = tables.copy()
    changes[..., VALUE] *= amplitude
    for index, texture in enumerate(textures(grid, waves).unbind(1)):
        images += texture * summed(grid, changes[:, index::TEXTURES])
    return scaled(images).to(torch.float32)


def textures(
    grid: Grid,
    waves: NDArray[np.float64],  # (images, textures, waves, 4): wave vector (k, l), phase p in radians, height h
) -> Tensor:
    """Sums of plane waves h cos(k x + l y + p), (images, textures, height f, width f).

    By cos(a + b) = cos a cos b - sin a sin b they are products of small matrices.
    """
    x, y = grid.axes()
    wave_x, wave_y, phase, height = torch.tensor(waves, device=grid.device)[..., None].unbind(-2)
    along_x, along_y = wave_x * x[:, 0] + phase, wave_y * y[0]
    left = torch.cat([height * torch.cos(along_x), -height * torch.sin(along_x)], dim=-2)
    right = torch.cat([torch.cos(along_y), torch.sin(along_y)], dim=-2)
    return left.mT @ right


def random_parameters(count: int, *, seed: int, first: int = 0) -> tuple[NDArray[np.float64], ...]:
    """Tables of ellipses, (count, 8, 6), their amplitudes, (count, 8), and waves, (count, 2, 32, 4)."""
    image, u, amplitude, spectrum, waves = uniform_blocks(
        count, (14,), (MOST, 6), (MOST + 2,), (TEXTURES, 3), (TEXTURES, WAVES, 4), seed=seed, first=first
    )
    body = ellipse_in_circle(image[:, :5], between(image[:, 5], 0.4, 1), (0.6, 0.9), 0.6)
    second = ellipse_in_circle(image[:, 6:11], between(image[:, 11], 0.1, 0.8), (0.3, 0.7), 0.4)
    second = first_shapes(second, whole_between(image[:, 12], 0, 1))
    half_axes = log_between(u[..., :2], 0.05, 0.35)
    centre = centres_inside(body, half_axes.max(-1), u[..., 2:4])
    smaller = table_of(between(u[..., 4], -0.4, 0.6), half_axes, centre, np.pi * u[..., 5])
    smaller = first_shapes(smaller, whole_between(image[:, 13], FEWEST, MOST))
    return np.concatenate([body, second, smaller], axis=1), AMPLITUDE * amplitude, random_waves(spectrum, waves)


def random_waves(
    spectrum: NDArray[np.float64],  # (images, textures, 3), uniform in [0, 1)
    u: NDArray[np.float64],  # (images, textures, waves, 4), uniform in [0, 1)
) -> NDArray[np.float64]:
    """Wave vectors, phases and heights, (images, textures, waves, 4).

    The wavelengths of a texture have a random range with at least a factor of two. Their heights are proportional to
    a random power of the wavelength.
    """
    shortest = log_between(spectrum[..., :1], FINEST, COARSEST / 2)
    longest = 2 * shortest * (COARSEST / (2 * shortest)) ** spectrum[..., 1:2]
    wavelength = shortest * (longest / shortest) ** u[..., 0]
    direction, phase = 2 * np.pi * u[..., 1], 2 * np.pi * u[..., 2]
    height = wavelength ** between(spectrum[..., 2:], 0, 1) * u[..., 3]
    height *= TEXTURE_STD / np.sqrt((height**2).sum(-1, keepdims=True) / 2)
    frequency = 2 * np.pi / wavelength
    return np.stack([frequency * np.cos(direction), frequency * np.sin(direction), phase, height], axis=-1)


generate = generator(paint, random_parameters)
