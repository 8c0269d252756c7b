"""The last convolution of a block, to one channel: its mean and its variance in one pass, and both gradients in another.

mean[p] = sum over taps and channels of w h[p + tap],  variance[p] = sum of v h[p + tap]^2, with w the means of the weights and
v their variances. Backward, the gradients at nine neighbours (`slopes`) are the columns of a matrix, so one small product is
enough (`convolution`). The curvature of the weights, the sum over pixels of a[p] h[p + tap]^2, works alike, with a[p] for the
gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescade.kernels._triton import Launch, cdiv, jit, tl
from bayescade.kernels.convolution import PLANE_TAPS, _plane_taps, precision, sum_type, sums
from bayescade.kernels.frame import Frame

LAST_LAYER = Launch(block=256, warps=4, stages=3)
LAST_LAYER_GRADIENT = Launch(block=64, warps=4, stages=3, runs=1056)


@jit
def _last_layer(
    features,
    weights,
    variances,
    before,
    scale,
    bias,
    mean_out,
    variance_out,
    per,  # positions per sample
    pixels,  # per sample
    IN: tl.constexpr,
    SHARED: tl.constexpr,  # all samples have the same features
    VARIANCE: tl.constexpr,
    IMAGE: tl.constexpr,  # give relu(before + scale (mean + bias)) instead of the mean
    SUM: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program computes a tile of one sample; its output has the layout of images, without zeros between them."""
    sample = tl.program_id(1)
    into = tl.arange(0, IN)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    begin = (WIDTH + 2) + (0 if SHARED else sample.to(tl.int64) * per)
    near = features + begin * IN + position.to(tl.int64)[:, None] * IN + into[None, :]
    mean = tl.zeros((BLOCK,), SUM)
    variance = tl.zeros((BLOCK,), SUM)
    for tap in range(9):
        shift = (tap // 3 - 1) * (WIDTH + 1) + tap % 3 - 1
        values = tl.load(near + shift * IN).to(SUM)
        weight = tl.load(weights + (sample * 16 + tap) * IN + into).to(SUM)
        mean += tl.sum(values * weight[None, :], 1)
        if VARIANCE:
            weight_variance = tl.load(variances + (sample * 16 + tap) * IN + into).to(SUM)
            variance += tl.sum(values * values * weight_variance[None, :], 1)
    row = position // (WIDTH + 1)
    column = position % (WIDTH + 1)
    inside = (position < per) & (column < WIDTH) & (row % (HEIGHT + 1) < HEIGHT)
    local_pixel = ((row // (HEIGHT + 1)) * HEIGHT + row % (HEIGHT + 1)) * WIDTH + column  # in this sample
    pixel = sample.to(tl.int64) * pixels + local_pixel
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
    weights,
    variances,
    slopes,
    feature_slopes,
    partial,
    plane_size,
    positions,
    IN: tl.constexpr,
    TILES: tl.constexpr,  # per run
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program works on a run of positions: it stores the gradients of features and sums those of weights."""
    run = tl.program_id(0)
    into = tl.arange(0, IN)
    tap = tl.arange(0, 16)
    local = tl.arange(0, BLOCK)
    weight = tl.load(weights + tap[:, None] * IN + into[None, :])
    weight_variance = tl.load(variances + tap[:, None] * IN + into[None, :])
    of_weight = tl.zeros((16, IN), SUM)
    of_variance = tl.zeros((16, IN), SUM)
    for tile in range(TILES):
        begin = (run * TILES + tile).to(tl.int64) * BLOCK
        there = (begin + local < positions)[:, None]
        position = begin * IN + local[:, None] * IN + into[None, :]
        value = tl.load(features + position, there, 0.0)
        near = slopes + tl.minimum(begin, positions)
        near_mean = _plane_taps(near, local, WIDTH)
        near_variance = _plane_taps(near + plane_size, local, WIDTH)
        slope = tl.dot(near_mean, weight, input_precision=PRECISION, out_dtype=SUM)
        slope += 2 * value.to(SUM) * tl.dot(near_variance, weight_variance, input_precision=PRECISION, out_dtype=SUM)
        slope = tl.where(value > 0, slope, 0.0)
        tl.store(feature_slopes + position, slope.to(feature_slopes.dtype.element_ty), there)
        of_weight += tl.dot(tl.trans(near_mean), value, input_precision=PRECISION, out_dtype=SUM)
        of_variance += tl.dot(tl.trans(near_variance), value * value, input_precision=PRECISION, out_dtype=SUM)
    where = partial + run * 2 * 16 * IN + tap[:, None] * IN + into[None, :]
    tl.store(where, of_weight)
    tl.store(where + 16 * IN, of_variance)


@jit
def _curvature(
    features,
    pixel_weights,  # a plane: a[p]
    partial,
    positions,
    IN: tl.constexpr,
    TILES: tl.constexpr,  # per run
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program sums a[p] h[q]^2 over a run of positions q = p + tap; so p = q - tap: the taps are in reverse order."""
    run = tl.program_id(0)
    into = tl.arange(0, IN)
    local = tl.arange(0, BLOCK)
    total = tl.zeros((16, IN), SUM)
    for tile in range(TILES):
        begin = (run * TILES + tile).to(tl.int64) * BLOCK
        there = (begin + local < positions)[:, None]
        value = tl.load(features + begin * IN + local[:, None] * IN + into[None, :], there, 0.0).to(SUM)
        near = _plane_taps(pixel_weights + tl.minimum(begin, positions), local, WIDTH)
        total += tl.dot(tl.trans(near), value * value, input_precision=PRECISION, out_dtype=SUM)
    tap = tl.arange(0, 16)
    tl.store(partial + (run * 16 + tap[:, None]) * IN + into[None, :], total)


def last_layer(
    features: Tensor,  # (1, padded positions, in)
    weights: Tensor,  # (samples, 16, in): taps, then zeros
    variances: Tensor | None,  # (samples, 16, in); None = the mean only
    frame: Frame,
    shared: bool,  # all samples have the same features; else the images are ordered by sample
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the output, (samples * pixels,) each, in the type of sums; without bias."""
    return _run_last_layer(features, weights, variances, None, frame, shared)


def next_image(
    features: Tensor,  # (1, padded positions, in)
    weights: Tensor,  # (samples, 16, in)
    before: Tensor,  # (images, 1, height, width): the images of the features, in the type of sums
    scale: Tensor,  # ()
    bias: Tensor,  # (1,)
    frame: Frame,
    shared: bool,
) -> Tensor:
    """relu(before + scale (output + bias)), (samples * pixels,)."""
    return _run_last_layer(features, weights, None, (before, scale, bias), frame, shared)[0]


def _run_last_layer(
    features: Tensor,
    weights: Tensor,
    variances: Tensor | None,
    image: tuple[Tensor, Tensor, Tensor] | None,
    frame: Frame,
    shared: bool,
) -> tuple[Tensor, Tensor]:
    samples, _, into = weights.shape
    images = frame.images if shared else frame.images // samples
    pixels = images * frame.height * frame.width
    mean = features.new_empty(samples * pixels, dtype=sum_type(features))
    variance = torch.empty_like(mean) if variances is not None else mean
    launch = LAST_LAYER.fitted(features)
    before, scale, bias = image if image is not None else (mean, mean, mean)
    _last_layer[(cdiv(frame.per(images), launch.block), samples)](
        features[:, frame.guard :],
        weights,
        weights if variances is None else variances,
        before,
        scale,
        bias,
        mean,
        variance,
        frame.per(images),
        pixels,
        IN=into,
        SHARED=shared,
        VARIANCE=variances is not None,
        IMAGE=image is not None,
        SUM=sums(features),
        **frame.shape(),
        **launch.options(),
    )
    return mean, variance


def last_layer_gradient(
    features: Tensor,  # (1, padded positions, in), the output of a ReLU
    weights: Tensor,  # (16, in)
    variances: Tensor,  # (16, in)
    slopes: Tensor,  # (2, padded positions): with respect to mean and variance
    frame: Frame,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to the features (0 where the ReLU gave 0), the weights and the variances."""
    into = features.shape[2]
    of_features = torch.empty_like(features)
    launch = LAST_LAYER_GRADIENT.fitted(features)
    runs, tiles = launch.cover(frame.positions)
    partial = features.new_empty((runs, 2, PLANE_TAPS, into), dtype=sum_type(features))
    _last_layer_gradient[(runs,)](
        features[:, frame.guard :],
        _reversed_taps(weights, features.dtype),
        _reversed_taps(variances, features.dtype),
        slopes[:, frame.guard :],
        of_features[:, frame.guard :],
        partial,
        slopes.stride(0),
        frame.positions,
        IN=into,
        TILES=tiles,
        PRECISION=precision(features),
        SUM=sums(features),
        WIDTH=frame.width,
        **launch.options(),
    )
    of_weights, of_variances = partial.sum(0).unbind(0)
    return of_features, _reversed_taps(of_weights, of_weights.dtype), _reversed_taps(of_variances, of_variances.dtype)


def curvature(
    features: Tensor,  # (1, padded positions, in)
    pixel_weights: Tensor,  # (images, 1, height, width), in the type of sums: a[p]
    frame: Frame,
) -> Tensor:
    """The sum over pixels of a[p] h[p + tap]^2, (16, in) in float64."""
    into = features.shape[2]
    launch = LAST_LAYER_GRADIENT.fitted(features)
    runs, tiles = launch.cover(frame.positions)
    partial = features.new_empty((runs, PLANE_TAPS, into), dtype=sum_type(features))
    _curvature[(runs,)](
        features[:, frame.guard :],
        frame.planes([pixel_weights], partial.dtype, [None])[:, frame.guard :],
        partial,
        frame.positions,
        IN=into,
        TILES=tiles,
        PRECISION=precision(partial),
        SUM=sums(features),
        WIDTH=frame.width,
        **launch.options(),
    )
    return _reversed_taps(partial.double().sum(0), torch.float64)


def _reversed_taps(taps: Tensor, dtype: torch.dtype) -> Tensor:
    """Taps in reverse order: the gradient at p goes back to all p + tap that p was computed from."""
    result = torch.zeros_like(taps, dtype=dtype)
    result[:9] = taps[:9].flip(0)
    return result
