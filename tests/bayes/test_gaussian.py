"""Moments of a function of a Gaussian, where they are known."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.nn.functional import softplus

from bayescade.bayes.gaussian import expectation, relu_moments, safe_sqrt

SAMPLES = 1_000_000


def test_the_root_of_nothing_has_a_finite_slope_and_adds_nothing() -> None:
    variance = torch.tensor([0.0, 1e-20, 4.0], dtype=torch.float64, requires_grad=True)
    root = safe_sqrt(variance)
    assert root.tolist() == pytest.approx([0.0, 1e-10, 2.0], rel=1e-12)
    (slope,) = torch.autograd.grad(root.sum(), variance)
    assert slope[0] == 0
    assert slope[2] == pytest.approx(0.25)


@pytest.mark.parametrize("mean", [-3.0, -0.5, 0.0, 0.7, 5.0])
@pytest.mark.parametrize("std", [0.01, 1.0, 3.0])
def test_relu_moments_against_integration(mean: float, std: float) -> None:
    def moment(power: int) -> float:
        top = max(mean, 0) + 12 * std
        return integrate.quad(lambda z: z**power * stats.norm.pdf(z, mean, std), 0, top, points=[max(mean, 0)])[0]

    first, second = moment(1), moment(2)
    ours = relu_moments(torch.tensor([mean], dtype=torch.float64), torch.tensor([std**2], dtype=torch.float64))
    assert float(ours[0]) == pytest.approx(first, rel=1e-7, abs=1e-12)
    assert float(ours[1]) == pytest.approx(second - first**2, rel=1e-6, abs=1e-12)


def test_relu_moments_against_a_million_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.tensor([-1.0, 0.0, 0.3, 2.0], dtype=torch.float64)
    variance = torch.tensor([1.0, 0.5, 0.2, 3.0], dtype=torch.float64)
    z = mean + variance.sqrt() * torch.randn((SAMPLES, 4), generator=generator, dtype=torch.float64)
    sampled = z.clamp_min(0)
    first, second = relu_moments(mean, variance)
    assert (sampled.mean(0) - first).abs().max() < 5 * float(sampled.std(0).max()) / math.sqrt(SAMPLES)
    error = ((sampled - sampled.mean(0)) ** 2).std(0) / math.sqrt(SAMPLES)
    assert ((sampled.var(0) - second).abs() < 5 * error).all()


def test_relu_moments_do_not_cancel_in_single_precision() -> None:
    first, second = relu_moments(torch.tensor([1.0]), torch.tensor([1e-10]))
    assert float(first) == 1
    assert float(second) == pytest.approx(1e-10, rel=1e-5)
    certain, nothing = relu_moments(torch.tensor([0.5, -0.5]), torch.zeros(2))
    assert certain.tolist() == [0.5, 0.0]
    assert nothing.tolist() == [0.0, 0.0]


def test_quadrature_is_exact_for_polynomials() -> None:
    mean, variance = torch.tensor([0.3], dtype=torch.float64), torch.tensor([0.7], dtype=torch.float64)
    fourth = 0.3**4 + 6 * 0.3**2 * 0.7 + 3 * 0.7**2
    assert float(expectation(lambda z: z**4, mean, variance)) == pytest.approx(fourth, rel=1e-12)


@pytest.mark.parametrize("mean", [-6.0, -1.0, 2.0])
def test_the_mean_of_softplus_squared_against_samples_and_integration(mean: float) -> None:
    std = 0.8
    ours = float(
        expectation(lambda z: softplus(z) ** 2, torch.tensor([mean]).double(), torch.tensor([std**2]).double())
    )
    exact = integrate.quad(
        lambda z: np.logaddexp(0, z) ** 2 * stats.norm.pdf(z, mean, std), mean - 12 * std, mean + 12 * std
    )[0]
    assert ours == pytest.approx(exact, rel=1e-6)
    generator = torch.Generator().manual_seed(1)
    sampled = softplus(mean + std * torch.randn(SAMPLES, generator=generator, dtype=torch.float64)) ** 2
    assert abs(ours - float(sampled.mean())) < 5 * float(sampled.std()) / math.sqrt(SAMPLES)
