"""The stored projector: Joseph's line integrals as a CSR matrix and its transpose, the batch as columns.

Fast on CPU and CUDA as long as the pair fits memory: 8 bytes per entry and direction. Torch's own CSR autograd
rebuilds the transpose on every backward pass; storing both makes the adjoint as cheap as the forward.
"""

import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from bayescade.devices import available_bytes
from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry
from bayescade.physics.ray_transform import RayTransform
from bayescade.projectors._joseph import joseph_taps

INDEX_BYTES = 4
MOST_ENTRIES = 2**31 - 1  # 32-bit row pointers; 64-bit indices cost 15 to 50 % of the speed
# Views are built in chunks of about this many candidate entries, which bounds the work arrays.
BUILD_ENTRIES = 2_000_000
BUILD_ENTRY_BYTES = 100


@dataclass(frozen=True)
class Pair:
    """A sparse matrix and its transpose, both CSR."""

    matrix: Tensor  # (rays, pixels)
    transpose: Tensor  # (pixels, rays)


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
        self._check("image", x, self.domain_shape)
        flat: Tensor = _Apply.apply(x.flatten(-3), self._pair, False)
        return flat.reshape(*x.shape[:-3], *self.range_shape)

    def adjoint(self, y: Tensor) -> Tensor:
        self._check("sinogram", y, self.range_shape)
        flat: Tensor = _Apply.apply(y.flatten(-3), self._pair, True)
        return flat.reshape(*y.shape[:-3], *self.domain_shape)


class _Apply(torch.autograd.Function):
    """y = M x for the rows of x, differentiable any number of times; its derivative is the transpose."""

    @staticmethod
    def forward(x: Tensor, pair: Pair, transposed: bool) -> Tensor:  # x: (..., columns)
        matrix = pair.transpose if transposed else pair.matrix
        columns = x.reshape(-1, x.shape[-1])
        if columns.shape[0] == 1:
            product = torch.mv(matrix, columns[0])
        else:
            product = torch.mm(matrix, columns.T.contiguous()).T
        return product.reshape(*x.shape[:-1], matrix.shape[0])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, ctx.pair, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Apply.apply(gradient, ctx.pair, not ctx.transposed), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return _Apply.apply(tangent, ctx.pair, ctx.transposed)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, pair: Pair, transposed: bool) -> Any:
        return _Apply.apply(x.movedim(in_dims[0], 0), pair, transposed), 0


def build_pair(geometry: Geometry, device: torch.device, dtype: torch.dtype) -> Pair:
    """The matrix of the geometry and its transpose, built a few views at a time in float64 and rounded once."""
    rays, pixels = geometry.views * geometry.bins, geometry.image_shape[0] * geometry.image_shape[1]
    counts, columns, values = [], [], []
    for first, last in _view_chunks(geometry):
        taps = joseph_taps(geometry, first, last, device)
        counts.append(taps.counts)
        columns.append(taps.pixels)
        values.append(taps.weights.to(dtype))

    transpose = _transposed(counts, columns, values, pixels, rays)
    start = _starts(torch.cat(counts))
    index = torch.cat(columns)
    columns.clear()  # one copy less at the peak
    return Pair(_csr(start, index, torch.cat(values), (rays, pixels)), transpose)


def _transposed(
    counts: list[Tensor],  # entries of each row, for each chunk of rows
    columns: list[Tensor],  # column of each entry, row after row
    values: list[Tensor],
    pixels: int,
    rays: int,
) -> Tensor:
    """The transpose: the entries of a chunk, sorted by column, follow those of the chunks before it."""
    start = _starts(_occurrences(columns, pixels))
    index = torch.empty(int(start[-1]), dtype=torch.int32, device=start.device)
    value = torch.empty(int(start[-1]), dtype=values[0].dtype, device=start.device)
    cursor = start[:-1].to(torch.int64)
    first = 0
    for chunk, column in enumerate(columns):
        row = torch.arange(first, first + len(counts[chunk]), dtype=torch.int32, device=start.device)
        occurrences = torch.bincount(column, minlength=pixels)
        ordered, order = torch.sort(column, stable=True)
        rank = torch.arange(len(column), device=start.device) - (occurrences.cumsum(0) - occurrences)[ordered]
        offset = cursor[ordered] + rank
        index[offset] = row.repeat_interleave(counts[chunk])[order]
        value[offset] = values[chunk][order]
        cursor += occurrences
        first += len(counts[chunk])
    return _csr(start, index, value, (pixels, rays))


def _occurrences(columns: list[Tensor], pixels: int) -> Tensor:
    total = torch.bincount(columns[0], minlength=pixels)
    for column in columns[1:]:
        total += torch.bincount(column, minlength=pixels)
    return total


def _starts(counts: Tensor) -> Tensor:
    """Where each row starts: 0 and the running sum."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(torch.int32)


def _csr(start: Tensor, index: Tensor, value: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():  # "Sparse CSR tensor support is in beta state"
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(start, index, value, size=shape, check_invariants=False)


def _view_chunks(geometry: Geometry) -> list[tuple[int, int]]:
    per_view = geometry.bins * max(geometry.image_shape) * 2
    step = max(1, BUILD_ENTRIES // per_view)
    return [(first, min(first + step, geometry.views)) for first in range(0, geometry.views, step)]


def entry_count(geometry: Geometry) -> int:
    """About how many entries the matrix has; a few percent too many where the detector is smaller than the image.

    At angle t a pixel meets the rays within p m of it, m = max(|cos t|, |sin t|): 2 p m / spacing of them on average.
    """
    height, width = geometry.image_shape
    angles = np.asarray(geometry.angles)
    per_pixel = 2 * geometry.pixel_size * np.maximum(abs(np.cos(angles)), abs(np.sin(angles))) / geometry.ray_spacing
    per_view = np.minimum(per_pixel * height * width, 2.0 * geometry.bins * max(height, width))
    return int(per_view.sum())


def guard_memory(geometry: Geometry, device: torch.device, dtype: torch.dtype, limit: int | None) -> None:
    """Raises before building when the stored pair would not fit memory."""
    entries = entry_count(geometry)
    entry = INDEX_BYTES + dtype.itemsize
    rays, pixels = geometry.views * geometry.bins, geometry.image_shape[0] * geometry.image_shape[1]
    at_once = max(BUILD_ENTRIES, 2 * geometry.bins * max(geometry.image_shape))
    # The pair and a third copy while it is built, the work arrays of a chunk of views, and arrays per pixel and per ray.
    needed = entries * 3 * entry + at_once * BUILD_ENTRY_BYTES + 32 * pixels + 16 * rays
    entries = max(entries, rays, pixels)
    free = available_bytes(device) if limit is None else limit
    if needed <= free and entries <= MOST_ENTRIES:
        return
    views = int(geometry.views * min(free / needed, MOST_ENTRIES / entries))
    first = f"use at most {views} of these views, " if views else "use "
    have = f"{_gigabytes(free)} {'are free on ' + str(device) if limit is None else 'is the limit given'}"
    if needed <= free:
        have = "a stored matrix has at most 2^31 entries"
    raise UserError(
        f"the stored projector for {geometry.views} views of {geometry.bins} bins and an image of "
        f"{geometry.image_shape[0]} x {geometry.image_shape[1]} needs about {_gigabytes(needed)} while it is built, and "
        f"{have}; {first}fewer bins or larger pixels, or another device or memory_limit= (bytes) in ray_transform"
    )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2g} GB" if count < 1e10 else f"{count / 1e9:.0f} GB"
