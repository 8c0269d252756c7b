"""Scores of a predictive Gaussian in every pixel, where the truth is known; one number per image.

e is the error, s the predictive standard deviation, of every pixel of an image.
"""

import math

import torch
from torch import Tensor

LEVELS = (0.5, 0.68, 0.9, 0.95)
WIDTH_LEVEL = 0.9
BINS = 10  # of ence
CURVE = 100  # points of curves
EDGE = 0.01  # smallest difference of neighbouring true values at an edge


def uncertainty_scores(
    image: Tensor,  # (batch, 1, height, width)
    variance: Tensor,  # (batch, 1, height, width), predictive
    truth: Tensor,  # (batch, 1, height, width)
) -> dict[str, list[float]]:
    """Every score of every image; names of coverages and strata have a colon."""
    scores: dict[str, list[float]] = {}
    for x, v, t in zip(image[:, 0].double(), variance[:, 0].double(), truth[:, 0].double(), strict=True):
        error, std = (x - t).flatten(), v.flatten().clamp_min(1e-30).sqrt()
        values = {
            "nll": nll(error, std),
            "crps": crps(error, std),
            "width": 2 * quantile(WIDTH_LEVEL) * float(std.mean()),
            "miscalibration_area": miscalibration_area(error, std),
            "ence": ence(error, std),
            "ause_ratio": ause_ratio(error, std),
            "spearman": spearman(error.abs(), std),
        }
        values |= {f"coverage:{level:g}": coverage(error, std, level) for level in LEVELS}
        edge = edges(t).flatten()
        for name, inside in (("edge", edge), ("flat", ~edge)):
            occurs = bool(inside.any())
            values[f"coverage_by_stratum:{name}"] = (
                coverage(error[inside], std[inside], WIDTH_LEVEL) if occurs else math.nan
            )
        for name, value in values.items():
            scores.setdefault(name, []).append(value)
    return scores


def quantile(level: float) -> float:
    """z with P(|N(0, 1)| <= z) = level."""
    return float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))


def nll(error: Tensor, std: Tensor) -> float:
    """Mean -log N(e; 0, s^2), in nats per pixel."""
    return float((torch.log(std) + (error / std) ** 2 / 2).mean()) + math.log(2 * math.pi) / 2


def crps(error: Tensor, std: Tensor) -> float:
    """Mean continuous ranked probability score of a Gaussian: s (z (2 F(z) - 1) + 2 p(z) - 1 / sqrt(pi)), z = e / s."""
    z = error / std
    density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float((std * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))).mean())


def coverage(error: Tensor, std: Tensor, level: float) -> float:
    """Part of the pixels whose truth is in the central interval of that level."""
    return float((error.abs() <= quantile(level) * std).double().mean())


def miscalibration_area(error: Tensor, std: Tensor) -> float:
    """Area between the coverage of central intervals and their level, over all levels: 0 is calibrated, 1/2 the worst."""
    reached = torch.erf((error / std).abs() / math.sqrt(2)).sort().values  # the level at which a pixel is just covered
    levels = (torch.arange(CURVE, dtype=torch.float64, device=error.device) + 0.5) / CURVE
    covered = torch.searchsorted(reached, levels, right=True) / len(reached)
    return float((covered - levels).abs().mean())


def ence(error: Tensor, std: Tensor) -> float:
    """Expected normalised calibration error (Levi et al. 2022): mean of |rms s - rms e| / rms s over bins of s."""
    order = std.argsort()
    parts = [
        (part_std.square().mean().sqrt(), part_error.square().mean().sqrt())
        for part_std, part_error in zip(std[order].chunk(BINS), error[order].chunk(BINS), strict=True)
    ]
    return float(torch.stack([(predicted - actual).abs() / predicted for predicted, actual in parts]).mean())


def ause_ratio(error: Tensor, std: Tensor) -> float:
    """Area under the sparsification error / that of a random order: 0 if s ranks pixels as their errors do, 1 at random.

    Pixels are removed in groups, the largest s first; the curve is the root mean square error of the rest.
    """
    squares = error.square()
    oracle = _rest(squares[squares.argsort()])
    _, group, counts = std.unique(return_inverse=True, return_counts=True)  # sorted; equal s share their mean square
    tied = torch.zeros(len(counts), dtype=squares.dtype, device=squares.device).scatter_add_(0, group, squares) / counts
    ours = _rest(tied[group[std.argsort()]])
    random = squares.mean().sqrt()
    most = (random - oracle).sum()
    return float((ours - oracle).sum() / most) if float(most) > 0 else 0.0


def _rest(squares: Tensor) -> Tensor:
    """RMSE of the first n pixels, for CURVE values of n from all to few."""
    sums = squares.cumsum(0)
    counts = torch.linspace(len(squares), max(1, len(squares) // CURVE), CURVE, device=squares.device).long()
    return (sums[counts - 1] / counts).sqrt()


def spearman(a: Tensor, b: Tensor) -> float:
    """Correlation of the ranks; ties share their mean rank."""
    ranks = torch.stack([_ranks(a), _ranks(b)])
    deviation = ranks - ranks.mean(1, keepdim=True)
    scale = deviation.square().sum(1).prod().sqrt()
    return float((deviation[0] * deviation[1]).sum() / scale) if float(scale) > 0 else 0.0


def _ranks(values: Tensor) -> Tensor:
    _, group, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1) / 2)[group]


def edges(
    truth: Tensor,  # (height, width)
) -> Tensor:
    """Pixels whose true value differs from a neighbour's, (height, width) bool."""
    edge = torch.zeros_like(truth, dtype=torch.bool)
    down = (truth[1:] - truth[:-1]).abs() > EDGE
    right = (truth[:, 1:] - truth[:, :-1]).abs() > EDGE
    edge[1:] |= down
    edge[:-1] |= down
    edge[:, 1:] |= right
    edge[:, :-1] |= right
    return edge
