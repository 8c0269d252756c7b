"""Which projector takes less time: the rule of `ray_transform`."""

import dataclasses
import math

import torch

from bayescade.devices import available_bytes
from bayescade.physics.geometry import Geometry
from bayescade.projectors._kernels import has_matrix_free
from bayescade.projectors.matrix import MOST_ENTRIES, entry_count, matrix_bytes

PROJECTORS = ("auto", "matrix", "matrix-free")
MOST_BYTES = 2**30  # largest stored matrix that `auto` chooses if no memory limit is given
MOST_SHARE = 1 / 4  # of the free memory of the device: the same


@dataclasses.dataclass(frozen=True)
class Costs:
    """Times in seconds on one kind of device, measured by benchmarks/projectors.py. A weight is an entry of the matrix."""

    build: float  # of a stored matrix, per weight
    matrix_call: float  # of a call, whatever the number of weights
    matrix_read: float  # of a call, per weight, for any batch
    matrix_multiply: float  # of a call, per weight and image
    matrix_multiply_cached: float  # the same if images and sinograms of the batch fit the cache
    cache_bytes: int
    direct_call: float  # of a call without a matrix, whatever the number of weights; on a CPU for every image
    direct_start: float  # per weight, for any batch
    direct_compute: float  # per weight and image


# Two cores; one H200.
CPU = Costs(27e-9, 1e-4, 0.35e-9, 0.07e-9, 0.07e-9, 0, 1.1e-3, 0.0, 0.52e-9)
GPU = Costs(12e-9, 1.5e-4, 2.5e-12, 3e-12, 0.6e-12, 2**25, 2.6e-4, 1.7e-12, 0.25e-12)


def choose_projector(
    geometry: Geometry,
    device: torch.device,
    dtype: torch.dtype,
    batch: int,  # images of a call
    calls: int,  # number of forward calls plus number of adjoint calls
    memory_limit: int | None,
) -> str:
    """`matrix` if it fits the memory limit and building and applying it takes less time in all; else `matrix-free`.

    A matrix has at most 2^31 entries. On a GPU without Triton there is only `matrix`.

    With n weights:
    matrix:       n * build + calls * (call + n * (read + batch * multiply))
    matrix-free:  calls * (call + n * (start + batch * compute)), on a CPU with `call` for every image
    """
    if not has_matrix_free(device):
        return "matrix"
    weights = entry_count(geometry)
    limit = min(MOST_BYTES, int(available_bytes(device) * MOST_SHARE)) if memory_limit is None else memory_limit
    if matrix_bytes(geometry, weights, dtype) > limit or weights > MOST_ENTRIES:
        return "matrix-free"
    cost = CPU if device.type == "cpu" else GPU
    numbers = math.prod(geometry.image_shape) + math.prod(geometry.sinogram_shape)
    cached = batch * numbers * dtype.itemsize <= cost.cache_bytes
    multiply = cost.matrix_multiply_cached if cached else cost.matrix_multiply
    matrix = cost.matrix_call + weights * (cost.matrix_read + batch * multiply)
    direct = cost.direct_call * (batch if device.type == "cpu" else 1)
    direct += weights * (cost.direct_start + batch * cost.direct_compute)
    return "matrix" if weights * cost.build + calls * matrix < calls * direct else "matrix-free"
