"""3 x 3 convolutions for few channels, in Triton: planes and features in, ReLU or a mask after, no copies in between.

A `Frame` defines the memory layout of images. A tile is a run of positions; each of the nine taps is a shift in memory and a
matrix product over the channels. Inputs are of two kinds: *planes*, one number per position, whose nine taps make the columns
of one small matrix product; and *features*, with 16 channels or a higher power of two. For the gradient of weights with few
channels, the three taps of a row are adjacent in memory; with a fourth that is dropped they make one product. Sums are in
float32 (float64 for float64).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescade.kernels._triton import Launch, jit, tl
from bayescade.kernels.frame import Frame, _inside

TAPS = 9
PLANE_TAPS = 16  # nine taps, a one, and zeros: a matrix product needs sixteen
ONES = 9  # the column of ones, whose weight's gradient is that of the bias
JOINED = 4  # taps of one product, in the gradient of weights
MOST_JOINED = 32  # channels up to which taps are joined
MOST_SUMS = 2**31
# Measured on an H200; a wide output needs more registers.
CONVOLVE = Launch(block=256, warps=4, stages=2)
WIDE = 32  # channels above which an output is wide
CONVOLVE_WIDE = Launch(block=128, warps=8, stages=4)
# By the numbers that a program sums: the largest number for each launch.
WEIGHT_GRADIENT = {
    4 * 32 * 16: Launch(block=64, warps=4, stages=3, runs=264),
    3 * 64 * 32: Launch(block=64, warps=8, stages=3, runs=264),
    MOST_SUMS: Launch(block=32, warps=8, stages=3, runs=264),
}
PLANE_GRADIENT = Launch(block=256, warps=4, stages=3, runs=1056)


@jit
def _plane_taps(plane, local, WIDTH: tl.constexpr):
    """The nine neighbours of each position in a plane, (positions, 16); entries after the ninth are the position itself."""
    tap = tl.arange(0, 16)
    shift = tl.where(tap < 9, (tap // 3 - 1) * (WIDTH + 1) + tap % 3 - 1, 0)
    return tl.load(plane + local[:, None] + shift[None, :])


@jit
def _convolve(
    planes,
    plane_weights,
    features,
    weights,
    bias,
    mask_by,
    out,
    plane_size,  # numbers of a plane
    in_group,  # numbers from a group's features to those of the next
    out_group,
    stop,
    PLANES: tl.constexpr,  # planes of each group
    IN: tl.constexpr,  # channels of each group; 0 = planes only
    OUT: tl.constexpr,  # channels of each group
    IN_STRIDE: tl.constexpr,  # channels of a position
    OUT_STRIDE: tl.constexpr,
    MASK: tl.constexpr,  # set to 0 where `mask_by` is not positive; else add the bias and clip at 0
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    group = tl.program_id(1)
    local = tl.arange(0, BLOCK)
    channel = tl.arange(0, OUT)
    total = tl.zeros((BLOCK, OUT), SUM)
    for number in tl.static_range(PLANES):
        plane = group * PLANES + number
        taps = _plane_taps(planes + plane * plane_size.to(tl.int64) + begin, local, WIDTH)
        tap = tl.arange(0, 16)[:, None]
        plane_weight = tl.load(plane_weights + (plane * 16 + tap) * OUT + channel[None, :])
        total += tl.dot(taps, plane_weight, input_precision=PRECISION, out_dtype=SUM)
    if IN > 0:
        into = tl.arange(0, IN)
        first = features + group * in_group.to(tl.int64) + begin * IN_STRIDE
        near = first + local[:, None] * IN_STRIDE + into[None, :]
        for step in range(9):
            shift = (step // 3 - 1) * (WIDTH + 1) + step % 3 - 1
            values = tl.load(near + shift * IN_STRIDE)
            weight = tl.load(weights + ((group * 9 + step) * IN + into[:, None]) * OUT + channel[None, :])
            total += tl.dot(values, weight, input_precision=PRECISION, out_dtype=SUM)
    there = group * out_group.to(tl.int64) + begin * OUT_STRIDE
    position = local[:, None] * OUT_STRIDE + channel[None, :]
    if MASK:
        total = tl.where(tl.load(mask_by + there + position) > 0, total, 0.0)  # and the features between images are 0
    else:
        total = tl.maximum(total + tl.load(bias + group * OUT + channel)[None, :], 0.0)
        total = tl.where(_inside((begin + local).to(tl.int32), stop, HEIGHT, WIDTH)[:, None], total, 0.0)
    tl.store(out + there + position, total.to(out.dtype.element_ty))


@jit
def _weight_gradient(
    features,
    slopes,
    partial,
    partial_bias,
    in_group,
    out_group,
    stop,
    IN: tl.constexpr,
    JOIN: tl.constexpr,
    OUT: tl.constexpr,
    IN_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    TILES: tl.constexpr,  # of a run
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program sums one row of taps (three of nine) of one group over a run of positions; the middle row sums the bias too."""
    run = tl.program_id(0)
    row = tl.program_id(1) % 3
    group = tl.program_id(1) // 3
    into = tl.arange(0, JOIN * IN)
    channel = tl.arange(0, OUT)
    local = tl.arange(0, BLOCK)
    left = tl.zeros((JOIN * IN, OUT), SUM)
    middle = tl.zeros((JOIN * IN, OUT), SUM)
    right = tl.zeros((JOIN * IN, OUT), SUM)
    bias = tl.zeros((BLOCK, OUT), SUM)
    shift = (row - 1) * (WIDTH + 1) - 1
    features += group * in_group.to(tl.int64)
    slopes += group * out_group.to(tl.int64)
    for tile in range(TILES):
        begin = (WIDTH + 2) + (run * TILES + tile).to(tl.int64) * BLOCK
        there = (begin + local < stop)[:, None]
        slope = tl.load(slopes + begin * OUT_STRIDE + local[:, None] * OUT_STRIDE + channel[None, :], there, 0.0)
        near = features + (begin + shift) * IN_STRIDE + local[:, None] * IN_STRIDE + into[None, :]
        left += tl.dot(tl.trans(tl.load(near, there, 0.0)), slope, input_precision=PRECISION, out_dtype=SUM)
        if JOIN == 1:
            value = tl.load(near + IN_STRIDE, there, 0.0)
            middle += tl.dot(tl.trans(value), slope, input_precision=PRECISION, out_dtype=SUM)
            value = tl.load(near + 2 * IN_STRIDE, there, 0.0)
            right += tl.dot(tl.trans(value), slope, input_precision=PRECISION, out_dtype=SUM)
        if row == 1:
            bias += slope.to(SUM)
    number: tl.constexpr = 3 if JOIN == 1 else JOIN  # of stored taps
    first = ((run * GROUPS + group) * 3 + row).to(tl.int64) * number * IN * OUT
    position = partial + first + into[:, None] * OUT + channel[None, :]
    tl.store(position, left)
    if JOIN == 1:
        tl.store(position + IN * OUT, middle)
        tl.store(position + 2 * IN * OUT, right)
    if row == 1:
        tl.store(partial_bias + (run * GROUPS + group) * OUT + channel, tl.sum(bias, 0))


