"""Scores of reconstructions whose truth is known."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayescade.metrics.psnr import psnr
from bayescade.metrics.rmse import rmse
from bayescade.metrics.ssim import WINDOW, ssim
from bayescade.results import Reconstruction
from bayescade.uncertainty.scores import LEVELS, uncertainty_scores

DATA_RANGE = 1.0  # images are in [0, 1]
RESAMPLES = 2000  # number of resamples of a bootstrap
SILENT = 0.5  # claimed / found below this, without a warning: silently wrong
T_POINTS = 100_001  # of the integral for a quantile of Student's t distribution


def image_scores(
    image: Tensor,  # (batch, 1, height, width)
    truth: Tensor,  # (batch, 1, height, width)
) -> dict[str, list[float | None]]:
    """PSNR, RMSE and, if the images are not too small, SSIM of each image at data range 1; NaN and infinity become None."""
    truth = truth.to(image.device)
    scores = {"psnr": psnr(image, truth, DATA_RANGE), "rmse": rmse(image, truth, DATA_RANGE)}
    if min(image.shape[-2:]) >= WINDOW:
        scores["ssim"] = ssim(image, truth, DATA_RANGE)
    return {name: [finite(value) for value in values.tolist()] for name, values in scores.items()}


def finite(value: float) -> float | None:
    """The number, or None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def mean(values: list[float | None] | None) -> float | None:
    """The mean of the numbers; None if a number is missing or there are no numbers."""
    if not values or any(value is None for value in values):
        return None
    return float(torch.tensor(values, dtype=torch.float64).mean())


def bootstrap_interval(values: list[float | None] | None, level: float = 0.95) -> list[float] | None:
    """An interval for the mean over images: quantiles of the means of bootstrap resamples, with a fixed seed."""
    if not values or any(value is None for value in values):
        return None
    numbers = torch.tensor(values, dtype=torch.float64)
    indices = torch.randint(len(numbers), (RESAMPLES, len(numbers)), generator=torch.Generator().manual_seed(0))
    levels = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    return [float(end) for end in numbers[indices].mean(1).quantile(levels)]


def t_interval(values: list[float], level: float = 0.95) -> list[float] | None:
    """The interval mean -+ t s / sqrt(n) for the mean of n numbers with standard deviation s; None for one number."""
    if len(values) < 2:
        return None
    numbers = np.asarray(values, dtype=np.float64)
    half = t_quantile(level, len(numbers) - 1) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return [float(numbers.mean()) - half, float(numbers.mean()) + half]


def t_quantile(level: float, freedom: int) -> float:
    """t with P(|T| <= t) = level, for Student's t distribution with n degrees of freedom.

    With T = sqrt(n) tan(a) the density of the angle a is proportional to cos(a)^(n - 1).
    """
    angles = np.linspace(0, math.pi / 2, T_POINTS)
    density = np.cos(angles) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(freedom) * math.tan(float(np.interp(level, below / below[-1], angles)))


Scores = dict[str, list[float | None]]


def result_scores(result: Reconstruction, truth: Tensor) -> Scores:
    """Scores of the images, and of their variances if the result has variances."""
    truth = truth.to(result.image.device)
    scores = image_scores(result.image, truth)
    if result.aleatoric is None or result.epistemic is None:
        return scores
    for name, values in uncertainty_scores(result.image, result.variance, truth).items():
        scores[f"uncertainty:{name}"] = [finite(value) for value in values]
    total = result.variance.mean((1, 2, 3)).clamp_min(1e-30)
    for name, part in (("epistemic_share", result.epistemic), ("geometry_share", result.geometry_variance)):
        if part is not None:
            scores[f"uncertainty:{name}"] = [finite(value) for value in (part.mean((1, 2, 3)) / total).tolist()]
    if result.lower is not None and result.upper is not None:
        inside = (result.lower <= truth) & (truth <= result.upper)
        scores["uncertainty:coverage_calibrated"] = [*inside.double().mean((1, 2, 3)).tolist()]
    warned = [bool(items) for items in result.warnings] if result.warnings is not None else [False] * len(truth)
    claimed = scores["uncertainty:claimed_over_found"]
    scores["uncertainty:silently_wrong"] = [
        float(ratio is not None and ratio < SILENT and not warning)
        for ratio, warning in zip(claimed, warned, strict=True)
    ]
    scores["uncertainty:warned"] = [float(warning) for warning in warned]
    if result.mc_standard_error is not None:
        mean_std = result.epistemic.sqrt().mean((1, 2, 3))
        error = result.mc_standard_error.mean((1, 2, 3)) / mean_std.clamp_min(1e-30)
        scores["uncertainty:mc_relative_error"] = [finite(value) for value in error.tolist()]
    return scores


def uncertainty_row(scores: Mapping[str, list[float | None]]) -> dict[str, Any] | None:
    """The scores of the variances, averaged over the images, with the keys of the JSON output; None without variances."""
    means = {name.partition(":")[2]: mean(values) for name, values in scores.items() if name.startswith("uncertainty:")}
    if not means:
        return None
    row: dict[str, Any] = {"coverage_calibrated": means.pop("coverage_calibrated", None)}
    row["coverage"] = {f"{level:g}": means.pop(f"coverage:{level:g}") for level in LEVELS}
    for table in ("coverage_by_stratum", "coverage_by_region_size"):
        row[table] = {}
        for name in [name for name in means if name.startswith(f"{table}:")]:
            means.pop(name)
            present = [
                value for value in scores[f"uncertainty:{name}"] if value is not None
            ]  # None: it has no such pixels
            row[table][name.partition(":")[2]] = mean(list(present))
    epistemic, geometry = means["epistemic_share"], means.pop("geometry_share", None)
    if epistemic is not None:
        row["shares"] = {"aleatoric": 1 - epistemic - (geometry or 0), "epistemic": epistemic, "geometry": geometry}
    return {**means, **row}
