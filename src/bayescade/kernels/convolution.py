"""3 x 3 convolutions for few channels, in Triton. A kernel also adds the bias and applies the ReLU, or a mask, without copies.

A `Frame` defines the memory layout of images and what a *position* is: a pixel or a zero between pixels. A *tile* is a range of
consecutive positions. Each of the nine *taps* of a 3 x 3 convolution is a shift in memory and a matrix product over channels.
There are two kinds of inputs. *Planes* have one number per position; their nine taps are the columns of one small matrix
product. *Features* have 16 channels, or a higher power of two. A convolution can have several *groups*, as in torch. Features
have the shape (parts, padded positions, channels): either there is one part per group, or one part that has the channels of
all groups, group after group.

`slopes` are gradients of the loss with respect to the output of a convolution. In the gradient of the weights, the three taps
of a row are adjacent in memory. If there are few channels, one product computes these three and a fourth, which is dropped.
Sums are in float32, or in float64 if the features are in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayescade.kernels._triton import Launch, jit, tl
from bayescade.kernels.frame import Frame, _inside

TAPS = 9
# Columns of a plane in a matrix product: nine taps, a one for the bias, six unused. A product needs at least sixteen.
PLANE_TAPS = 16
ONES = 9  # index of the column of ones in the gradient; the gradient of its weight is the gradient of the bias
JOINED = 4  # number of taps in one product, in the gradient of weights
MOST_JOINED = 32  # taps are joined in one product if there are at most this many channels
MOST_SUMS = 2**31  # more than any program needs
# The fastest launches on an H200; a wide output needs more registers.
CONVOLVE = Launch(block=256, warps=4, stages=2)
WIDE = 32  # channels above which an output is wide
CONVOLVE_WIDE = Launch(block=128, warps=8, stages=4)
# Launches for programs with few or many sums: the key is the largest number of sums for which the launch is used.
WEIGHT_GRADIENT = {
    4 * 32 * 16: Launch(block=64, warps=4, stages=3, segments=264),
    3 * 64 * 32: Launch(block=64, warps=8, stages=3, segments=264),
    MOST_SUMS: Launch(block=32, warps=8, stages=3, segments=264),
}
PLANE_GRADIENT = Launch(block=256, warps=4, stages=3, segments=1056)


@jit
def _plane_taps(plane, local, WIDTH: tl.constexpr):
    """The 3 x 3 neighbourhood of each position in a plane, (positions, 16); columns after the ninth repeat the position."""
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
    plane_size,  # distance in memory between two planes, counted in numbers
    in_group,  # distance in memory between the features of two groups, counted in numbers
    out_group,  # the same for the output
    stop,  # `Frame.stop`
    PLANES: tl.constexpr,  # planes of each group
    IN: tl.constexpr,  # input channels of each group; 0 if the inputs are planes only
    OUT: tl.constexpr,  # output channels of each group
    IN_STRIDE: tl.constexpr,  # distance in memory between two positions of the features
    OUT_STRIDE: tl.constexpr,  # the same for the output
    MASK: tl.constexpr,  # whether to set the output to 0 where `mask_by` is not positive
    RELU: tl.constexpr,  # whether to add the bias and apply the ReLU; not if MASK
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,  # type of sums
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program computes the output of one tile and one group."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    group = tl.program_id(1)
    local = tl.arange(0, BLOCK)  # index of a position in the tile
    channel = tl.arange(0, OUT)
    total = tl.zeros((BLOCK, OUT), SUM)
    for number in tl.static_range(PLANES):
        plane = group * PLANES + number
        taps = _plane_taps(planes + plane * plane_size.to(tl.int64) + begin, local, WIDTH)
        tap = tl.arange(0, 16)[:, None]
        plane_weight = tl.load(plane_weights + (plane * 16 + tap) * OUT + channel[None, :])
        total += tl.dot(taps, plane_weight, input_precision=PRECISION, out_dtype=SUM)
    if IN > 0:
        in_channel = tl.arange(0, IN)
        first = features + group * in_group.to(tl.int64) + begin * IN_STRIDE
        centre = first + local[:, None] * IN_STRIDE + in_channel[None, :]  # addresses of the middle tap
        for step in range(9):
            shift = (step // 3 - 1) * (WIDTH + 1) + step % 3 - 1
            values = tl.load(centre + shift * IN_STRIDE)
            weight = tl.load(weights + ((group * 9 + step) * IN + in_channel[:, None]) * OUT + channel[None, :])
            total += tl.dot(values, weight, input_precision=PRECISION, out_dtype=SUM)
    out_begin = group * out_group.to(tl.int64) + begin * OUT_STRIDE
    out_local = local[:, None] * OUT_STRIDE + channel[None, :]
    if MASK:  # `mask_by` is 0 between the pixels, so the output is 0 there, too
        total = tl.where(tl.load(mask_by + out_begin + out_local) > 0, total, 0.0)
    else:
        if RELU:
            total = tl.maximum(total + tl.load(bias + group * OUT + channel)[None, :], 0.0)
        total = tl.where(_inside((begin + local).to(tl.int32), stop, HEIGHT, WIDTH)[:, None], total, 0.0)
    tl.store(out + out_begin + out_local, total.to(out.dtype.element_ty))


@jit
def _weight_gradient(
    features,
    slopes,
    partial,  # (segments, groups, 3, taps of a row, in, out): the sums of each segment
    partial_bias,  # (segments, groups, out)
    in_group,  # distance in memory between the features of two groups, counted in numbers
    out_group,  # the same for the slopes
    stop,  # `Frame.stop`
    IN: tl.constexpr,  # input channels of each group
    JOIN: tl.constexpr,  # number of taps in one product
    OUT: tl.constexpr,  # output channels of each group
    IN_STRIDE: tl.constexpr,  # distance in memory between two positions of the features
    OUT_STRIDE: tl.constexpr,  # the same for the slopes
    GROUPS: tl.constexpr,
    TILES: tl.constexpr,  # of a segment
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program sums, over a segment, the gradient of one row of taps (three of nine) of one group.

    The program of the middle row also sums the gradient of the bias.
    """
    segment = tl.program_id(0)
    row = tl.program_id(1) % 3
    group = tl.program_id(1) // 3
    in_channel = tl.arange(0, JOIN * IN)  # of all joined taps
    channel = tl.arange(0, OUT)
    local = tl.arange(0, BLOCK)
    # Gradients of the left, middle and right tap of the row. If taps are joined, `left` has all of them.
    left = tl.zeros((JOIN * IN, OUT), SUM)
    middle = tl.zeros((JOIN * IN, OUT), SUM)
    right = tl.zeros((JOIN * IN, OUT), SUM)
    bias = tl.zeros((BLOCK, OUT), SUM)
    shift = (row - 1) * (WIDTH + 1) - 1
    features += group * in_group.to(tl.int64)
    slopes += group * out_group.to(tl.int64)
    for tile in range(TILES):
        begin = (WIDTH + 2) + (segment * TILES + tile).to(tl.int64) * BLOCK
        valid = (begin + local < stop)[:, None]
        slope = tl.load(slopes + begin * OUT_STRIDE + local[:, None] * OUT_STRIDE + channel[None, :], valid, 0.0)
        left_tap = features + (begin + shift) * IN_STRIDE + local[:, None] * IN_STRIDE + in_channel[None, :]
        left += tl.dot(tl.trans(tl.load(left_tap, valid, 0.0)), slope, input_precision=PRECISION, out_dtype=SUM)
        if JOIN == 1:
            value = tl.load(left_tap + IN_STRIDE, valid, 0.0)
            middle += tl.dot(tl.trans(value), slope, input_precision=PRECISION, out_dtype=SUM)
            value = tl.load(left_tap + 2 * IN_STRIDE, valid, 0.0)
            right += tl.dot(tl.trans(value), slope, input_precision=PRECISION, out_dtype=SUM)
        if row == 1:
            bias += slope.to(SUM)
    stored_taps: tl.constexpr = 3 if JOIN == 1 else JOIN
    first = ((segment * GROUPS + group) * 3 + row).to(tl.int64) * stored_taps * IN * OUT
    result = partial + first + in_channel[:, None] * OUT + channel[None, :]
    tl.store(result, left)
    if JOIN == 1:
        tl.store(result + IN * OUT, middle)
        tl.store(result + 2 * IN * OUT, right)
    if row == 1:
        tl.store(partial_bias + (segment * GROUPS + group) * OUT + channel, tl.sum(bias, 0))