@jit
def _plane_weight_gradient(
    planes,
    slopes,
    partial,
    plane_size,
    out_group,
    positions,
    PLANES: tl.constexpr,  # of all groups
    PLANE_GROUP: tl.constexpr,  # planes of a group
    OUT: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    TILES: tl.constexpr,  # of a run
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program sums the taps of one plane, and beside them a one, over a run of positions."""
    run = tl.program_id(0)
    plane = tl.program_id(1)
    channel = tl.arange(0, OUT)
    local = tl.arange(0, BLOCK)
    total = tl.zeros((16, OUT), SUM)
    ones = (tl.arange(0, 16) == 9)[None, :]
    planes += plane * plane_size.to(tl.int64)
    slopes += (plane // PLANE_GROUP) * out_group.to(tl.int64)
    for tile in range(TILES):
        begin = (run * TILES + tile).to(tl.int64) * BLOCK
        there = (begin + local < positions)[:, None]
        slope = tl.load(slopes + begin * OUT_STRIDE + local[:, None] * OUT_STRIDE + channel[None, :], there, 0.0)
        begin = tl.minimum(begin, positions)
        taps = _plane_taps(planes + begin, local, WIDTH)
        taps = tl.where(ones, 1.0, taps).to(slope.dtype)
        total += tl.dot(tl.trans(taps), slope, input_precision=PRECISION, out_dtype=SUM)
    tap = tl.arange(0, 16)
    tl.store(partial + ((run * PLANES + plane) * 16 + tap[:, None]) * OUT + channel[None, :], total)


def convolve(
    planes: Tensor | None,  # (groups * planes, padded positions)
    plane_weights: Tensor | None,  # (groups * planes, 16, out)
    features: Tensor | None,  # (parts, padded positions, channels)
    weights: Tensor | None,  # (groups, 9, in, out)
    bias: Tensor,  # (groups, out)
    frame: Frame,
    parts: int,  # of the output: the groups apart, or 1: side by side
) -> Tensor:
    """relu(planes * plane_weights + features * weights + bias), (parts, padded positions, channels)."""
    groups, out = bias.shape
    example = planes if planes is not None else features
    assert example is not None
    output = frame.features(parts, groups * out // parts, example)
    _run_convolve(planes, plane_weights, features, weights, bias, None, output, frame, groups, out)
    return output


def input_gradient(
    slopes: Tensor,  # (parts, padded positions, channels): of the loss with respect to the convolution's output
    weights: Tensor,  # (groups, 9, in, out)
    values: Tensor,  # (parts, padded positions, channels): the convolution's input, which is the output of a ReLU
    frame: Frame,
) -> Tensor:
    """The gradient with respect to the input, 0 where the ReLU before it was closed: a convolution with flipped weights."""
    groups, _, into, _ = weights.shape
    turned = weights.flip(1).transpose(2, 3)  # (groups, 9, out, in)
    gradient = torch.empty_like(values)
    _run_convolve(None, None, slopes, turned, None, values, gradient, frame, groups, into)
    return gradient


def _run_convolve(
    planes: Tensor | None,
    plane_weights: Tensor | None,
    features: Tensor | None,
    weights: Tensor | None,
    bias: Tensor | None,
    mask_by: Tensor | None,
    output: Tensor,
    frame: Frame,
    groups: int,
    out: int,
) -> None:
    launch = (CONVOLVE if out <= WIDE else CONVOLVE_WIDE).fitted(output)
    _convolve[(frame.positions // launch.block, groups)](
        _from_first(planes, frame, output),
        output if plane_weights is None else plane_weights,
        _from_first(features, frame, output),
        output if weights is None else weights.contiguous(),
        output if bias is None else bias,
        _from_first(mask_by, frame, output),
        _from_first(output, frame, output),
        0 if planes is None else planes.stride(0),
        0 if features is None else group_stride(features, groups),
        group_stride(output, groups),
        frame.stop,
        PLANES=0 if planes is None else len(planes) // groups,
        IN=0 if weights is None else weights.shape[2],
        OUT=out,
        IN_STRIDE=0 if features is None else features.shape[2],
        OUT_STRIDE=output.shape[2],
        MASK=mask_by is not None,
        PRECISION=precision(output),
        SUM=sums(output),
        **frame.shape(),
        **launch.options(),
    )


def weight_gradient(
    features: Tensor,  # (parts, padded positions, channels)
    slopes: Tensor,  # (parts, padded positions, channels)
    groups: int,
    frame: Frame,
) -> tuple[Tensor, Tensor]:
    """The gradients with respect to the weights, (groups, 9, in, out), and the bias, (groups, out), in the type of sums."""
    into, out = (tensor.shape[0] * tensor.shape[2] // groups for tensor in (features, slopes))
    # The taps of a row are adjacent if no channels of another group are between them.
    join = JOINED if into <= MOST_JOINED and features.shape[2] == into else 1
    taps = max(3, join)
    launch = weight_launch(taps * into * out).fitted(features)
    runs, tiles = launch.cover(frame.stop - frame.lead)
    partial = features.new_empty((runs, groups, 3, taps, into, out), dtype=sum_type(features))
    partial_bias = features.new_empty((runs, groups, out), dtype=sum_type(features))
    _weight_gradient[(runs, 3 * groups)](
        features[:, frame.guard :],
        slopes[:, frame.guard :],
        partial,
        partial_bias,
        group_stride(features, groups),
        group_stride(slopes, groups),
        frame.stop,
        IN=into,
        JOIN=join,
        OUT=out,
        IN_STRIDE=features.shape[2],
        OUT_STRIDE=slopes.shape[2],
        GROUPS=groups,
        TILES=tiles,
        PRECISION=precision(features),
        SUM=sums(features),
        WIDTH=frame.width,
        **launch.options(),
    )
    return partial.sum(0)[:, :, :3].reshape(groups, TAPS, into, out), partial_bias.sum(0)


def weight_launch(sums: int) -> Launch:
    """The launch of the gradient of weights, by the numbers that a program sums."""
    return next(launch for most, launch in WEIGHT_GRADIENT.items() if sums <= most)


def plane_weight_gradient(
    planes: Tensor,  # (groups * planes, padded positions)
    slopes: Tensor,  # (parts, padded positions, channels)
    groups: int,
    frame: Frame,
) -> tuple[Tensor, Tensor]:
    """The gradients with respect to the plane weights, (groups * planes, 16, out), and the bias, (groups, out)."""
    number, out = len(planes), slopes.shape[0] * slopes.shape[2] // groups
    launch = PLANE_GRADIENT.fitted(slopes)
    runs, tiles = launch.cover(frame.positions)
    partial = slopes.new_empty((runs, number, PLANE_TAPS, out), dtype=sum_type(slopes))
    _plane_weight_gradient[(runs, number)](
        planes[:, frame.guard :],
        slopes[:, frame.guard :],
        partial,
        planes.stride(0),
        group_stride(slopes, groups),
        frame.positions,
        PLANES=number,
        PLANE_GROUP=number // groups,
        OUT=out,
        OUT_STRIDE=slopes.shape[2],
        TILES=tiles,
        PRECISION=precision(slopes),
        SUM=sums(slopes),
        WIDTH=frame.width,
        **launch.options(),
    )
    total = partial.sum(0)
    return total, total[:: number // groups, ONES]


def group_stride(tensor: Tensor, groups: int) -> int:
    """Distance in memory between two groups, in numbers, of (parts, padded positions, channels)."""
    return tensor.stride(0) if len(tensor) == groups else tensor.shape[2] // groups


def _from_first(tensor: Tensor | None, frame: Frame, instead: Tensor) -> Tensor:
    """The tensor from its first position on; `instead` for an argument that the kernel does not read."""
    return instead if tensor is None else tensor[:, frame.guard :]


def sum_type(tensor: Tensor) -> torch.dtype:
    """The type of sums over such numbers."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def sums(tensor: Tensor) -> tl.dtype:
    """The same as a Triton type."""
    return tl.float64 if tensor.dtype == torch.float64 else tl.float32


def precision(tensor: Tensor) -> str:
    """Precision of products: those of float32 are made of three in TF32, which is nearly exact."""
    return "tf32x3" if tensor.dtype == torch.float32 else "ieee"
