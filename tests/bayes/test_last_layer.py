"""A linear-Gaussian problem: the posterior, the ELBO's optimum and the predictive moments are known in closed form."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import unfold

from bayescade.bayes.last_layer import Curvature, NormalEquations, PlainInputs
from bayescade.bayes.layers import MeanFieldConv

NOISE = 0.3


def problem() -> tuple[MeanFieldConv, Tensor, Tensor]:
    """Features h and truths t = w h + b + noise, with a layer somewhere else."""
    generator = torch.Generator().manual_seed(5)
    layer = MeanFieldConv(2, generator).double()
    h = torch.rand((3, 2, 5, 5), generator=generator, dtype=torch.float64)
    weight = torch.randn((1, 2, 3, 3), generator=generator, dtype=torch.float64)
    truth = torch.nn.functional.conv2d(h, weight, torch.tensor([0.4]).double(), padding=1)
    truth = truth + NOISE * torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    return layer, h, truth


def design(h: Tensor) -> Tensor:
    """One row per pixel: its features and a 1."""
    patches = unfold(h, 3, padding=1).transpose(1, 2).flatten(0, 1)
    return torch.cat([patches, torch.ones(len(patches), 1, dtype=h.dtype)], 1)


def refitted(temperature: float = 1.0) -> tuple[MeanFieldConv, Tensor, Tensor, NormalEquations]:
    layer, h, truth = problem()
    equations = NormalEquations(layer)
    for some in (slice(0, 1), slice(1, 3)):  # in runs, as they come
        weight = torch.full_like(truth[some], 1 / NOISE**2)
        equations.add(h[some], weight, (truth[some] - layer.mean(h[some])).detach())
    equations.refit(layer, temperature)
    return layer, h, truth, equations


def negative_elbo(layer: MeanFieldConv, h: Tensor, truth: Tensor) -> Tensor:
    """-E_q log p + KL, without sampling: E (t - f)^2 = (t - mean)^2 + variance."""
    squares = (truth - layer.mean(h)) ** 2 + layer.output_variance(h)
    return (squares / (2 * NOISE**2) + math.log(NOISE)).sum() + layer.kl()


@pytest.mark.parametrize("temperature", [1.0, 50.0])
def test_the_refit_is_the_exact_posterior(temperature: float) -> None:
    layer, h, truth, equations = refitted(temperature)
    rows = design(h)
    precision = rows.T @ rows / NOISE**2 / temperature + torch.diag(torch.tensor([1.0] * 18 + [0.0]).double())
    mean = torch.linalg.solve(precision, rows.T @ truth.flatten() / NOISE**2 / temperature)
    found = torch.cat([layer.weight.flatten(), layer.bias]).detach()
    assert torch.allclose(found, mean, rtol=1e-9)
    assert torch.allclose(layer.std().flatten() ** 2, 1 / precision.diagonal()[:-1], rtol=1e-9)
    _, covariance = equations.posterior(torch.zeros_like(mean), temperature)
    assert torch.allclose(covariance, torch.linalg.inv(precision), rtol=1e-9, atol=1e-12)


def test_the_refit_is_the_optimum_of_the_elbo() -> None:
    layer, h, truth, _ = refitted()
    slopes = torch.autograd.grad(negative_elbo(layer, h, truth), [layer.weight, layer.bias, layer.log_std])
    start, h, truth = problem()
    before = torch.autograd.grad(negative_elbo(start, h, truth), [start.weight, start.bias, start.log_std])
    for slope, scale in zip(slopes, before, strict=True):
        assert slope.abs().max() < 1e-4 * scale.abs().max()
    least = float(negative_elbo(layer, h, truth).detach())
    for change in (0.02, -0.02):
        for parameter in (layer.weight, layer.log_std):
            with torch.no_grad():
                parameter += change
                assert float(negative_elbo(layer, h, truth)) > least
                parameter -= change


def test_the_predictive_moments_are_those_of_the_mean_field_posterior() -> None:
    layer, h, _, _ = refitted()
    rows = design(h)
    mean = rows @ torch.cat([layer.weight.flatten(), layer.bias])
    variance = rows[:, :-1] ** 2 @ layer.std().flatten() ** 2
    assert torch.allclose(layer.mean(h).flatten(), mean)
    assert torch.allclose(layer.output_variance(h).flatten(), variance)


def test_the_curvature_alone_gives_the_same_std_and_does_not_change_the_mean() -> None:
    layer, h, truth = problem()
    weight = torch.rand(truth.shape, generator=torch.Generator().manual_seed(3)).double()
    before = layer.weight.detach().clone()
    alone, equations = Curvature(layer), NormalEquations(layer)
    for some in (slice(0, 1), slice(1, None)):
        alone.add(PlainInputs(h[some]), weight[some])
        equations.add(h[some], weight[some], truth[some])
    alone.refit(layer, 2.0)
    assert torch.equal(layer.weight, before)
    found = layer.log_std.detach().clone()
    equations.refit(layer, 2.0)
    assert torch.allclose(layer.log_std, found, rtol=1e-12)


def test_a_feature_that_never_occurs_keeps_the_prior() -> None:
    layer, h, truth = problem()
    h = h.clone()
    h[:, 1] = 0
    equations = NormalEquations(layer)
    equations.add(h, torch.ones_like(truth), truth)
    equations.refit(layer)
    assert torch.allclose(layer.std()[0, 1], torch.ones(3, 3).double())
    assert layer.weight[0, 1].abs().max() < 1e-12
