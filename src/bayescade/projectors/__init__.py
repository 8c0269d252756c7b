"""Projectors: ways to compute the line integrals of a geometry. `ray_transform` chooses one."""

import torch

from bayescade.physics.geometry import Geometry
from bayescade.physics.operator import RayTransform
from bayescade.projectors.matrix import MatrixProjector


def ray_transform(
    geometry: Geometry,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    memory_limit: int | None = None,
) -> RayTransform:
    """The ray transform of a geometry: `A(x)`, `A.adjoint(y)`, `A.fbp(y)`.

    `memory_limit` (bytes) bounds the stored matrix pair; by default it is the memory that the device has free.
    """
    return MatrixProjector(geometry, device, dtype, memory_limit)
