"""Greedy training: the refit against the likelihood's own curvature, redraws, new tries, resumed runs."""

import pytest
import torch

from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks import heteroscedastic, homoscedastic
from bayescade.blocks._block import Block, BlockSettings, MeanDraw
from bayescade.networks.cascade import Data
from bayescade.projectors import ray_transform
from bayescade.training import greedy
from bayescade.training.fit import FitSettings
from bayescade.training.greedy import GreedySettings, train_cascade
from bayescade.training.losses import nll
from bayescade.training.posterior import refit
from bayescade.training.stage import Stage, advance
from bayescade.training.start import rescale
from tests.geometries import small_parallel

SIZE = 6


def stage_of(images: int = 4) -> Stage:
    operator = ray_transform(small_parallel(SIZE), dtype=torch.float64)
    truth = torch.rand((images, 1, SIZE, SIZE), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sinogram = operator(truth)
    return Stage.first(Data(operator, 10.0, sinogram), truth, operator.fbp(sinogram))


def make(generator: torch.Generator) -> Block:
    return heteroscedastic.build(BlockSettings(channels=3, variance_floor=1e-9), generator).double()


def test_the_refit_is_the_curvature_of_the_likelihood() -> None:
    """1 / variance - 1 of a weight is the second derivative of the NLL: expected over the truth for the variance's layer."""
    stage, block = stage_of(), make(torch.Generator().manual_seed(1))
    rescale(block, stage, 0.3, 20.0)
    assert float(block.output_scale) != 1
    prediction = block(stage.image, stage.gradient, MeanDraw())
    assert prediction.variance is not None
    mean, variance = prediction.mean.detach(), prediction.variance.detach()

    def curvature(parameter: torch.nn.Parameter, loss: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.autograd.grad(loss, parameter, create_graph=True)
        rows = [
            torch.autograd.grad(one, parameter, retain_graph=True)[0].flatten()[i]
            for i, one in enumerate(slope.flatten())
        ]
        return torch.stack(rows)

    squares = ((stage.truth - prediction.mean) ** 2 / variance).sum() / 2
    of_image = curvature(block.last.weight, squares)
    # With (x - m)^2 replaced by its expectation v, the NLL of the log variance has the Fisher information as its curvature.
    expected = ((prediction.variance.log() + variance / prediction.variance) / 2).sum()
    assert block.variance is not None
    last = block.variance.layers[0]
    assert isinstance(last, MeanFieldConv)
    of_variance = curvature(last.weight, expected)
    kept = block.last.weight.detach().clone()
    refit(block, stage, temperature=1.0, move=False)
    assert torch.allclose(1 / block.last.std().flatten() ** 2 - 1, of_image, rtol=1e-6, atol=1e-9)
    assert torch.allclose(1 / last.std().flatten() ** 2 - 1, of_variance, rtol=1e-6, atol=1e-9)
    assert torch.equal(block.last.weight, kept)
    assert torch.equal(block(stage.image, stage.gradient, MeanDraw()).mean, mean)


def test_the_full_refit_lowers_the_negative_log_likelihood() -> None:
    stage, block = stage_of(), make(torch.Generator().manual_seed(1))
    rescale(block, stage, 0.3, 20.0)
    before = float(nll(block(stage.image, stage.gradient, MeanDraw()), stage.truth).sum().detach())
    refit(block, stage, temperature=1.0, move=True)
    assert float(nll(block(stage.image, stage.gradient, MeanDraw()), stage.truth).sum().detach()) < before


def test_one_variance_becomes_the_mean_squared_error_behind_the_block() -> None:
    stage = stage_of()
    block = homoscedastic.build(BlockSettings(channels=3), torch.Generator().manual_seed(1)).double()
    refit(block, stage, temperature=1.0, move=True)
    prediction = block(stage.image, stage.gradient, MeanDraw())
    assert prediction.variance is not None
    mse = float(((prediction.mean - stage.truth) ** 2).mean().detach())
    assert float(prediction.variance) == pytest.approx(mse, rel=1e-6)


@pytest.mark.parametrize(("redraw", "draws"), [(0, 1), (1, 4), (2, 2)])
def test_inputs_are_drawn_again(redraw: int, draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the first block, every `redraw` epochs; how many different inputs the second block sees."""
    seen: list[set[float]] = []
    original = greedy.fit

    def spied(block: Block, stages: object, *arguments: object, **named: object) -> None:
        seen.append({float(stages(epoch).image.sum()) for epoch in range(4)})  # type: ignore[operator]
        original(block, stages, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(greedy, "fit", spied)
    settings = GreedySettings(blocks=2, redraw=redraw, restarts=0, refit="none")
    train_cascade(make, stage_of(), stage_of(2), settings, FitSettings(epochs=4, batch=2), seed=0)
    assert [len(inputs) for inputs in seen] == [1, draws]


def test_a_resumed_training_is_the_same() -> None:
    settings = GreedySettings(blocks=3, redraw=1, restarts=0)
    fitting = FitSettings(epochs=2, batch=2)
    whole = train_cascade(make, stage_of(), stage_of(2), settings, fitting, seed=0)
    resumed = train_cascade(make, stage_of(), stage_of(2), settings, fitting, seed=0, done=whole[:1])
    for a, b in zip(whole, resumed, strict=True):
        for one, other in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
            assert torch.equal(one, other)


def test_stages_do_not_change() -> None:
    stage = stage_of()
    before = [tensor.clone() for tensor in (stage.image, stage.gradient, stage.truth)]
    train_cascade(make, stage, stage_of(2), GreedySettings(blocks=1), FitSettings(epochs=1, batch=2), seed=0)
    advance(make(torch.Generator()), stage, "weights", seed=0, batch=2)
    for kept, now in zip(before, (stage.image, stage.gradient, stage.truth), strict=True):
        assert torch.equal(kept, now)


def test_new_tries_start_warm_and_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, bool, float]] = []
    original = greedy.attempt_block

    def spied(make, warm, stages, validation, settings, fitting, place, *rest):  # type: ignore[no-untyped-def]
        tried.append((place, warm is not None, fitting.learning_rate))
        return original(make, warm, stages, validation, settings, fitting, place, *rest)

    monkeypatch.setattr(greedy, "attempt_block", spied)
    settings = GreedySettings(blocks=3, restarts=2, least_gain=100.0, warm_rate=0.5, refit="none")
    fitting = FitSettings(epochs=1, batch=2, learning_rate=8e-3)
    assert train_cascade(make, stage_of(), stage_of(2), settings, fitting, seed=0) == []
    done = [make(torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    tried.clear()
    train_cascade(make, stage_of(), stage_of(2), settings, fitting, seed=0, done=done)
    assert tried == [(2, True, 2e-3), (2, True, 5e-4), (2, True, 1.25e-4)]
