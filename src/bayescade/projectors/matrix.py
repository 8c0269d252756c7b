"""The stored projector: Joseph's line integrals as a CSR matrix and its transpose, the batch as columns.

Fast on CPU and CUDA as long as the pair fits memory: 8 bytes per entry and direction. Torch's own CSR autograd
rebuilds the transpose on every backward pass; storing both makes the adjoint as cheap as the forward.
"""

import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.devices import available_bytes
from bayescade.errors import UserError
from bayescade.physics.fbp import BackProjection
from bayescade.physics.geometry import Geometry
from bayescade.physics.ray_transform import RayTransform, check_input
from bayescade.projectors._autograd import Apply
from bayescade.projectors._kernels import matrix_kernels
from bayescade.projectors._lines import scan_lines
from bayescade.projectors._parts import in_parts
from bayescade.projectors.matrix_free import back_projector

INDEX_BYTES = 4
MOST_ENTRIES = 2**31 - 1  # 32-bit row pointers; 64-bit indices cost 15 to 50 % of the speed
# Bytes of work arrays while the matrix is built: points and directions of rays; counts of rays and pixels.
RAY_BYTES, PIXEL_BYTES = 80, 16
SAMPLED = 24  # pixels along each axis from which the number of entries is estimated


@dataclass(frozen=True)
class MatrixPair:
    """A sparse matrix and its transpose, both CSR."""

    matrix: Tensor  # (rays, pixels)
    transpose: Tensor  # (pixels, rays)

    def apply(self, x: Tensor, transposed: bool) -> Tensor:
        """The product with every image of x, (..., columns)."""
        matrix = self.transpose if transposed else self.matrix
        columns = x.reshape(-1, x.shape[-1])
        if columns.shape[0] == 1:
            product = torch.mv(matrix, columns[0])
        else:
            product = torch.mm(matrix, columns.T.contiguous()).T
        return product.reshape(*x.shape[:-1], matrix.shape[0])


@final
class MatrixProjector(RayTransform):
    """Ray transform by a stored matrix pair; build it with `ray_transform(geometry)`."""

    def __init__(
        self,
        geometry: Geometry,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        memory_limit: int | None = None,  # bytes; by default the free memory of the device
    ):
        self.geometry = geometry
        self.device = torch.device(device)
        self.dtype = dtype
        self.domain_shape = (1, *geometry.image_shape)
        self.range_shape = (1, *geometry.sinogram_shape)
        guard_memory(geometry, self.device, dtype, memory_limit)
        self._pair = build_pair(geometry, self.device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, "image", x, self.domain_shape)
        flat: Tensor = Apply.apply(x.flatten(-3), self._pair, False)
        return flat.reshape(*x.shape[:-3], *self.range_shape)

    def adjoint(self, y: Tensor) -> Tensor:
        check_input(self, "sinogram", y, self.range_shape)
        flat: Tensor = Apply.apply(y.flatten(-3), self._pair, True)
        return flat.reshape(*y.shape[:-3], *self.domain_shape)

    def back_projector(self, geometry: Geometry) -> BackProjection | None:
        return back_projector(self, geometry)


@dataclass(frozen=True)
class Csr:
    """A sparse matrix by rows, in arrays of the CPU."""

    starts: NDArray[np.int32]  # (rows + 1,)
    columns: NDArray[np.int32]  # (entries,)
    values: NDArray[Any]  # (entries,)


def build_pair(geometry: Geometry, device: torch.device, dtype: torch.dtype) -> MatrixPair:
    """The matrix of the geometry and its transpose: computed on the CPU, in float64, and rounded once."""
    rays, pixels = geometry.views * geometry.bins, geometry.image_shape[0] * geometry.image_shape[1]
    matrix = _matrix(geometry, dtype)
    columns = _transposed(matrix, pixels)
    return MatrixPair(_tensor(matrix, (rays, pixels), device), _tensor(columns, (pixels, rays), device))


def _matrix(geometry: Geometry, dtype: torch.dtype) -> Csr:
    """The matrix: a row per ray."""
    kernels = matrix_kernels()
    points, directions = (np.ascontiguousarray(part.reshape(-1, 2)) for part in geometry.rays(0, geometry.views))
    rays = (points, directions, geometry.pixel_size, *geometry.image_shape)
    counts = np.empty(len(points), np.int32)
    in_parts(lambda *part: kernels.count_entries(*rays, *part, counts), len(points))
    starts = _starts(counts)
    columns, values = np.empty(starts[-1], np.int32), torch.empty(int(starts[-1]), dtype=dtype).numpy()
    in_parts(lambda *part: kernels.fill_entries(*rays, *part, starts, columns, values), len(points))
    return Csr(starts, columns, values)


