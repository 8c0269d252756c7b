"""Scores of predictive Gaussians, one Gaussian per pixel, if the truth is known. A score is one number per image.

e is the error of a pixel, s its predictive standard deviation; p and F are the density and distribution function of N(0, 1).
"""

import math

import torch
from torch import Tensor

from bayescade.uncertainty.outcomes import REGION_SIZES, region_ratios

LEVELS = (0.5, 0.68, 0.9, 0.95)  # of the central intervals of `coverage`
WIDTH_LEVEL = 0.9  # level of the central interval for `width` and `coverage_by_stratum`
BINS = 10  # number of bins of `ence`
FAR = 5.0  # standard deviations: errors beyond this should not occur
CURVE = 100  # number of points of a curve
EDGE = 0.01  # smallest difference between the true values of neighbouring pixels at an edge


def uncertainty_scores(
    image: Tensor,  # (batch, 1, height, width)
    variance: Tensor,  # (batch, 1, height, width), predictive
    truth: Tensor,  # (batch, 1, height, width)
) -> dict[str, list[float]]:
    """Every score of every image; the name of a coverage has a colon, e.g. `coverage:0.9`, `coverage_by_stratum:edge`."""
    scores: dict[str, list[float]] = {}
    for x, v, t in zip(image[:, 0].double(), variance[:, 0].double(), truth[:, 0].double(), strict=True):
        error, std = (x - t).flatten(), v.flatten().clamp_min(1e-30).sqrt()
        values = {
            "nll": nll(error, std),
            "crps": crps(error, std),
            "width": 2 * quantile(WIDTH_LEVEL) * float(std.mean()),
            "interval_score": interval_score(error, quantile(WIDTH_LEVEL) * std, WIDTH_LEVEL),
            "beyond_5_std": beyond(error, std, FAR),
            "claimed_over_found": claimed_over_found(error, std),
            "miscalibration_area": miscalibration_area(error, std),
            "ence": ence(error, std),
            "ause_ratio": ause_ratio(error, std),
            "spearman": spearman(error.abs(), std),
        }
        values |= {f"coverage:{level:g}": coverage(error, std, level) for level in LEVELS}
        edge = edges(t).flatten()
        for name, stratum in (("edge", edge), ("flat", ~edge)):
            occurs = bool(stratum.any())
            values[f"coverage_by_stratum:{name}"] = (
                coverage(error[stratum], std[stratum], WIDTH_LEVEL) if occurs else math.nan
            )
        for size in (size for size in REGION_SIZES if size <= min(x.shape)):
            ratios = region_ratios(x - t, v, size)
            values[f"coverage_by_region_size:{size}"] = float((ratios <= quantile(WIDTH_LEVEL)).double().mean())
        for name, value in values.items():
            scores.setdefault(name, []).append(value)
    return scores


def quantile(level: float) -> float:
    """z with P(|N(0, 1)| <= z) = level."""
    return float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))


def nll(error: Tensor, std: Tensor) -> float:
    """Mean of -log N(e; 0, s^2) over the pixels, in nats per pixel."""
    return float((torch.log(std) + (error / std) ** 2 / 2).mean()) + math.log(2 * math.pi) / 2


def crps(error: Tensor, std: Tensor) -> float:
    """Mean continuous ranked probability score of a Gaussian: s (z (2 F(z) - 1) + 2 p(z) - 1 / sqrt(pi)), z = e / s."""
    z = error / std
    density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float((std * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))).mean())


def coverage(error: Tensor, std: Tensor, level: float) -> float:
    """Fraction of the pixels whose true value is in the central interval of this level."""
    return float((error.abs() <= quantile(level) * std).double().mean())


def interval_score(
    error: Tensor,
    half_width: Tensor,  # of the interval of every pixel
    level: float,
) -> float:
    """Mean interval score (Gneiting and Raftery 2007) of intervals around the prediction: the smaller the better.

    The width, plus 2 / (1 - level) times the distance of a missed truth from the interval.
    """
    missed = (error.abs() - half_width).clamp_min(0)
    return float((2 * half_width + 2 / (1 - level) * missed).mean())


def beyond(error: Tensor, std: Tensor, deviations: float) -> float:
    """Fraction of the pixels with an error of more than so many standard deviations."""
    return float((error.abs() > deviations * std).double().mean())