@jit
def _plane_weight_gradient(
    planes,
    slopes,
    partial,  # (segments, planes, 16, out): the sums of each segment
    plane_size,  # distance in memory between two planes, counted in numbers
    out_group,  # distance in memory between the slopes of two groups, counted in numbers
    positions,  # `Frame.positions`
    PLANES: tl.constexpr,  # planes of all groups
    PLANE_GROUP: tl.constexpr,  # planes of each group
    OUT: tl.constexpr,  # output channels of each group
    OUT_STRIDE: tl.constexpr,  # distance in memory between two positions of the slopes
    TILES: tl.constexpr,  # of a segment
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program sums, over a segment, the gradient of the taps of one plane. A column of ones gives the bias."""
    segment = tl.program_id(0)
    plane = tl.program_id(1)
    channel = tl.arange(0, OUT)
    local = tl.arange(0, BLOCK)
    total = tl.zeros((16, OUT), SUM)
    is_ones = (tl.arange(0, 16) == 9)[None, :]
    planes += plane * plane_size.to(tl.int64)
    slopes += (plane // PLANE_GROUP) * out_group.to(tl.int64)
    for tile in range(TILES):
        begin = (segment * TILES + tile).to(tl.int64) * BLOCK
        valid = (begin + local < positions)[:, None]
        slope = tl.load(slopes + begin * OUT_STRIDE + local[:, None] * OUT_STRIDE + channel[None, :], valid, 0.0)
        begin = tl.minimum(begin, positions)  # a tile after the last position has slope 0; it may read the padding
        taps = _plane_taps(planes + begin, local, WIDTH)
        taps = tl.where(is_ones, 1.0, taps).to(slope.dtype)
        total += tl.dot(tl.trans(taps), slope, input_precision=PRECISION, out_dtype=SUM)
    tap = tl.arange(0, 16)
    tl.store(partial + ((segment * PLANES + plane) * 16 + tap[:, None]) * OUT + channel[None, :], total)


def convolve(
    planes: Tensor | None,  # (groups * planes, padded positions)
    plane_weights: Tensor | None,  # (groups * planes, 16, out)
    features: Tensor | None,  # (parts, padded positions, channels)
    weights: Tensor | None,  # (groups, 9, in, out)
    bias: Tensor,  # (groups, out)
    frame: Frame,
    parts: int,  # of the output: the number of groups, or 1
) -> Tensor:
    """relu(planes * plane_weights + features * weights + bias), with * a convolution; (parts, padded positions, channels)."""
    groups, out = bias.shape
    example = planes if planes is not None else features
    assert example is not None
    output = frame.features(parts, groups * out // parts, example)
    _run_convolve(planes, plane_weights, features, weights, bias, None, output, frame, groups, out)
    return output


def input_gradient(
    slopes: Tensor,  # (parts, padded positions, channels): gradient with respect to the convolution's output
    weights: Tensor,  # (groups, 9, in, out)
    values: Tensor,  # (parts, padded positions, channels): the convolution's input, which is the output of a ReLU
    frame: Frame,
) -> Tensor:
    """The gradient with respect to the input of that ReLU: a convolution with flipped weights, 0 where the ReLU gave 0."""
    groups, _, in_channels, _ = weights.shape
    flipped = weights.flip(1).transpose(2, 3)  # (groups, 9, out, in)
    gradient = torch.empty_like(values)
    _run_convolve(None, None, slopes, flipped, None, values, gradient, frame, groups, in_channels)
    return gradient


def plane_gradient(
    slopes: Tensor,  # (parts, padded positions, channels): gradient with respect to the convolution's output
    plane_weights: Tensor,  # (groups * planes, 16, out)
    groups: int,
    frame: Frame,
) -> Tensor:
    """The gradient with respect to the planes, (groups * planes, padded positions): a convolution with flipped weights."""
    planes = len(plane_weights) // groups
    columns = max(16, 1 << (planes - 1).bit_length())  # channels of a matrix product
    taps = plane_weights.unflatten(0, (groups, planes))[:, :, :TAPS].flip(2)  # (groups, planes, 9, out)
    weights = pad(taps.permute(0, 2, 3, 1), (0, columns - planes))  # (groups, 9, out, columns)
    gradient = frame.features(groups, columns, slopes)
    _run_convolve(None, None, slopes, weights, None, None, gradient, frame, groups, columns)
    return gradient[..., :planes].transpose(1, 2).flatten(0, 1)


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
    out: int,  # output channels of each group
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
        RELU=bias is not None,
        PRECISION=precision(output),
        SUM=triton_sum_type(output),
        **frame.shape(),
        **launch.options(),
    )


def weight_gradient(
    features: Tensor,  # (parts, padded positions, channels)
    slopes: Tensor,  # (parts, padded positions, channels)
    groups: int,
    frame: Frame,
) -> tuple[Tensor, Tensor]:
    """The gradients with respect to the weights, (groups, 9, in, out), and the bias, (groups, out), in `sum_type`."""
    in_channels, out = (tensor.shape[0] * tensor.shape[2] // groups for tensor in (features, slopes))
    # The taps of a row are adjacent in memory if no channels of another group are between them.
    join = JOINED if in_channels <= MOST_JOINED and features.shape[2] == in_channels else 1
    taps = max(3, join)
    launch = weight_launch(taps * in_channels * out).fitted(features)
    segments, tiles = launch.cover(frame.stop - frame.lead)
    partial = features.new_empty((segments, groups, 3, taps, in_channels, out), dtype=sum_type(features))
    partial_bias = features.new_empty((segments, groups, out), dtype=sum_type(features))
    _weight_gradient[(segments, 3 * groups)](
        features[:, frame.guard :],
        slopes[:, frame.guard :],
        partial,
        partial_bias,
        group_stride(features, groups),
        group_stride(slopes, groups),
        frame.stop,
        IN=in_channels,
        JOIN=join,
        OUT=out,
        IN_STRIDE=features.shape[2],
        OUT_STRIDE=slopes.shape[2],
        GROUPS=groups,
        TILES=tiles,
        PRECISION=precision(features),
        SUM=triton_sum_type(features),
        WIDTH=frame.width,
        **launch.options(),
    )
    return partial.sum(0)[:, :, :3].reshape(groups, TAPS, in_channels, out), partial_bias.sum(0)


def weight_launch(sums_per_program: int) -> Launch:
    """The launch of `weight_gradient` for this number of sums per program."""
    return next(launch for most, launch in WEIGHT_GRADIENT.items() if sums_per_program <= most)


def plane_weight_gradient(
    planes: Tensor,  # (groups * planes, padded positions)
    slopes: Tensor,  # (parts, padded positions, channels)
    groups: int,
    frame: Frame,
) -> tuple[Tensor, Tensor]:
    """The gradients with respect to the plane weights, (groups * planes, 16, out), and the bias, (groups, out)."""
    plane_count, out = len(planes), slopes.shape[0] * slopes.shape[2] // groups
    launch = PLANE_GRADIENT.fitted(slopes)
    segments, tiles = launch.cover(frame.positions)
    partial = slopes.new_empty((segments, plane_count, PLANE_TAPS, out), dtype=sum_type(slopes))
    _plane_weight_gradient[(segments, plane_count)](
        planes[:, frame.guard :],
        slopes[:, frame.guard :],
        partial,
        planes.stride(0),
        group_stride(slopes, groups),
        frame.positions,
        PLANES=plane_count,
        PLANE_GROUP=plane_count // groups,
        OUT=out,
        OUT_STRIDE=slopes.shape[2],
        TILES=tiles,
        PRECISION=precision(slopes),
        SUM=triton_sum_type(slopes),
        WIDTH=frame.width,
        **launch.options(),
    )
    total = partial.sum(0)
    return total, total[:: plane_count // groups, ONES]


def group_stride(tensor: Tensor, groups: int) -> int:
    """Distance in memory between two groups of features, (parts, padded positions, channels), counted in numbers."""
    return tensor.stride(0) if len(tensor) == groups else tensor.shape[2] // groups


def _from_first(tensor: Tensor | None, frame: Frame, placeholder: Tensor) -> Tensor:
    """The tensor without the padding before its first position; for None a placeholder, which the kernel does not read."""
    return placeholder if tensor is None else tensor[:, frame.guard :]


def sum_type(tensor: Tensor) -> torch.dtype:
    """The torch type of sums over numbers of this tensor's type."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def triton_sum_type(tensor: Tensor) -> tl.dtype:
    """`sum_type` as a Triton type."""
    return tl.float64 if tensor.dtype == torch.float64 else tl.float32


def precision(tensor: Tensor) -> str:
    """Precision of matrix products: a product in float32 is computed as three products in TF32, which is nearly exact."""
    return "tf32x3" if tensor.dtype == torch.float32 else "ieee"
