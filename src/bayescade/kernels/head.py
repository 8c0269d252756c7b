"""The last convolution of a block, to one channel: its mean and its variance in one pass, and both gradients in another.

mean[p] = sum over taps and channels of w h[p + tap],  variance[p] = sum of v h[p + tap]^2, with w the means of the weights and
v their variances. Backward, the nine neighbours of a slope make the columns of one small matrix product (`convolution`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescade.kernels._triton import cdiv, jit, tl
from bayescade.kernels.convolution import (
    BLOCK,
    CHUNKS,
    PLANE_TAPS,
    _in_image,
    _plane_taps,
    _tile,
    precision,
    runs_of,
    sum_type,
    sums,
)


@jit
def _head(
    features,
    weights,
    variances,
    mean_out,
    variance_out,
    pixels,  # of a sample
    height,
    width,
    IN: tl.constexpr,
    SHARED: tl.constexpr,  # all samples have the same features
    VARIANCE: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sample = tl.program_id(1)
    pixel, inside, row, column = _tile(tl.program_id(0), pixels, height, width, BLOCK)
    into = tl.arange(0, IN)
    begin = sample.to(tl.int64) * pixels
    mean = tl.zeros((BLOCK,), SUM)
    variance = tl.zeros((BLOCK,), SUM)
    source = features if SHARED else features + begin * IN
    for tap in range(9):
        down = tap // 3 - 1
        right = tap % 3 - 1
        there = inside & _in_image(row + down, column + right, height, width)
        near = source + (pixel + down * width + right)[:, None] * IN + into[None, :]
        values = tl.load(near, mask=there[:, None], other=0.0).to(SUM)
        weight = tl.load(weights + (sample * 16 + tap) * IN + into).to(SUM)
        mean += tl.sum(values * weight[None, :], 1)
        if VARIANCE:
            spread = tl.load(variances + (sample * 16 + tap) * IN + into).to(SUM)
            variance += tl.sum(values * values * spread[None, :], 1)
    tl.store(mean_out + begin + pixel, mean, mask=inside)
    if VARIANCE:
        tl.store(variance_out + begin + pixel, variance, mask=inside)


@jit
def _head_gradient(
    features,
    weights,
    variances,
    mean_slopes,
    variance_slopes,
    feature_slopes,
    partial,
    pixels,
    height,
    width,
    IN: tl.constexpr,
    TILES: tl.constexpr,  # of a run
    PRECISION: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program works on a run of pixels: their slopes are stored, those of the weights summed."""
    run = tl.program_id(0)
    into = tl.arange(0, IN)
    tap = tl.arange(0, 16)
    weight = tl.load(weights + tap[:, None] * IN + into[None, :])
    spread = tl.load(variances + tap[:, None] * IN + into[None, :])
    of_weight = tl.zeros((16, IN), SUM)
    of_spread = tl.zeros((16, IN), SUM)
    for tile in range(TILES):
        pixel, inside, row, column = _tile(run * TILES + tile, pixels, height, width, BLOCK)
        place = pixel[:, None] * IN + into[None, :]
        value = tl.load(features + place, mask=inside[:, None], other=0.0)
        near_mean = _plane_taps(mean_slopes, pixel, inside, row, column, height, width).to(value.dtype)
        near_variance = _plane_taps(variance_slopes, pixel, inside, row, column, height, width).to(value.dtype)
        slope = tl.dot(near_mean, weight, input_precision=PRECISION, out_dtype=SUM)
        slope += 2 * value.to(SUM) * tl.dot(near_variance, spread, input_precision=PRECISION, out_dtype=SUM)
        slope = tl.where(value > 0, slope, 0.0)
        tl.store(feature_slopes + place, slope.to(feature_slopes.dtype.element_ty), mask=inside[:, None])
        of_weight += tl.dot(tl.trans(near_mean), value, input_precision=PRECISION, out_dtype=SUM)
        of_spread += tl.dot(tl.trans(near_variance), value * value, input_precision=PRECISION, out_dtype=SUM)
    where = partial + run * 2 * 16 * IN + tap[:, None] * IN + into[None, :]
    tl.store(where, of_weight)
    tl.store(where + 16 * IN, of_spread)


def head(
    features: Tensor,  # (pixels, in), or (samples * pixels, in) with samples in front
    weights: Tensor,  # (samples, 16, in): taps, then zeros
    variances: Tensor | None,  # (samples, 16, in); None = the mean only
    shape: tuple[int, int],  # (height, width)
    shared: bool,  # all samples have the same features
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the output, (samples * pixels,) each, in the precision of sums; without bias."""
    samples, _, into = weights.shape
    pixels = len(features) if shared else len(features) // samples
    mean = torch.empty(samples * pixels, dtype=sum_type(features), device=features.device)
    variance = torch.empty_like(mean) if variances is not None else mean
    _head[(cdiv(pixels, BLOCK), samples)](
        features,
        weights,
        weights if variances is None else variances,
        mean,
        variance,
        pixels,
        *shape,
        IN=into,
        SHARED=shared,
        VARIANCE=variances is not None,
        SUM=sums(features),
        BLOCK=BLOCK,
        num_warps=4,
    )
    return mean, variance


def head_gradient(
    features: Tensor,  # (pixels, in), behind a ReLU
    weights: Tensor,  # (16, in)
    variances: Tensor,  # (16, in)
    mean_slopes: Tensor,  # (pixels,)
    variance_slopes: Tensor,  # (pixels,)
    shape: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to the features (0 where the ReLU was closed), the weights and the variances."""
    pixels, into = features.shape
    turned = [_turned(weights, features.dtype), _turned(variances, features.dtype)]
    slopes = torch.empty_like(features)
    runs, tiles = runs_of(pixels, 4 * CHUNKS)
    partial = torch.empty((runs, 2, PLANE_TAPS, into), dtype=sum_type(features), device=features.device)
    _head_gradient[(runs,)](
        features,
        *turned,
        mean_slopes,
        variance_slopes,
        slopes,
        partial,
        pixels,
        *shape,
        IN=into,
        TILES=tiles,
        PRECISION=precision(features),
        SUM=sums(features),
        BLOCK=BLOCK,
        num_warps=4,
    )
    of_weights, of_variances = partial.sum(0).unbind(0)
    return slopes, _turned(of_weights, of_weights.dtype), _turned(of_variances, of_variances.dtype)


def _turned(taps: Tensor, dtype: torch.dtype) -> Tensor:
    """Taps in the opposite order: a slope reaches the pixels that its pixel was computed from."""
    turned = torch.zeros_like(taps, dtype=dtype)
    turned[:9] = taps[:9].flip(0)
    return turned
