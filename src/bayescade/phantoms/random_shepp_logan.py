"""Random variants of the Shepp-Logan phantom: out-of-distribution images for validation, because the phantom is a test image.

Ellipse 0 of the modified Shepp-Logan phantom is the skull, ellipse 1 is the brain. The half-axes of the skull change by up to
15 %, its value does not change. The half-axes of the brain are 93.5 to 97.5 % of those of the skull, so that the brain stays
inside; its value changes by up to 20 %. In every other ellipse the half-axes change by up to 15 %, the value by up to 30 %, the
centre by up to 0.03 along each axis, and the rotation by up to 10 degrees. Finally the whole phantom is rotated by up to 15
degrees and shrunk by 5 to 15 %, negative values of the image become 0, and the values are scaled to [0, 1].
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.phantoms._raster import AXIS_0, CENTRE_0, ROTATION, VALUE, normalised, raster, uniforms
from bayescade.phantoms.shepp_logan import ELLIPSES

AXES, CENTRE, TURN, CONTRAST = 0.15, 0.03, math.radians(10), 0.3  # largest changes of an ellipse
IMAGE_TURN, IMAGE_SHRINK = math.radians(15), 0.1  # of the whole phantom


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
    tables = random_tables(count, seed=seed, first=first)
    return normalised(raster(tables, shape, supersample, device).clamp_min(0)).to(torch.float32)


def random_tables(count: int, *, seed: int, first: int = 0) -> NDArray[np.float64]:
    """Ellipse tables of the images, (count, 10, 6)."""
    u = 2 * uniforms(count, (len(ELLIPSES) + 1) * 6, seed=seed, first=first).reshape(count, -1, 6) - 1
    per_ellipse, per_image = u[:, :-1], u[:, -1]
    tables = np.repeat(ELLIPSES[None], count, axis=0)
    tables[:, 1:, VALUE] *= 1 + CONTRAST * per_ellipse[:, 1:, 0]
    tables[:, 1, VALUE] = -0.8 * (1 + 0.2 * per_ellipse[:, 1, 0])  # the brain stays between air and bone
    tables[:, :, AXIS_0:CENTRE_0] *= 1 + AXES * per_ellipse[:, :, 1:3]
    tables[:, 1, AXIS_0:CENTRE_0] = tables[:, 0, AXIS_0:CENTRE_0] * (
        0.955 + 0.02 * per_ellipse[:, 1, 1:3]
    )  # inside the skull
    tables[:, 2:, CENTRE_0:ROTATION] += CENTRE * per_ellipse[:, 2:, 3:5]
    tables[:, 2:, ROTATION] += TURN * per_ellipse[:, 2:, 5]

    scale = 1 - IMAGE_SHRINK * (0.5 + 0.5 * per_image[:, 0]) - 0.05
    tables[:, :, AXIS_0:ROTATION] *= scale[:, None, None]
    turn = IMAGE_TURN * per_image[:, 1]
    cosine, sine = np.cos(turn)[:, None], np.sin(turn)[:, None]
    x, y = tables[:, :, CENTRE_0].copy(), tables[:, :, CENTRE_0 + 1].copy()
    tables[:, :, CENTRE_0] = cosine * x - sine * y
    tables[:, :, CENTRE_0 + 1] = sine * x + cosine * y
    tables[:, :, ROTATION] += turn[:, None]
    return tables
