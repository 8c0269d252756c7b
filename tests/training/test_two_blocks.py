"""The paper's example of a cascade with two blocks and one parameter each, against numerical integration.

An image is one pixel, so a 3 x 3 convolution sees its middle weight only: f_k(x) = relu(x + theta_k h(x, g)), g = x - y / 2.
"""

import copy
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn

from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks.block import Block
from bayescade.blocks.homoscedastic import OneVariance
from bayescade.blocks.sampling import ActivationNoise
from bayescade.blocks.settings import BlockSettings
from bayescade.inference.monte_carlo import InferenceSettings, Sampler
from bayescade.networks.cascade import Cascade
from bayescade.physics.operator import LinearOperator
from bayescade.physics.problem import InverseProblem
from bayescade.training import losses
from bayescade.training.fit import FitSettings, fit
from bayescade.training.stage import Stage, first_stage, next_stage
from tests.training.stages import group_of, runner_of, tensors_of

STD = 0.3  # of the likelihood
ONE, TWO = (0.4, 0.5), (-0.3, 0.4)  # mean and standard deviation of the two parameters
MIDDLE = (0, 0, 1, 1)

Array = NDArray[np.float64]


class Double(LinearOperator):
    """A x = 2 x on one pixel."""

    domain_shape = (1, 1, 1)
    range_shape = (1, 1, 1)
    dtype = torch.float64

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x

    def adjoint(self, y: Tensor) -> Tensor:
        return 2 * y


class Feature(nn.Module):
    """h = 1 + x / 2 + g."""

    def forward(self, x: Tensor, gradient: Tensor) -> Tensor:
        return 1 + x / 2 + gradient


