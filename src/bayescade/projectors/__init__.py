"""Projectors: ways to compute the line integrals of a geometry. `ray_transform` chooses one."""

import functools
from weakref import WeakValueDictionary

import torch

from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry
from bayescade.physics.problem import InverseProblem
from bayescade.physics.ray_transform import RayTransform
from bayescade.projectors.matrix import MatrixProjector

# Operators in use, by weak references: simulation and reconstruction of a scan share one, and unused ones are freed.
_living: WeakValueDictionary[tuple[Geometry, torch.device, torch.dtype], MatrixProjector] = WeakValueDictionary()


def ray_transform(
    geometry: Geometry,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    memory_limit: int | None = None,
) -> RayTransform:
    """The ray transform of a geometry: `A(x)`, `A.adjoint(y)`, `A.fbp(y)`.

    `memory_limit` (bytes) bounds the stored matrix pair; by default it is the memory that the device has free.
    """
    if not isinstance(geometry, Geometry):
        raise UserError(f"expected a geometry, e.g. case_geometry('sparse-32'), got {geometry!r:.60}")
    if dtype not in (torch.float32, torch.float64):
        raise UserError(f"dtype: expected torch.float32 or torch.float64, got {dtype}")
    device = choose_device(device)
    if memory_limit is not None:
        return MatrixProjector(geometry, device, dtype, memory_limit)
    key = (geometry, device, dtype)
    operator = _living.get(key)
    if operator is None:
        operator = _living[key] = MatrixProjector(geometry, device, dtype)
    return operator


def scan_problem(
    geometry: Geometry,
    device: torch.device | str = "cpu",
    ramp: str = "band-limited",  # of the first image, by FBP
) -> InverseProblem:
    """The inverse problem of a scan with Gaussian noise: least squares, FBP as the first image."""
    operator = ray_transform(geometry, device)
    return InverseProblem(operator, initial_image=functools.partial(operator.fbp, ramp=ramp))
