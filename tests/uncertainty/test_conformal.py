"""Conformal calibration where the answer is known: Gaussian and Bernoulli losses."""

import math

import numpy as np
import pytest
from scipy.stats import beta, norm

from bayescade.uncertainty.conformal import (
    MULTIPLIERS,
    image_losses,
    mean_control,
    probable_control,
    tail_multiplier,
    upper_bound,
)


def gaussian_losses(rng: np.random.Generator, images: int, pixels: int = 400, std: float = 0.0) -> np.ndarray:
    """Images whose errors are Gaussian; their scale differs from image to image by `std` on a logarithmic scale."""
    scales = np.exp(std * rng.standard_normal(images))
    return np.stack([image_losses(np.abs(scale * rng.standard_normal(pixels))) for scale in scales])


def test_losses_are_shares_of_pixels() -> None:
    losses = image_losses(np.array([0.5, 1.0, 2.0, 4.0]))
    for multiplier, loss in zip(MULTIPLIERS, losses, strict=True):
        assert loss == np.mean(np.array([0.5, 1.0, 2.0, 4.0]) > multiplier)


def test_gaussian_errors_get_the_gaussian_multiplier() -> None:
    losses = gaussian_losses(np.random.default_rng(0), 2000)
    assert mean_control(losses, 0.1) == pytest.approx(norm.ppf(0.95), rel=0.02)
    assert mean_control(losses, 0.5) == pytest.approx(norm.ppf(0.75), rel=0.02)


def test_risk_is_controlled_in_the_mean_with_few_images_of_different_scale() -> None:
    """The mean over calibrations of the loss of new images is at most alpha, and not much less."""
    rng = np.random.default_rng(1)
    risks = []
    for _ in range(300):
        losses = gaussian_losses(rng, 41, std=0.5)
        multiplier = mean_control(losses[:40], 0.1)
        risks.append(float(losses[40][np.searchsorted(MULTIPLIERS, multiplier)]))
    assert 0.06 < np.mean(risks) < 0.1 + 3 * np.std(risks) / math.sqrt(300)


def test_too_few_images_control_nothing() -> None:
    losses = gaussian_losses(np.random.default_rng(0), 8)
    assert mean_control(losses, 0.1) == math.inf
    assert probable_control(losses, 0.1, 0.1) == math.inf


def test_the_bound_holds_as_often_as_it_says_and_is_tighter_than_hoeffding() -> None:
    rng = np.random.default_rng(2)
    bounds = np.array([upper_bound(rng.binomial(1, 0.1, 300).astype(float), 0.1) for _ in range(300)])
    assert (bounds < 0.1).mean() <= beta.ppf(0.999, 31, 270)  # at most delta = 0.1 of 300
    assert bounds.mean() < 0.1 + math.sqrt(math.log(10) / 600)
    exact = [beta.ppf(0.9, k + 1, 300 - k) for k in rng.binomial(300, 0.1, 300)]  # Clopper and Pearson
    assert bounds.mean() < np.mean(exact) + 0.02


def test_a_bound_of_constant_values_is_near_them() -> None:
    assert upper_bound(np.zeros(500), 0.1) < 0.02
    assert upper_bound(np.full(2000, 0.3), 0.1) == pytest.approx(0.3, abs=0.02)
    assert upper_bound(np.ones(50), 0.1) == 1.0


def test_risk_is_controlled_with_high_probability() -> None:
    """Risks of 100 calibrations, known in closed form: more than delta of them above alpha would be a mistake."""
    rng = np.random.default_rng(3)
    above = 0
    for _ in range(100):
        multiplier = probable_control(gaussian_losses(rng, 200, 100), 0.1, 0.1)
        above += 2 * norm.sf(multiplier) > 0.1
    assert above <= 17  # 99 % of the binomial distribution of 100 with probability 0.1


def test_heavy_tails_are_continued() -> None:
    """A Pareto tail, P(ratio > m) = m^-3, of few pixels: the multiplier of 1e-4 is 21.5."""
    rng = np.random.default_rng(4)
    losses = np.stack([image_losses(rng.pareto(3.0, 1000) + 1) for _ in range(50)])
    assert tail_multiplier(losses, 1e-4) == pytest.approx(1e4 ** (1 / 3), rel=0.2)
    assert tail_multiplier(losses, 0.1) == pytest.approx(10 ** (1 / 3), rel=0.05)
