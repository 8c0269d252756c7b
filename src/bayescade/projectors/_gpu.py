"""Matrix-free projection on a GPU; the same functions as `_cpu`."""

import dataclasses
import math

import torch
from torch import Tensor

from bayescade.kernels import projection
from bayescade.kernels._triton import cdiv, device_of
from bayescade.projectors._lines import Lines

MOST_NUMBERS = 2**31 - 1
UNROLLED = 8  # most bins of a pixel and a view that are compiled one by one
FEW_TAPS = (2, 3, 4, 6, 8)


@dataclasses.dataclass(frozen=True)
class Tile:
    """What one program computes, and by how many warps."""

    outer: int  # views, or rows of pixels
    inner: int  # bins, or columns of pixels
    images: int
    warps: int


def forward(
    lines: Lines,
    images: Tensor,  # (images, scans, height, width)
) -> Tensor:
    """A x: sinograms (images, scans, views, bins)."""
    chunks = [_project(projection.project, lines, chunk, 1)[0] for chunk in _chunks(lines, images)]
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks)


def derivatives(
    lines: Lines,
    images: Tensor,  # (images, scans, height, width)
) -> tuple[Tensor, Tensor]:
    """Derivatives of the sinograms with respect to the angle of the view and to the offset, (images, scans, views,
    bins) each."""
    chunks = [_project(projection.project_derivatives, lines, chunk, 2) for chunk in _chunks(lines, images)]
    by_angle, by_offset = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return by_angle, by_offset


def _project(kernel: object, lines: Lines, images: Tensor, outputs: int) -> list[Tensor]:
    count, scans, height, width = images.shape
    views, bins = lines.sinogram_shape
    pixels = images_last(images)
    padded = pixels.shape[-1]
    columns, column_step, column_stride = pixels, width * padded, padded
    if count < 8:  # neighbouring rays along a column read neighbouring memory only if it is transposed
        columns, column_step, column_stride = pixels.transpose(1, 2).contiguous(), padded, height * padded
    sinograms = [images.new_empty((scans, views, bins, padded)) for _ in range(outputs)]
    tile = ray_tile(count)
    grid = (cdiv(bins, tile.inner), cdiv(views, tile.outer), scans * cdiv(count, tile.images))
    with device_of(images):
        kernel[grid](  # type: ignore[index]
            pixels,
            columns,
            *sinograms,
            lines.cosine,
            lines.sine,
            lines.numbers,
            lines.counts,
            height,
            width,
            views,
            bins,
            padded,
            column_step,
            column_stride,
            VIEWS=tile.outer,
            BINS=tile.inner,
            IMAGES=tile.images,
            ALIGNED=padded & -padded,
            num_warps=tile.warps,
        )
    return [sinogram.permute(3, 0, 1, 2)[:count] for sinogram in sinograms]


def adjoint(
    lines: Lines,
    sinograms: Tensor,  # (images, scans, views, bins)
) -> Tensor:
    """A' y: images (images, scans, height, width)."""
    chunks = [_back(lines, images_last(chunk, lines.factor), lines.taps, False) for chunk in _chunks(lines, sinograms)]
    return (chunks[0] if len(chunks) == 1 else torch.cat(chunks))[: len(sinograms)]


def interpolated(
    lines: Lines,
    sinograms: Tensor,  # (images, scans, views, bins)
) -> Tensor:
    """The sum over views of (dq / D)^2 times the sinogram interpolated linearly at b*: images (images, scans, height,
    width)."""
    chunks = [_back(lines, images_last(chunk), 2, True) for chunk in _chunks(lines, sinograms)]
    return (chunks[0] if len(chunks) == 1 else torch.cat(chunks))[: len(sinograms)]


def interpolated_transpose(
    lines: Lines,
    images: Tensor,  # (images, scans, height, width)
) -> Tensor:
    """The transpose of `interpolated`: sinograms (images, scans, views, bins)."""
    chunks = [_project(projection.transpose_interpolation, lines, chunk, 1)[0] for chunk in _chunks(lines, images)]
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks)


def _chunks(lines: Lines, tensor: Tensor) -> tuple[Tensor, ...]:
    """The images in chunks of a multiple of four images: kernels count the numbers of a scan in 32 bits."""
    largest = max(math.prod(lines.image_shape), math.prod(lines.sinogram_shape))
    return tensor.split(max(4, MOST_NUMBERS // largest // 4 * 4))


def compiled_taps(taps: int) -> int:
    """The number of taps that the kernel is compiled for, at least `taps`: one of few, as compiling takes seconds."""
    few = next((number for number in FEW_TAPS if number >= taps), None)
    return few or UNROLLED * cdiv(taps, UNROLLED)


def _back(lines: Lines, sinograms: Tensor, taps: int, interpolate: bool) -> Tensor:
    scans, views, bins, count = sinograms.shape
    height, width = lines.image_shape
    images = sinograms.new_empty((scans, height, width, count))
    tile = pixel_tile(count)
    grid = (cdiv(width, tile.inner), cdiv(height, tile.outer), scans * cdiv(count, tile.images))
    with device_of(sinograms):
        projection.back_project[grid](
            sinograms,
            images,
            lines.cosine,
            lines.sine,
            lines.reach,
            lines.numbers,
            lines.counts,
            height,
            width,
            views,
            bins,
            count,
            TAPS=compiled_taps(taps),
            UNROLLED=min(compiled_taps(taps), UNROLLED),
            PARALLEL=lines.parallel,
            INTERPOLATE=interpolate,
            TILE_HEIGHT=tile.outer,
            TILE_WIDTH=tile.inner,
            IMAGES=tile.images,
            ALIGNED=count & -count,
            num_warps=tile.warps,
        )
    return images.permute(3, 0, 1, 2)


def images_last(
    tensor: Tensor,  # (images, scans, *shape)
    factor: Tensor | None = None,  # (scans, *shape)
) -> Tensor:
    """The tensor, times the factor, as (scans, *shape, images); images are padded to a multiple of four, for wide loads."""
    count = len(tensor)
    padded = count if count < 3 else 4 * cdiv(count, 4)
    moved = tensor.movedim(0, -1)
    if factor is None and padded == count:
        return moved.contiguous()
    result = moved.new_empty((*moved.shape[:-1], padded))
    result[..., count:] = 0
    if factor is None:
        result[..., :count] = moved
    else:
        torch.mul(moved, factor[..., None], out=result[..., :count])
    return result


# Fastest on an H200, of about ten tiles each.
def ray_tile(count: int) -> Tile:
    """The tile of rays for this number of images."""
    if count <= 2:
        return Tile(8, 16, 1, 4)
    images = min(_power_of_two(count), 32)
    if images < 16:
        return Tile(4, 16, images, 2)
    return Tile(8, 8, 32, 4) if images == 32 else Tile(4, 8, images, 4)


def pixel_tile(count: int) -> Tile:
    """The tile of pixels for this number of images."""
    if count <= 2:
        return Tile(16, 16, count, 8)
    images = min(_power_of_two(count), 64)
    if images < 16:
        return Tile(8, 16, images, 4)
    return Tile(8, 8 if images < 64 else 4, images, 4)


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least this number."""
    return 1 << (count - 1).bit_length()