def _transposed(matrix: Csr, pixels: int) -> Csr:
    """The transpose: a row per pixel."""
    kernels = matrix_kernels()
    counts = np.zeros(pixels, np.int32)
    in_parts(lambda *part: kernels.count_pixel_entries(matrix.columns, *part, counts), pixels, parts=1)
    starts = _starts(counts)
    cursor, columns, values = starts[:-1].copy(), np.empty_like(matrix.columns), np.empty_like(matrix.values)
    entries = (matrix.starts, matrix.columns, matrix.values)
    in_parts(lambda *part: kernels.transpose(*entries, *part, cursor, columns, values), pixels, parts=1)
    return Csr(starts, columns, values)


def _starts(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Where the entries of each row start: 0 and the running sum of the counts."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    if starts[-1] > MOST_ENTRIES:
        raise UserError("a stored matrix has at most 2^31 entries; use projector='matrix-free'")
    return starts.astype(np.int32)


def _tensor(matrix: Csr, shape: tuple[int, int], device: torch.device) -> Tensor:
    starts, columns, values = (
        torch.from_numpy(array).to(device) for array in (matrix.starts, matrix.columns, matrix.values)
    )
    with warnings.catch_warnings():  # "Sparse CSR tensor support is in beta state"
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(starts, columns, values, size=shape, check_invariants=False)


def entry_count(geometry: Geometry) -> int:
    """About how many entries the matrix has: 2 m / D of every pixel and view (see `_lines`), from some of the pixels."""
    height, width = geometry.image_shape
    lines = scan_lines([geometry])
    cosine, sine = (part[0].numpy()[:, None, None] for part in (lines.cosine, lines.sine))
    u_first, u_step, q_first, q_step = lines.numbers[0, :4].tolist()
    middle = (np.arange(SAMPLED) + 0.5) / SAMPLED - 0.5
    x, y = middle[:, None] * height, middle[None, :] * width
    t = x * sine - y * cosine
    spacing = q_step - u_step * t
    b = (x * cosine + y * sine + u_first * t - q_first) / spacing
    u = u_first + b * u_step
    count = 2 * np.maximum(abs(cosine + u * sine), abs(sine - u * cosine)) / spacing
    seen = (b > -0.5) & (b < geometry.bins - 0.5)
    return int((count * seen).mean((1, 2)).sum() * height * width)


def matrix_bytes(geometry: Geometry, entries: int, dtype: torch.dtype) -> int:
    """About the memory of the stored pair, with this many entries each, while it is built."""
    rays, pixels = geometry.views * geometry.bins, geometry.image_shape[0] * geometry.image_shape[1]
    return entries * 2 * (INDEX_BYTES + dtype.itemsize) + RAY_BYTES * rays + PIXEL_BYTES * pixels


def guard_memory(geometry: Geometry, device: torch.device, dtype: torch.dtype, limit: int | None) -> None:
    """Raises before building when the stored pair would not fit memory."""
    rays, pixels = geometry.views * geometry.bins, geometry.image_shape[0] * geometry.image_shape[1]
    entries = entry_count(geometry)
    needed = matrix_bytes(geometry, entries, dtype)
    entries = max(entries, rays, pixels)
    free = min(available_bytes(device), available_bytes(torch.device("cpu"))) if limit is None else limit
    if needed <= free and entries <= MOST_ENTRIES:
        return
    views = int(geometry.views * min(free / needed, MOST_ENTRIES / entries))
    first = f"at most {views} of these views, " if views else ""
    have = f"{_gigabytes(free)} {'are free on ' + str(device) if limit is None else 'is the limit given'}"
    if needed <= free:
        have = "a stored matrix has at most 2^31 entries"
    raise UserError(
        f"the stored projector for {geometry.views} views of {geometry.bins} bins and an image of "
        f"{geometry.image_shape[0]} x {geometry.image_shape[1]} needs about {_gigabytes(needed)} while it is built, and "
        f"{have}; use projector='matrix-free', or {first}fewer bins or larger pixels, or another memory_limit= (bytes)"
    )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2g} GB" if count < 1e10 else f"{count / 1e9:.0f} GB"
