"""The last convolution of a block, to one channel. One kernel computes mean and variance of its output, another all gradients.

mean[p] = sum over taps and channels of w h[p + tap],  variance[p] = sum of v h[p + tap]^2, with features h, and means w and
variances v of the weights. Backward, `slopes` are the gradients of the loss with respect to mean and variance. The slopes at a
position and its eight neighbours are the columns of a matrix, so one small product is enough (as for planes in `convolution`).
The curvature of the weights, the sum over pixels of a[p] h[p + tap]^2, is computed in the same way, with a[p] as slopes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescade.kernels._triton import Launch, cdiv, jit, tl
from bayescade.kernels.convolution import PLANE_TAPS, _plane_taps, precision, sum_type, triton_sum_type
from bayescade.kernels.frame import Frame

LAST_LAYER = Launch(block=256, warps=4, stages=3)
LAST_LAYER_GRADIENT = Launch(block=64, warps=4, stages=3, segments=1056)


@jit
def _last_layer(
    features,
    weights,
    variances,
    before,  # the images before the block
    scale,
    bias,
    mean_out,
    variance_out,
    sample_positions,  # positions of the images of one sample
    sample_pixels,  # pixels of the images of one sample
    IN: tl.constexpr,  # input channels
    SHARED: tl.constexpr,  # whether all samples have the same features
    VARIANCE: tl.constexpr,  # whether to compute the variance
    IMAGE: tl.constexpr,  # whether to store relu(before + scale (mean + bias)) instead of the mean
    SUM: tl.constexpr,  # type of sums
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program computes a tile of one sample. The output is stored pixel after pixel, without zeros between pixels."""
    sample = tl.program_id(1)
    channel = tl.arange(0, IN)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # counted from the first pixel of the sample
    begin = (WIDTH + 2) + (0 if SHARED else sample.to(tl.int64) * sample_positions)
    # Addresses of the middle tap.
    centre = features + begin * IN + position.to(tl.int64)[:, None] * IN + channel[None, :]
    mean = tl.zeros((BLOCK,), SUM)
    variance = tl.zeros((BLOCK,), SUM)
    for tap in range(9):
        shift = (tap // 3 - 1) * (WIDTH + 1) + tap % 3 - 1
        values = tl.load(centre + shift * IN).to(SUM)
        weight = tl.load(weights + (sample * 16 + tap) * IN + channel).to(SUM)
        mean += tl.sum(values * weight[None, :], 1)
        if VARIANCE:
            weight_variance = tl.load(variances + (sample * 16 + tap) * IN + channel).to(SUM)
            variance += tl.sum(values * values * weight_variance[None, :], 1)
    row = position // (WIDTH + 1)
    column = position % (WIDTH + 1)
    inside = (position < sample_positions) & (column < WIDTH) & (row % (HEIGHT + 1) < HEIGHT)
    local_pixel = ((row // (HEIGHT + 1)) * HEIGHT + row % (HEIGHT + 1)) * WIDTH + column  # in this sample
    pixel = sample.to(tl.int64) * sample_pixels + local_pixel
    if IMAGE:
        old_image = before + (local_pixel if SHARED else pixel)
        mean = tl.load(old_image, mask=inside, other=0.0) + tl.load(scale) * (mean + tl.load(bias))
        mean = tl.maximum(mean, 0.0)
    tl.store(mean_out + pixel, mean, mask=inside)
    if VARIANCE:
        tl.store(variance_out + pixel, variance, mask=inside)


@jit
def _last_layer_gradient(
    features,
    weights,  # with taps in reverse order
    variances,  # with taps in reverse order
    slopes,
    feature_slopes,  # result: the gradient with respect to the features
    partial,  # (segments, 2, 16, in): the sums of each segment
    plane_size,  # distance in memory between the two planes of the slopes, counted in numbers
    positions,  # `Frame.positions`
    IN: tl.constexpr,  # input channels
    TILES: tl.constexpr,  # of a segment
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program handles one segment: it stores the gradients of the features, and sums those of weights and variances."""
    segment = tl.program_id(0)
    channel = tl.arange(0, IN)
    tap = tl.arange(0, 16)
    local = tl.arange(0, BLOCK)  # index of a position in the tile
    weight = tl.load(weights + tap[:, None] * IN + channel[None, :])
    weight_variance = tl.load(variances + tap[:, None] * IN + channel[None, :])
    weight_total = tl.zeros((16, IN), SUM)
    variance_total = tl.zeros((16, IN), SUM)
    for tile in range(TILES):
        begin = (segment * TILES + tile).to(tl.int64) * BLOCK
        valid = (begin + local < positions)[:, None]
        offset = begin * IN + local[:, None] * IN + channel[None, :]
        value = tl.load(features + offset, valid, 0.0)
        tile_slopes = slopes + tl.minimum(begin, positions)  # a tile after the last position may read the padding
        mean_slope = _plane_taps(tile_slopes, local, WIDTH)
        variance_slope = _plane_taps(tile_slopes + plane_size, local, WIDTH)
        slope = tl.dot(mean_slope, weight, input_precision=PRECISION, out_dtype=SUM)
        slope += 2 * value.to(SUM) * tl.dot(variance_slope, weight_variance, input_precision=PRECISION, out_dtype=SUM)
        slope = tl.where(value > 0, slope, 0.0)
        tl.store(feature_slopes + offset, slope.to(feature_slopes.dtype.element_ty), valid)
        weight_total += tl.dot(tl.trans(mean_slope), value, input_precision=PRECISION, out_dtype=SUM)
        variance_total += tl.dot(tl.trans(variance_slope), value * value, input_precision=PRECISION, out_dtype=SUM)
    result = partial + segment * 2 * 16 * IN + tap[:, None] * IN + channel[None, :]
    tl.store(result, weight_total)
    tl.store(result + 16 * IN, variance_total)


@jit
def _curvature(
    features,
    pixel_weights,  # a plane: a[p]
    partial,  # (segments, 16, in): the sums of each segment
    positions,  # `Frame.positions`
    IN: tl.constexpr,  # input channels
    TILES: tl.constexpr,  # of a segment
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program sums a[p] h[q]^2 over a segment of positions q = p + tap. As p = q - tap, the taps are in reverse order."""
    segment = tl.program_id(0)
    channel = tl.arange(0, IN)
    local = tl.arange(0, BLOCK)
    total = tl.zeros((16, IN), SUM)
    for tile in range(TILES):
        begin = (segment * TILES + tile).to(tl.int64) * BLOCK
        valid = (begin + local < positions)[:, None]
        value = tl.load(features + begin * IN + local[:, None] * IN + channel[None, :], valid, 0.0).to(SUM)
        taps = _plane_taps(pixel_weights + tl.minimum(begin, positions), local, WIDTH)
        total += tl.dot(tl.trans(taps), value * value, input_precision=PRECISION, out_dtype=SUM)
    tap = tl.arange(0, 16)
    tl.store(partial + (segment * 16 + tap[:, None]) * IN + channel[None, :], total)


def last_layer(
    features: Tensor,  # (1, padded positions, in)
    weights: Tensor,  # (samples, 16, in): nine taps, then zeros
    variances: Tensor | None,  # (samples, 16, in); if None, only the mean is computed
    frame: Frame,
    shared: bool,  # whether all samples have the same images; if not, the frame has all images of sample 0 first
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the output without bias, (samples * pixels,) each, in `sum_type`."""
    return _run_last_layer(features, weights, variances, None, frame, shared)


def next_image(
    features: Tensor,  # (1, padded positions, in)
    weights: Tensor,  # (samples, 16, in)
    before: Tensor,  # (images, 1, height, width): the images before the block, in `sum_type`
    scale: Tensor,  # ()
    bias: Tensor,  # (1,)
    frame: Frame,
    shared: bool,  # as in `last_layer`
) -> Tensor:
    """relu(before + scale (output + bias)), (samples * pixels,)."""
    return _run_last_layer(features, weights, None, (before, scale, bias), frame, shared)[0]


def _run_last_layer(
    features: Tensor,
    weights: Tensor,
    variances: Tensor | None,
    image: tuple[Tensor, Tensor, Tensor] | None,  # before, scale and bias of `next_image`
    frame: Frame,
    shared: bool,
) -> tuple[Tensor, Tensor]:
    samples, _, channels = weights.shape
    sample_images = frame.images if shared else frame.images // samples  # number of images of each sample
    sample_pixels = sample_images * frame.height * frame.width
    mean = features.new_empty(samples * sample_pixels, dtype=sum_type(features))
    variance = torch.empty_like(mean) if variances is not None else mean
    launch = LAST_LAYER.fitted(features)
    before, scale, bias = image if image is not None else (mean, mean, mean)  # `mean` is a placeholder: it is not read
    _last_layer[(cdiv(frame.positions_of(sample_images), launch.block), samples)](
        features[:, frame.guard :],
        weights,
        weights if variances is None else variances,
        before,
        scale,
        bias,
        mean,
        variance,
        frame.positions_of(sample_images),
        sample_pixels,
        IN=channels,
        SHARED=shared,
        VARIANCE=variances is not None,
        IMAGE=image is not None,
        SUM=triton_sum_type(features),
        **frame.shape(),
        **launch.options(),
    )
    return mean, variance


def last_layer_gradient(
    features: Tensor,  # (1, padded positions, in), the output of a ReLU
    weights: Tensor,  # (16, in)
    variances: Tensor,  # (16, in)
    slopes: Tensor,  # (2, padded positions): gradients with respect to mean and variance
    frame: Frame,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to the features (0 where the ReLU gave 0), the weights and the variances."""
    channels = features.shape[2]
    feature_slopes = torch.empty_like(features)
    launch = LAST_LAYER_GRADIENT.fitted(features)
    segments, tiles = launch.cover(frame.positions)
    partial = features.new_empty((segments, 2, PLANE_TAPS, channels), dtype=sum_type(features))
    _last_layer_gradient[(segments,)](
        features[:, frame.guard :],
        _reversed_taps(weights, features.dtype),
        _reversed_taps(variances, features.dtype),
        slopes[:, frame.guard :],
        feature_slopes[:, frame.guard :],
        partial,
        slopes.stride(0),
        frame.positions,
        IN=channels,
        TILES=tiles,
        PRECISION=precision(features),
        SUM=triton_sum_type(features),
        WIDTH=frame.width,
        **launch.options(),
    )
    weight_slopes, variance_slopes = (_reversed_taps(taps, taps.dtype) for taps in partial.sum(0).unbind(0))
    return feature_slopes, weight_slopes, variance_slopes


def curvature(
    features: Tensor,  # (1, padded positions, in)
    pixel_weights: Tensor,  # (images, 1, height, width), in `sum_type`: a[p]
    frame: Frame,
) -> Tensor:
    """The sum over pixels of a[p] h[p + tap]^2, (16, in) in float64."""
    channels = features.shape[2]
    launch = LAST_LAYER_GRADIENT.fitted(features)
    segments, tiles = launch.cover(frame.positions)
    partial = features.new_empty((segments, PLANE_TAPS, channels), dtype=sum_type(features))
    _curvature[(segments,)](
        features[:, frame.guard :],
        frame.planes([pixel_weights], partial.dtype, [None])[:, frame.guard :],
        partial,
        frame.positions,
        IN=channels,
        TILES=tiles,
        PRECISION=precision(partial),
        SUM=triton_sum_type(features),
        WIDTH=frame.width,
        **launch.options(),
    )
    return _reversed_taps(partial.double().sum(0), torch.float64)


def _reversed_taps(taps: Tensor, dtype: torch.dtype) -> Tensor:
    """The nine taps in reverse order, then zeros: a feature at q is used by the outputs at q - tap."""
    result = torch.zeros_like(taps, dtype=dtype)
    result[:9] = taps[:9].flip(0)
    return result
