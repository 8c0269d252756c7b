"""Losses where their optimum or their gradient is known."""

import math

import pytest
import torch

from bayescade.bayes.gaussian import Gaussian
from bayescade.training import losses

ZERO = torch.zeros(())


def pixels() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean, truth = torch.rand((2, 8, 1, 5, 5), generator=generator, dtype=torch.float64)
    variance = torch.rand((8, 1, 5, 5), generator=generator, dtype=torch.float64) + 0.1
    return mean, variance, truth


def test_the_elbo_is_the_sum_over_pixels_and_the_share_of_the_kl() -> None:
    mean, variance, truth = pixels()
    expected = (
        -torch.distributions.Normal(mean, variance.sqrt()).log_prob(truth).sum()
        - truth.numel() * math.log(2 * math.pi) / 2
    )
    loss = losses.elbo(images=100)(Gaussian(mean, variance), truth, torch.tensor(50.0))
    assert float(loss) == pytest.approx(float(expected) + 8 / 100 * 50, rel=1e-12)
    hot = losses.elbo(images=100, temperature=3.0)(Gaussian(mean, variance), truth, torch.tensor(50.0))
    assert float(hot) == pytest.approx(float(expected) + 3 * 8 / 100 * 50, rel=1e-12)


@pytest.mark.parametrize(("loss", "factor"), [(losses.elbo(8), 1.0), (losses.elbo_as_released(8), 25.0)])
def test_on_a_frozen_mean_one_variance_becomes_the_mean_squared_error(loss: losses.Loss, factor: float) -> None:
    """Counted once per image instead of once per pixel, it becomes as many times too large as an image has pixels."""
    mean, _, truth = pixels()
    log_std = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([log_std], lr=0.5, max_iter=200, tolerance_grad=1e-10)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        value = loss(Gaussian(mean, torch.exp(2 * log_std).reshape(1, 1, 1, 1)), truth, ZERO)
        value.backward()
        return value

    optimiser.step(closure)
    mse = float(((mean - truth) ** 2).mean())
    assert float(torch.exp(2 * log_std)) == pytest.approx(factor * mse, rel=1e-4)


def test_within_an_image_it_learns_as_by_least_squares() -> None:
    """Whatever the variance says."""
    mean, variance, truth = pixels()
    mean.requires_grad_()
    (slope,) = torch.autograd.grad(losses.side_by_side(8)(Gaussian(mean, variance), truth, ZERO), mean)
    (expected,) = torch.autograd.grad(((mean - truth) ** 2).sum(), mean)
    ratio = (slope / expected).flatten(1)
    assert torch.allclose(ratio, ratio.mean(1, keepdim=True).expand_as(ratio), rtol=1e-9)


def test_the_variance_learns_by_its_likelihood_side_by_side() -> None:
    mean, variance, truth = pixels()
    variance.requires_grad_()
    (slope,) = torch.autograd.grad(losses.side_by_side(8)(Gaussian(mean, variance), truth, ZERO), variance)
    (expected,) = torch.autograd.grad(losses.nll(Gaussian(mean, variance), truth).mean(), variance)
    assert torch.allclose(slope, expected)


def test_the_image_error_is_the_slope_of_the_mean_psnr() -> None:
    """PSNR is -10 log10 of an image's mean squared error: every image counts alike, whatever its error."""
    mean, variance, truth = pixels()
    mean = truth + (mean - truth) * torch.linspace(0.5, 2, 8, dtype=torch.float64)[:, None, None, None]
    ours = mean.clone().requires_grad_()
    losses.side_by_side(images=8)(Gaussian(ours, variance), truth, ZERO).backward()
    theirs = mean.clone().requires_grad_()
    (((theirs - truth) ** 2).mean((1, 2, 3)).log().mean() / 2).backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    # An error is counted as a little larger than it is, so that a perfect image does not outweigh all others.
    assert torch.allclose(ours.grad, theirs.grad, rtol=20 * losses.LEAST_SHARE, atol=0)


def test_a_perfect_image_does_not_outweigh_the_others() -> None:
    mean, variance, truth = pixels()
    mean[0] = truth[0]
    mean.requires_grad_()
    losses.side_by_side(images=8)(Gaussian(mean, variance), truth, ZERO).backward()
    assert mean.grad is not None
    assert bool(torch.isfinite(mean.grad).all())
    assert not mean.grad[0].any()


@pytest.mark.parametrize("name", losses.LOSSES)
def test_every_loss_has_its_name(name: str) -> None:
    mean, variance, truth = pixels()
    loss = losses.loss_of(name, 8, 1.0, losses.ALONE)
    assert bool(torch.isfinite(loss(Gaussian(mean, variance), truth, torch.tensor(3.0))))
    without = loss(Gaussian(mean, None), truth, ZERO)
    assert bool(torch.isfinite(without))
