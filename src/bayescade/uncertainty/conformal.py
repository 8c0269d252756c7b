"""Conformal calibration of intervals: how wide they must be so that at most a share alpha of the pixels is missed.

Every calibration image i has a loss L_i(m): the share of its pixels (or regions) whose error is larger than m times the
predicted standard deviation. It falls from about 1 to 0 as the multiplier m grows. Images are exchangeable; pixels of one
image are not independent, so images are counted, never pixels.

    risk control in the mean    E[L(m)] <= alpha for a new image     (Angelopoulos et al. 2024, conformal risk control)
    with high probability       P(E[L(m)] <= alpha) >= 1 - delta     (Bates et al. 2021, risk-controlling prediction sets)

The second one needs an upper confidence bound of a mean of numbers in [0, 1], here by betting (Waudby-Smith and Ramdas
2024).
"""

import math

import numpy as np
from numpy.typing import NDArray

Losses = NDArray[np.float64]  # (images, multipliers): rows fall from left to right
# The multipliers that are tried; intervals are rounded up to the next of them.
MULTIPLIERS: NDArray[np.float64] = np.geomspace(0.02, 100.0, 600)
BETS = 1000  # values of the mean that are tried for the bound


def image_losses(
    ratios: NDArray[np.float64],  # (pixels,): |error| / std of the pixels of one image
) -> NDArray[np.float64]:
    """The share of the pixels with a ratio above every multiplier, (multipliers,)."""
    ordered = np.sort(ratios)
    return 1 - np.searchsorted(ordered, MULTIPLIERS, side="right") / len(ordered)


def loss_at(
    losses: NDArray[np.float64],  # (..., multipliers)
    multiplier: float,
) -> NDArray[np.float64]:
    """The losses at a multiplier, (...): those at the next smaller one of MULTIPLIERS, which are not less."""
    index = int(np.searchsorted(MULTIPLIERS, multiplier, side="right")) - 1
    return losses[..., index] if index >= 0 else np.ones(losses.shape[:-1])


def mean_control(losses: Losses, alpha: float) -> float:
    """The least multiplier with (sum of losses + 1) / (n + 1) <= alpha; infinite if there are too few images.

    The expected loss of a new image, exchangeable with those of the calibration, is then at most alpha.
    """
    bound = (losses.sum(0) + 1) / (len(losses) + 1)
    return _first(bound <= alpha)


def probable_control(losses: Losses, alpha: float, delta: float) -> float:
    """The least multiplier from which on the bound of the expected loss is at most alpha; infinite if there is none.

    With probability 1 - delta over the calibration images the expected loss of a new image is at most alpha.
    """
    best = math.inf
    for multiplier, column in zip(MULTIPLIERS[::-1], losses.T[::-1], strict=True):
        if upper_bound(column, delta) > alpha:
            break
        best = float(multiplier)
    return best


def _first(holds: NDArray[np.bool_]) -> float:
    return float(MULTIPLIERS[int(np.argmax(holds))]) if bool(holds.any()) else math.inf


def upper_bound(
    values: NDArray[np.float64],  # (n,) independent, in [0, 1]
    delta: float,
) -> float:
    """A number that is above the mean with probability 1 - delta: the bound by betting.

    For a mean m, the wealth of a gambler who bets a share b_i on values below m is W_i = prod (1 - b_i (x_j - m)); b_i
    depends on the values before i. If m is the true mean, W is a martingale, and exceeds 1 / delta with probability delta
    at most (Ville). The bound is the least m that is refuted: larger means are refuted too. The bets are those of the
    empirical Bernstein bound.
    """
    n = len(values)
    count = np.arange(1, n + 1)
    mean = (0.5 + np.cumsum(values)) / (1 + count)
    variance = (0.25 + np.cumsum((values - mean) ** 2)) / (1 + count)
    before = np.concatenate([[0.25], variance[:-1]])
    bets = np.minimum(1.0, np.sqrt(2 * math.log(1 / delta) / (n * before)))
    means = np.linspace(0, 1, BETS + 1)
    factors = np.maximum(1 - bets[:, None] * (values[:, None] - means), 1e-300)
    wealth = np.cumsum(np.log(factors), axis=0).max(0)
    refuted = wealth > math.log(1 / delta)
    return float(means[int(np.argmax(refuted))]) if bool(refuted.any()) else 1.0


def tail_multiplier(losses: Losses, alpha: float) -> float:
    """The multiplier whose mean loss is alpha, read off a tail that is fitted to the mean loss; no guarantee.

    Below TAIL the logarithm of the mean loss is continued as a straight line in the logarithm of the multiplier: a heavy
    tail.
    """
    mean = losses.mean(0)
    tail = (mean <= TAIL) & (mean > LEAST_TAIL)
    if alpha > TAIL or tail.sum() < 3:
        return _first(mean <= alpha)
    slope, level = np.polyfit(np.log(MULTIPLIERS[tail]), np.log(mean[tail]), 1, w=np.sqrt(mean[tail]))
    if slope >= 0:
        return _first(mean <= alpha)
    return float(math.exp((math.log(alpha) - level) / slope))


TAIL, LEAST_TAIL = 0.02, 1e-5  # mean losses between which the tail is fitted