def block_of(mean: float, std: float) -> Block:
    layer = MeanFieldConv(1, torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        layer.weight[MIDDLE] = mean
        layer.log_std[MIDDLE] = math.log(std)
    variance = OneVariance().double()
    nn.init.constant_(variance.log_std, math.log(STD))
    return Block(BlockSettings(), Feature(), layer, variance, 1).double()  # type: ignore[arg-type]


def data_set() -> tuple[Array, Array, Array]:
    """Measurements, truths and first images of four data."""
    truth = np.array([0.2, 0.9, 0.5, 1.4])
    return 2 * truth + np.array([0.1, -0.2, 0.05, 0.0]), truth, np.array([0.5, 0.3, 0.0, 1.0])


def stage_of(replicas: int) -> Stage:
    y, truth, first = (torch.tensor(values).repeat(replicas).reshape(-1, 1, 1, 1) for values in data_set())
    return first_stage([(InverseProblem(Double(), initial_image=lambda y: first[: len(y)]), y, truth)], batch=10**6)


def after_one(replicas: int, seed: int) -> Stage:
    """The stage after the first block, with noise of its activations."""
    stage = stage_of(replicas)
    return next_stage(block_of(*ONE), stage, "activations", runner_of(stage), seed=seed, batch=10**6)


def grid(mean: float, std: float) -> tuple[Array, Array]:
    """Points and weights of an integral over N(mean, std^2)."""
    z = np.linspace(-8, 8, 1201)
    weights = np.exp(-(z**2) / 2)
    return mean + std * z, weights / weights.sum()


def both(one: tuple[float, float], two: tuple[float, float]) -> tuple[Array, Array]:
    """f_2(f_1(x_0)) of every datum on the grid of both parameters, (data, 1201, 1201), and the weights."""
    y, _, first = data_set()
    (t1, w1), (t2, w2) = grid(*one), grid(*two)
    x = first[:, None]
    x = np.maximum(x + t1 * (1 + x / 2 + x - y[:, None] / 2), 0)[:, :, None]
    x = np.maximum(x + t2 * (1 + x / 2 + x - y[:, None, None] / 2), 0)
    return x, w1[:, None] * w2


def expected_loss(two: tuple[float, float]) -> float:
    """-E log p (without its constant) plus the KL of the one parameter, by integration."""
    x, weights = both(ONE, two)
    squares = (x - data_set()[1][:, None, None]) ** 2
    fit_term = float((weights * squares).sum() / (2 * STD**2)) + len(squares) * math.log(STD)
    return fit_term + (two[1] ** 2 + two[0] ** 2 - 1) / 2 - math.log(two[1])


def other_kl(block: Block) -> float:
    """KL of the eight weights that see nothing."""
    std, mean = block.last.std().detach(), block.last.weight.detach()
    each = (std**2 + mean**2 - 1) / 2 - std.log()
    return float(each.sum() - each[MIDDLE])


def test_the_loss_of_the_second_block_is_the_integral() -> None:
    replicas = 50_000
    stage = after_one(replicas, seed=1)
    state, inputs, truth = tensors_of(stage)
    block = block_of(*TWO)
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    prediction = block(state, inputs, ActivationNoise({block.last: noise}))
    kl = block.kl()
    loss = losses.elbo(len(stage))(prediction, truth, kl)
    ours = float((loss - kl) / replicas + kl) - other_kl(block)
    per_replica = losses.nll(prediction, truth).reshape(replicas, -1).sum(1)
    error = float(per_replica.std()) / math.sqrt(replicas)
    assert error < 0.1
    assert abs(ours - expected_loss(TWO)) < 4 * error


@pytest.mark.slow
def test_training_finds_the_minimum_of_the_integral() -> None:
    best = minimize(lambda p: expected_loss((p[0], math.exp(p[1]))), [0.0, -1.0], method="Nelder-Mead", tol=1e-6).x
    replicas = 500
    stage = after_one(replicas, seed=3)
    # Each replica is a sample of one data set: the likelihood of all of them is `replicas` times too sure, so the KL is, too.
    loss = losses.elbo(len(stage), temperature=float(replicas))
    block = block_of(0.1, 0.2)
    settings = FitSettings(epochs=400, batch=len(stage), learning_rate=0.05, final_learning_rate=1e-4, warm_up=0.0)
    block.requires_grad_(False)
    block.last.weight.requires_grad_(True)
    block.last.log_std.requires_grad_(True)
    fit(block, lambda epoch: stage, loss, settings, runner_of(stage), seed=4)
    assert float(block.last.weight[MIDDLE]) == pytest.approx(best[0], abs=0.03)
    assert float(block.last.log_std[MIDDLE]) == pytest.approx(best[1], abs=0.1)
    unseen = copy.deepcopy(block.last.log_std.detach())
    unseen[MIDDLE] = 0
    assert unseen.abs().max() < 0.1  # weights that see nothing go to the prior


@pytest.mark.parametrize("sampling", ["weights", "all-weights", "activations"])
def test_the_predictive_moments_are_the_integrals(sampling: str) -> None:
    x, weights = both(ONE, TWO)
    mean = (weights * x).sum((1, 2))
    variance = (weights * x**2).sum((1, 2)) - mean**2
    (measured,) = group_of(stage_of(1)).measured
    sampler = Sampler(Cascade([block_of(*ONE), block_of(*TWO)]), InferenceSettings(sampling=sampling))
    found = sampler.estimate(measured.problem, measured.data[:], samples=20_000, seed=5)
    assert found.samples == 20_000
    assert (abs(found.image.flatten().numpy() - mean) < 4 * found.image_error.flatten().numpy()).all()
    assert (abs(found.epistemic.flatten().numpy() - variance) < 4 * found.epistemic_error.flatten().numpy()).all()
    assert found.aleatoric is not None
    assert torch.allclose(found.aleatoric, torch.full_like(found.aleatoric, STD**2))


def test_the_last_block_in_closed_form_needs_fewer_samples() -> None:
    (measured,) = group_of(stage_of(1)).measured
    cascade = Cascade([block_of(0.4, 0.1), block_of(-0.3, 0.4)])  # most of the variance is the last block's
    errors = [
        Sampler(cascade, InferenceSettings(sampling=sampling))
        .estimate(measured.problem, measured.data[:], samples=400, seed=6)
        .relative_error()
        for sampling in ("all-weights", "weights")
    ]
    assert errors[1] < errors[0] / 3
