"""Scores of reconstructions whose truth is known."""

import math

import torch
from torch import Tensor

from bayescade.metrics.psnr import psnr
from bayescade.metrics.rmse import rmse
from bayescade.metrics.ssim import WINDOW, ssim

DATA_RANGE = 1.0  # images are in [0, 1]


def image_scores(
    image: Tensor,  # (batch, 1, height, width)
    truth: Tensor,  # (batch, 1, height, width)
) -> dict[str, list[float | None]]:
    """PSNR, SSIM and RMSE of each image at data range 1; what is not a finite number is None."""
    truth = truth.to(image.device)
    scores = {"psnr": psnr(image, truth, DATA_RANGE), "rmse": rmse(image, truth, DATA_RANGE)}
    if min(image.shape[-2:]) >= WINDOW:
        scores["ssim"] = ssim(image, truth, DATA_RANGE)
    return {name: [finite(value) for value in values.tolist()] for name, values in scores.items()}


def finite(value: float) -> float | None:
    """The number, or None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def mean(values: list[float | None] | None) -> float | None:
    """The mean of the numbers, or None where one is missing."""
    if not values or any(value is None for value in values):
        return None
    return float(torch.tensor(values, dtype=torch.float64).mean())
