"""Projectors: ways to compute the line integrals of a geometry. `ray_transform` chooses one."""

import functools
from weakref import WeakValueDictionary

import torch

from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry
from bayescade.physics.problem import InverseProblem
from bayescade.physics.ray_transform import RayTransform
from bayescade.projectors._choice import PROJECTORS, choose_projector
from bayescade.projectors._kernels import has_matrix_free
from bayescade.projectors.matrix import MatrixProjector
from bayescade.projectors.matrix_free import MatrixFreeProjector
from bayescade.projectors.per_image import PerImageProjector

__all__ = ["MatrixFreeProjector", "MatrixProjector", "PerImageProjector", "ray_transform", "scan_problem"]

# Operators in use, by weak references: simulation and reconstruction of a scan share one, and unused operators are freed.
_in_use: WeakValueDictionary[tuple[Geometry, torch.device, torch.dtype, str], RayTransform] = WeakValueDictionary()


def ray_transform(
    geometry: Geometry,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    projector: str = "auto",  # matrix, matrix-free, or the faster of the two
    batch: int = 1,  # images of a call, about
    calls: int = 1000,  # expected number of calls, about
    memory_limit: int | None = None,  # bytes of a stored matrix; by default 1 GiB or a quarter of the free memory
) -> RayTransform:
    """The ray transform of a geometry: `A(x)`, `A.adjoint(y)`, `A.fbp(y)`.

    A stored matrix takes time and memory to build, and is then fast for small images and large batches on a CPU.
    Without a matrix the operator is ready at once, for any size. `projectors/_choice.py` has the rule."""
    if not isinstance(geometry, Geometry):
        raise UserError(f"expected a geometry, e.g. case_geometry('sparse-32'), got {geometry!r:.60}")
    if dtype not in (torch.float32, torch.float64):
        raise UserError(f"dtype: expected torch.float32 or torch.float64, got {dtype}")
    if projector not in PROJECTORS:
        raise UserError(f"projector: expected {', '.join(PROJECTORS)}, got '{projector}'")
    device = choose_device(device)
    if projector == "auto":
        projector = choose_projector(geometry, device, dtype, batch, calls, memory_limit)
    elif projector == "matrix-free" and not has_matrix_free(device):
        raise UserError("projector: matrix-free needs Triton on a GPU; install triton, or use projector='matrix'")
    key = (geometry, device, dtype, projector)
    operator = _in_use.get(key)
    if operator is None:
        if projector == "matrix":
            operator = MatrixProjector(geometry, device, dtype, memory_limit)
        else:
            operator = MatrixFreeProjector(geometry, device, dtype)
        _in_use[key] = operator
    return operator


def scan_problem(
    geometry: Geometry,
    device: torch.device | str = "cpu",
    ramp: str = "band-limited",  # of the first image, by FBP
) -> InverseProblem:
    """The inverse problem of a scan with Gaussian noise: least squares, FBP as the first image."""
    operator = ray_transform(geometry, device)
    return InverseProblem(operator, initial_image=functools.partial(operator.fbp, ramp=ramp))