def claimed_over_found(error: Tensor, std: Tensor) -> float:
    """Root of the mean predicted variance, divided by the root mean square error; infinite without any error."""
    found = error.square().mean().sqrt()
    return float(std.square().mean().sqrt() / found) if float(found) > 0 else math.inf


def ence_floor(pixels: int) -> float:
    """The expected `ence` of calibrated Gaussian predictions of so many independent pixels: it is not 0.

    The root mean square of n normal errors has a relative standard deviation of 1 / sqrt(2 n).
    """
    return math.sqrt(2 / math.pi) / math.sqrt(2 * pixels / BINS)


def miscalibration_area(error: Tensor, std: Tensor) -> float:
    """Area between the curve (level, coverage of the central interval) and the diagonal: 0 is calibrated, 1/2 the worst."""
    needed = torch.erf((error / std).abs() / math.sqrt(2)).sort().values  # smallest level that covers the pixel's truth
    levels = (torch.arange(CURVE, dtype=torch.float64, device=error.device) + 0.5) / CURVE
    covered = torch.searchsorted(needed, levels, right=True) / len(needed)
    return float((covered - levels).abs().mean())


def ence(error: Tensor, std: Tensor) -> float:
    """Expected normalised calibration error (Levi et al. 2022): mean over bins of |rms s - rms e| / rms s.

    A bin has pixels with similar s; all bins have about the same number of pixels.
    """
    order = std.argsort()
    bins = [
        (bin_std.square().mean().sqrt(), bin_error.square().mean().sqrt())
        for bin_std, bin_error in zip(std[order].chunk(BINS), error[order].chunk(BINS), strict=True)
    ]
    return float(torch.stack([(predicted - actual).abs() / predicted for predicted, actual in bins]).mean())


def ause_ratio(error: Tensor, std: Tensor) -> float:
    """Area under the sparsification error, divided by this area for a random order of the pixels.

    Pixels are removed in groups, those with the largest s first; the curve is the root mean square error (RMSE) of the
    remaining pixels. The oracle removes pixels with the largest |e| first. The sparsification error is the curve minus the
    curve of the oracle. The ratio is 0 if s and |e| give the same order, 1 if the order by s is random.
    """
    squares = error.square()
    oracle = _remaining_rmse(squares[squares.argsort()])
    # Pixels with the same s have no order: each gets the mean square of all of them.
    _, group, counts = std.unique(return_inverse=True, return_counts=True)
    mean_squares = torch.zeros(len(counts), dtype=squares.dtype, device=squares.device)
    mean_squares = mean_squares.scatter_add_(0, group, squares) / counts
    by_std = _remaining_rmse(mean_squares[group[std.argsort()]])
    random = squares.mean().sqrt()
    random_area = (random - oracle).sum()
    return float((by_std - oracle).sum() / random_area) if float(random_area) > 0 else 0.0


def _remaining_rmse(
    squares: Tensor,  # (pixels,) squared errors; the last pixels are removed first
) -> Tensor:
    """RMSE of the first n pixels, (CURVE,): n decreases from all pixels to the fraction 1 / CURVE of them."""
    sums = squares.cumsum(0)
    counts = torch.linspace(len(squares), max(1, len(squares) // CURVE), CURVE, device=squares.device).long()
    return (sums[counts - 1] / counts).sqrt()


def spearman(a: Tensor, b: Tensor) -> float:
    """Correlation of the ranks; equal values get the mean of their ranks."""
    ranks = torch.stack([_ranks(a), _ranks(b)])
    deviation = ranks - ranks.mean(1, keepdim=True)
    scale = deviation.square().sum(1).prod().sqrt()
    return float((deviation[0] * deviation[1]).sum() / scale) if float(scale) > 0 else 0.0


def _ranks(values: Tensor) -> Tensor:
    _, group, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()  # the largest rank of each group of equal values
    return (last - (counts - 1) / 2)[group]


def edges(
    truth: Tensor,  # (height, width)
) -> Tensor:
    """Whether a pixel's true value differs from that of a neighbour by more than EDGE, (height, width) bool."""
    edge = torch.zeros_like(truth, dtype=torch.bool)
    down = (truth[1:] - truth[:-1]).abs() > EDGE
    right = (truth[:, 1:] - truth[:, :-1]).abs() > EDGE
    edge[1:] |= down
    edge[:-1] |= down
    edge[:, 1:] |= right
    edge[:, :-1] |= right
    return edge
