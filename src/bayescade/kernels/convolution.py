"""3 x 3 convolutions for few channels, in Triton: planes and features in, ReLU or a mask behind, no copies in between.

Images lie flat, pixel after pixel, with the channels of a pixel side by side. A tile is a run of pixels; each of the nine
taps is a shift in memory and a matrix product over the channels. Inputs are of two kinds: *planes*, one number per pixel,
whose nine taps make the columns of one small matrix product; and *features*, with 16 channels or a higher power of two. Sums
are in float32 (float64 for float64).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescade.kernels._triton import cdiv, jit, tl

TAPS = 9
PLANE_TAPS = 16  # nine taps and zeros: a matrix product needs sixteen
BLOCK = 64  # pixels of a tile: more of them need more registers than there are
CHUNKS = 132  # runs of pixels over which a weight's gradient is summed side by side


@jit
def _tile(number, pixels, height, width, BLOCK: tl.constexpr):
    """The pixels of a tile: their place, whether there is such a pixel, and their row and column in the image."""
    pixel = number * BLOCK + tl.arange(0, BLOCK)
    return pixel, pixel < pixels, (pixel // width) % height, pixel % width


@jit
def _in_image(row, column, height, width):
    """Whether a row and a column are those of an image."""
    return (row >= 0) & (row < height) & (column >= 0) & (column < width)


@jit
def _plane_taps(plane, pixel, inside, row, column, height, width):
    """The nine neighbours of each pixel in a plane, zeros outside the image, (pixels, 16)."""
    tap = tl.arange(0, 16)[None, :]
    down = tap // 3 - 1
    right = tap % 3 - 1
    there = (tap < 9) & inside[:, None] & _in_image(row[:, None] + down, column[:, None] + right, height, width)
    return tl.load(plane + pixel[:, None] + down * width + right, mask=there, other=0.0)


@jit
def _convolve(
    planes,
    plane_weights,
    features,
    weights,
    bias,
    mask_by,
    out,
    pixels,
    height,
    width,
    PLANES: tl.constexpr,  # planes of each group
    IN: tl.constexpr,  # channels of each group; 0 = planes only
    OUT: tl.constexpr,  # channels of each group
    IN_STRIDE: tl.constexpr,  # channels of a pixel
    OUT_STRIDE: tl.constexpr,
    RELU: tl.constexpr,  # add the bias and clip at 0
    MASK: tl.constexpr,  # or set to 0 where `mask_by` is not positive
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    group = tl.program_id(1)
    pixel, inside, row, column = _tile(tl.program_id(0), pixels, height, width, BLOCK)
    channel = tl.arange(0, OUT)
    total = tl.zeros((BLOCK, OUT), SUM)
    for place in tl.static_range(PLANES):
        plane = group * PLANES + place
        taps = _plane_taps(planes + plane * pixels, pixel, inside, row, column, height, width)
        tap = tl.arange(0, 16)[:, None]
        weight = tl.load(plane_weights + (plane * 16 + tap) * OUT + channel[None, :])
        total += tl.dot(taps, weight, input_precision=PRECISION, out_dtype=SUM)
    if IN > 0:
        into = tl.arange(0, IN)
        for tap in range(9):
            down = tap // 3 - 1
            right = tap % 3 - 1
            there = inside & _in_image(row + down, column + right, height, width)
            near = features + (pixel + down * width + right)[:, None] * IN_STRIDE + group * IN + into[None, :]
            values = tl.load(near, mask=there[:, None], other=0.0)
            weight = tl.load(weights + ((group * 9 + tap) * IN + into[:, None]) * OUT + channel[None, :])
            total += tl.dot(values, weight, input_precision=PRECISION, out_dtype=SUM)
    place = pixel[:, None] * OUT_STRIDE + group * OUT + channel[None, :]
    if RELU:
        total = tl.maximum(total + tl.load(bias + group * OUT + channel)[None, :], 0.0)
    if MASK:
        total = tl.where(tl.load(mask_by + place, mask=inside[:, None], other=0.0) > 0, total, 0.0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside[:, None])


@jit
def _weight_gradient(
    features,
    slopes,
    partial,
    pixels,
    height,
    width,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    IN_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    TILES: tl.constexpr,  # of a run
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program sums one row of taps (three of nine) of one group over a run of pixels."""
    run = tl.program_id(0)
    down = tl.program_id(1) % 3 - 1
    group = tl.program_id(1) // 3
    into = tl.arange(0, IN)
    channel = tl.arange(0, OUT)
    left = tl.zeros((IN, OUT), SUM)
    middle = tl.zeros((IN, OUT), SUM)
    right = tl.zeros((IN, OUT), SUM)
    for tile in range(TILES):
        pixel, inside, row, column = _tile(run * TILES + tile, pixels, height, width, BLOCK)
        there = inside & (row + down >= 0) & (row + down < height)
        slope = tl.load(
            slopes + pixel[:, None] * OUT_STRIDE + group * OUT + channel[None, :], mask=inside[:, None], other=0.0
        )
        near = features + (pixel + down * width)[:, None] * IN_STRIDE + group * IN + into[None, :]
        value = tl.load(near - IN_STRIDE, mask=(there & (column > 0))[:, None], other=0.0)
        left += tl.dot(tl.trans(value), slope, input_precision=PRECISION, out_dtype=SUM)
        value = tl.load(near, mask=there[:, None], other=0.0)
        middle += tl.dot(tl.trans(value), slope, input_precision=PRECISION, out_dtype=SUM)
        value = tl.load(near + IN_STRIDE, mask=(there & (column < width - 1))[:, None], other=0.0)
        right += tl.dot(tl.trans(value), slope, input_precision=PRECISION, out_dtype=SUM)
    first = ((run * GROUPS + group) * 9 + (down + 1) * 3) * IN * OUT
    place = partial + first + into[:, None] * OUT + channel[None, :]
    tl.store(place, left)
    tl.store(place + IN * OUT, middle)
    tl.store(place + 2 * IN * OUT, right)


