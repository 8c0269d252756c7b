"""The modified Shepp-Logan phantom (Toft 1996), values in [0, 1]: the paper's out-of-distribution test image."""

import math

import numpy as np
import torch
from torch import Tensor

from bayescade.phantoms._raster import raster

# Value, half-axes, centre, rotation; the rotations are written in degrees and converted to radians.
ELLIPSES = np.array(
    [
        (1.0, 0.69, 0.92, 0.0, 0.0, 0.0),
        (-0.8, 0.6624, 0.874, 0.0, -0.0184, 0.0),
        (-0.2, 0.11, 0.31, 0.22, 0.0, -18.0),
        (-0.2, 0.16, 0.41, -0.22, 0.0, 18.0),
        (0.1, 0.21, 0.25, 0.0, 0.35, 0.0),
        (0.1, 0.046, 0.046, 0.0, 0.1, 0.0),
        (0.1, 0.046, 0.046, 0.0, -0.1, 0.0),
        (0.1, 0.046, 0.023, -0.08, -0.605, 0.0),
        (0.1, 0.023, 0.023, 0.0, -0.606, 0.0),
        (0.1, 0.023, 0.046, 0.06, -0.605, 0.0),
    ]
) * np.array([1, 1, 1, 1, 1, math.pi / 180])


def generate(
    count: int = 1,
    shape: tuple[int, int] = (128, 128),
    *,
    seed: int = 0,
    first: int = 0,
    supersample: int = 1,
    device: torch.device | str = "cpu",
) -> Tensor:
    """`count` copies of the phantom, (count, 1, height f, width f), float32.

    f is `supersample`; `seed` and `first` have no effect.
    """
    image = raster(ELLIPSES[None], shape, supersample, device).clamp(0, 1)
    return image.to(torch.float32).repeat(count, 1, 1, 1)
