"""Scores of a predictive variance, where they are known."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bayescade.uncertainty import scores

NUMBER = 200_000


def gaussian_errors(claimed: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Errors whose standard deviations vary from pixel to pixel, and what is claimed of them."""
    rng = np.random.default_rng(0)
    std = torch.from_numpy(rng.uniform(0.5, 2.0, NUMBER))
    return std * torch.from_numpy(rng.normal(size=NUMBER)), claimed * std


def test_calibrated_errors_are_covered_as_claimed() -> None:
    error, std = gaussian_errors()
    for level in scores.LEVELS:
        assert scores.coverage(error, std, level) == pytest.approx(
            level, abs=4 * math.sqrt(level * (1 - level) / NUMBER)
        )
    assert scores.miscalibration_area(error, std) < 0.005
    assert scores.ence(error, std) < 0.01
    assert scores.nll(error, std) == pytest.approx(
        float((std.log() + 0.5).mean()) + math.log(2 * math.pi) / 2, abs=0.01
    )


def test_half_the_deviation_covers_as_the_normal_distribution_says() -> None:
    error, std = gaussian_errors(claimed=0.5)
    expected = 2 * stats.norm.cdf(0.5 * scores.quantile(0.9)) - 1
    assert scores.coverage(error, std, 0.9) == pytest.approx(expected, abs=0.005)
    assert scores.ence(error, std) == pytest.approx(1.0, abs=0.02)
    levels = np.linspace(0, 1, 2001)
    area = np.trapezoid(
        abs(2 * stats.norm.cdf(0.5 * stats.norm.ppf((1 + levels[:-1]) / 2)) - 1 - levels[:-1]), levels[:-1]
    )
    assert scores.miscalibration_area(error, std) == pytest.approx(area, abs=0.005)


@pytest.mark.parametrize(("error", "std"), [(0.0, 1.0), (0.7, 0.5), (-2.0, 0.3)])
def test_crps_is_the_integral(error: float, std: float) -> None:
    truth = -error  # of a prediction at 0
    below = integrate.quad(lambda z: stats.norm.cdf(z, 0, std) ** 2, -12, truth)[0]
    above = integrate.quad(lambda z: (1 - stats.norm.cdf(z, 0, std)) ** 2, truth, 12)[0]
    ours = scores.crps(torch.tensor([error]).double(), torch.tensor([std]).double())
    assert ours == pytest.approx(below + above, rel=1e-6)


def test_sparsification_is_0_for_the_errors_themselves_and_1_at_random() -> None:
    error, _ = gaussian_errors()
    assert scores.ause_ratio(error, error.abs()) == pytest.approx(0, abs=1e-9)
    random = torch.from_numpy(np.random.default_rng(1).uniform(size=NUMBER))
    assert scores.ause_ratio(error, random) == pytest.approx(1, abs=0.02)
    assert scores.ause_ratio(torch.ones(100).double(), torch.rand(100).double()) == 0
    sorted_errors = error[error.abs().argsort()]
    assert scores.ause_ratio(sorted_errors, torch.ones(NUMBER).double()) == pytest.approx(
        1, abs=1e-6
    )  # one std: no order


def test_spearman_is_that_of_scipy() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 20, 500).astype(float), rng.normal(size=500)
    expected = stats.spearmanr(a, b + 0.1 * a).statistic
    assert scores.spearman(torch.from_numpy(a), torch.from_numpy(b + 0.1 * a)) == pytest.approx(expected, rel=1e-9)
    assert scores.spearman(torch.ones(5).double(), torch.rand(5).double()) == 0


def test_edges_are_on_both_sides_of_a_step() -> None:
    truth = torch.zeros(4, 6)
    truth[:, 3:] = 1
    assert scores.edges(truth).nonzero()[:, 1].unique().tolist() == [2, 3]


def test_every_image_has_every_score() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand((3, 1, 8, 8), generator=generator)
    image = truth + 0.1 * torch.randn(truth.shape, generator=generator)
    found = scores.uncertainty_scores(image, torch.full_like(truth, 0.01), truth)
    assert {"nll", "crps", "width", "coverage:0.9", "coverage_by_stratum:edge", "ause_ratio"} <= set(found)
    assert all(len(values) == 3 for values in found.values())
    assert found["width"] == pytest.approx([2 * 1.6449 * 0.1] * 3, rel=1e-3)


def test_the_interval_score_is_that_of_its_definition() -> None:
    error, half = torch.tensor([0.0, 0.5, -3.0]).double(), torch.tensor([1.0, 1.0, 2.0]).double()
    assert scores.interval_score(error, half, 0.9) == pytest.approx((2 + 2 + 4 + 20 * 1.0) / 3)


def test_the_best_interval_score_is_that_of_the_right_width() -> None:
    error, std = gaussian_errors()
    by_factor = [scores.interval_score(error, f * scores.quantile(0.9) * std, 0.9) for f in (0.7, 1.0, 1.4)]
    assert by_factor[1] == min(by_factor)


def test_calibrated_errors_are_found_as_claimed_and_never_far() -> None:
    error, std = gaussian_errors()
    assert scores.claimed_over_found(error, std) == pytest.approx(1, abs=0.01)
    assert scores.claimed_over_found(error, std / 2) == pytest.approx(0.5, abs=0.005)
    assert scores.claimed_over_found(torch.zeros(3), torch.ones(3)) == math.inf
    assert scores.beyond(error, std, 2.0) == pytest.approx(2 * stats.norm.sf(2.0), abs=0.002)


def test_ence_of_calibrated_errors_is_its_floor() -> None:
    rng = np.random.default_rng(5)
    found = [scores.ence(torch.from_numpy(rng.normal(size=1000)), torch.ones(1000).double()) for _ in range(200)]
    assert np.mean(found) == pytest.approx(scores.ence_floor(1000), rel=0.05)