@jit
def _plane_weight_gradient(
    planes,
    slopes,
    partial,
    partial_bias,
    pixels,
    height,
    width,
    PLANES: tl.constexpr,  # of all groups; 0 = the bias only
    PLANE_GROUP: tl.constexpr,  # planes of a group
    OUT: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    TILES: tl.constexpr,  # of a run
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program sums the taps of one plane (or, behind them, the bias of one group) over a run of pixels."""
    run = tl.program_id(0)
    plane = tl.program_id(1)
    channel = tl.arange(0, OUT)
    group = tl.where(plane < PLANES, plane // PLANE_GROUP, plane - PLANES)
    total = tl.zeros((16, OUT), SUM)
    bias = tl.zeros((OUT,), SUM)
    for tile in range(TILES):
        pixel, inside, row, column = _tile(run * TILES + tile, pixels, height, width, BLOCK)
        slope = tl.load(
            slopes + pixel[:, None] * OUT_STRIDE + group * OUT + channel[None, :], mask=inside[:, None], other=0.0
        )
        if plane < PLANES:
            taps = _plane_taps(planes + plane * pixels, pixel, inside, row, column, height, width)
            total += tl.dot(tl.trans(taps), slope, input_precision=PRECISION, out_dtype=SUM)
        else:
            bias += tl.sum(slope.to(SUM), 0)
    if plane < PLANES:
        tap = tl.arange(0, 16)
        tl.store(partial + ((run * PLANES + plane) * 16 + tap[:, None]) * OUT + channel[None, :], total)
    else:
        groups = tl.num_programs(1) - PLANES
        tl.store(partial_bias + (run * groups + group) * OUT + channel, bias)


def convolve(
    planes: Tensor | None,  # (groups * planes, pixels)
    plane_weights: Tensor | None,  # (groups * planes, 16, out)
    features: Tensor | None,  # (pixels, groups * in)
    weights: Tensor | None,  # (groups, 9, in, out)
    bias: Tensor,  # (groups, out)
    shape: tuple[int, int],  # (height, width)
) -> Tensor:
    """relu(planes * plane_weights + features * weights + bias), (pixels, groups * out), groups side by side."""
    groups, out = bias.shape
    example = planes if planes is not None else features
    assert example is not None
    pixels = planes.shape[1] if planes is not None else len(example)
    found = torch.empty((pixels, groups * out), dtype=example.dtype, device=example.device)
    _run_convolve(planes, plane_weights, features, weights, bias, None, found, pixels, shape, groups, out)
    return found


def input_gradient(
    slopes: Tensor,  # (pixels, groups * out): of the loss with respect to the convolution's output
    weights: Tensor,  # (groups, 9, in, out)
    values: Tensor,  # (pixels, groups * in): the convolution's input, itself behind a ReLU
    shape: tuple[int, int],
) -> Tensor:
    """The gradient with respect to the input, 0 where the ReLU before it was closed: a convolution with turned weights."""
    groups, _, into, _ = weights.shape
    turned = weights.flip(1).transpose(2, 3).contiguous()  # (groups, 9, out, in)
    found = torch.empty_like(values)
    _run_convolve(None, None, slopes, turned, None, values, found, len(slopes), shape, groups, into)
    return found


def _run_convolve(
    planes: Tensor | None,
    plane_weights: Tensor | None,
    features: Tensor | None,
    weights: Tensor | None,
    bias: Tensor | None,
    mask_by: Tensor | None,
    found: Tensor,
    pixels: int,
    shape: tuple[int, int],
    groups: int,
    out: int,
) -> None:
    into = 0 if weights is None else weights.shape[2]
    number = 0 if planes is None else len(planes) // groups
    _convolve[(cdiv(pixels, BLOCK), groups)](
        _some(planes, found),
        _some(plane_weights, found),
        _some(features, found),
        _some(weights, found),
        _some(bias, found),
        _some(mask_by, found),
        found,
        pixels,
        *shape,
        PLANES=number,
        IN=into,
        OUT=out,
        IN_STRIDE=into * groups,
        OUT_STRIDE=out * groups,
        RELU=bias is not None,
        MASK=mask_by is not None,
        PRECISION=precision(found),
        SUM=sums(found),
        BLOCK=BLOCK,
        num_warps=4,
    )


def weight_gradient(
    features: Tensor,  # (pixels, groups * in)
    slopes: Tensor,  # (pixels, groups * out)
    groups: int,
    shape: tuple[int, int],
) -> Tensor:
    """The gradient with respect to the weights, (groups, 9, in, out), in the precision of sums."""
    pixels, into, out = len(features), features.shape[1] // groups, slopes.shape[1] // groups
    runs, tiles = runs_of(pixels, CHUNKS)
    partial = torch.empty((runs, groups, TAPS, into, out), dtype=sum_type(features), device=features.device)
    _weight_gradient[(runs, 3 * groups)](
        features,
        slopes,
        partial,
        pixels,
        *shape,
        IN=into,
        OUT=out,
        IN_STRIDE=into * groups,
        OUT_STRIDE=out * groups,
        GROUPS=groups,
        TILES=tiles,
        PRECISION=precision(features),
        SUM=sums(features),
        BLOCK=BLOCK,
        num_warps=4,
    )
    return partial.sum(0)


def plane_weight_gradient(
    planes: Tensor | None,  # (groups * planes, pixels)
    slopes: Tensor,  # (pixels, groups * out)
    groups: int,
    shape: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """The gradients with respect to the plane weights, (groups * planes, 16, out), and the bias, (groups, out)."""
    pixels, out = len(slopes), slopes.shape[1] // groups
    number = 0 if planes is None else len(planes)
    runs, tiles = runs_of(pixels, CHUNKS)
    partial = torch.empty((runs, max(number, 1), PLANE_TAPS, out), dtype=sum_type(slopes), device=slopes.device)
    bias = torch.empty((runs, groups, out), dtype=sum_type(slopes), device=slopes.device)
    _plane_weight_gradient[(runs, number + groups)](
        _some(planes, slopes),
        slopes,
        partial,
        bias,
        pixels,
        *shape,
        PLANES=number,
        PLANE_GROUP=max(number // groups, 1),
        OUT=out,
        OUT_STRIDE=out * groups,
        TILES=tiles,
        PRECISION=precision(slopes),
        SUM=sums(slopes),
        BLOCK=BLOCK,
        num_warps=4,
    )
    return partial.sum(0) if number else partial[0, :0], bias.sum(0)


def runs_of(pixels: int, most: int) -> tuple[int, int]:
    """How many runs of how many tiles each cover the pixels."""
    tiles = cdiv(cdiv(pixels, BLOCK), most)
    return cdiv(pixels, tiles * BLOCK), tiles


def _some(tensor: Tensor | None, instead: Tensor) -> Tensor:
    """The tensor, or another in its place where a kernel does not look at it."""
    return instead if tensor is None else tensor


def sum_type(tensor: Tensor) -> torch.dtype:
    """The type of sums over such numbers."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def sums(tensor: Tensor) -> tl.dtype:
    """The same, as Triton calls it."""
    return tl.float64 if tensor.dtype == torch.float64 else tl.float32


def precision(tensor: Tensor) -> str:
    """How products of such numbers are made: float32 as TF32, as convolutions are by default."""
    return "tf32" if tensor.dtype == torch.float32 else "ieee"
