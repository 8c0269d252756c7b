"""Greedy training: the refit against the likelihood's own curvature, redraws, new tries, resumed runs."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks import heteroscedastic, homoscedastic
from bayescade.blocks.block import Block, State
from bayescade.blocks.runner import PlainRunner
from bayescade.blocks.sampling import MeanWeights
from bayescade.blocks.settings import BlockSettings
from bayescade.errors import Failure
from bayescade.training import greedy, posterior
from bayescade.training.fit import FitSettings
from bayescade.training.greedy import GreedySettings, Task, Trained, Training, train_cascade
from bayescade.training.losses import nll
from bayescade.training.posterior import refit
from bayescade.training.stage import Stage, next_stage
from bayescade.training.start import rescale
from tests.training.stages import group_of, runner_of, stage_of, tensors_of


def make(generator: torch.Generator) -> Block:
    return heteroscedastic.build(BlockSettings(channels=3), generator).double()


def changed(stage: Stage, **stores: Tensor) -> Stage:
    return Stage((dataclasses.replace(group_of(stage), **stores),))


def refitted(block: Block, stage: Stage, runner: str = "plain", temperature: float = 1.0, move: bool = False) -> None:
    refit(block, stage, temperature, move, runner_of(stage, runner))


def training_of(settings: GreedySettings, fitting: FitSettings, **options: Any) -> Training:
    return Training(make, settings, fitting, seed=0, **options)


def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many passes as it takes."""
    monkeypatch.setattr(posterior, "PASSES", 300)
    monkeypatch.setattr(posterior, "CONVERGED", 1e-10)


def test_the_std_is_that_of_the_elbo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the truth is 0, as outside an object, the ELBO is known in closed form; this is its maximum."""
    exactly(monkeypatch)
    stage, block = stage_of(), make(torch.Generator().manual_seed(1))
    state, _, truth = tensors_of(stage)
    stage = changed(stage, truth=torch.zeros_like(truth), state=0.1 * state.image)
    rescale(block, stage)
    state, inputs, _ = tensors_of(stage)
    with torch.no_grad():  # half of the pixels are closed
        h = block.features(state, inputs).common
        block.last.bias -= (state.image / block.output_scale + block.last.mean(h)).median()
    refitted(block, stage)
    runner = PlainRunner(block)
    image, _ = runner.moments(state, runner.features(state, inputs))
    prediction = block(state, inputs, MeanWeights())
    assert 0.3 < float((prediction.mean > 0).double().mean()) < 0.7
    variance = prediction.variance.detach()
    likelihood = ((image.mean**2 + image.variance) / variance / 2).sum()
    kl = block.last.kl()
    (slope,) = torch.autograd.grad(likelihood + kl, block.last.log_std, retain_graph=True)
    (of_kl,) = torch.autograd.grad(kl, block.last.log_std)
    assert slope.abs().max() < 1e-6 * of_kl.abs().max()


def test_what_only_closed_pixels_have_does_not_open_them(monkeypatch: pytest.MonkeyPatch) -> None:
    exactly(monkeypatch)
    stage, block = stage_of(), make(torch.Generator().manual_seed(1))
    state, inputs, truth = tensors_of(stage)
    stage = changed(stage, truth=torch.zeros_like(truth), state=torch.zeros_like(state.image))
    state = State(torch.zeros_like(state.image))
    assert block.variance is not None
    block.variance.start(1e-4)
    block.last.weight.data.zero_()
    block.last.bias.data.fill_(-0.1)
    refitted(block, stage)
    runner = PlainRunner(block)
    features = runner.features(state, inputs)
    image, _ = runner.moments(state, features)
    assert features.common.max() > 0.1, "with the prior's std they would be open half the time, by this much"
    assert float(image.mean.detach().max()) < 0.01


def test_the_std_of_the_variances_weights_is_the_curvature_of_the_likelihood() -> None:
    """1 / variance - 1 of a weight is the second derivative of the NLL, expected over the truth; the mean stays."""
    stage, block = stage_of(), make(torch.Generator().manual_seed(1))
    rescale(block, stage)
    assert float(block.output_scale) != 1
    state, inputs, _ = tensors_of(stage)
    prediction = block(state, inputs, MeanWeights())
    assert prediction.variance is not None
    mean, variance = prediction.mean.detach(), prediction.variance.detach()
    # With (x - m)^2 replaced by its expectation v, the NLL of the log variance has the Fisher information as its curvature.
    expected = ((prediction.variance.log() + variance / prediction.variance) / 2).sum()
    assert block.variance is not None
    last = block.variance.last
    assert isinstance(last, MeanFieldConv)
    (slope,) = torch.autograd.grad(expected, last.weight, create_graph=True)
    curvature = torch.stack(
        [
            torch.autograd.grad(one, last.weight, retain_graph=True)[0].flatten()[i]
            for i, one in enumerate(slope.flatten())
        ]
    )
    before = block.last.weight.detach().clone()
    refitted(block, stage)
    assert torch.allclose(1 / last.std().flatten() ** 2 - 1, curvature, rtol=1e-6, atol=1e-9)
    assert torch.equal(block.last.weight, before)
    assert torch.equal(block(state, inputs, MeanWeights()).mean, mean)


def test_some_images_first_give_the_same_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(posterior, "REFIT_BATCH", 1)
    for some in (3, 1000):
        monkeypatch.setattr(posterior, "FIRST_IMAGES", some)
        stage, block = stage_of(12), make(torch.Generator().manual_seed(1))
        rescale(block, stage)
        refitted(block, stage)
        found.append(block.last.log_std.detach().clone())
    assert torch.allclose(*found, atol=2 * posterior.CONVERGED)


def test_what_the_first_images_do_not_have_is_learned_from_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posterior, "REFIT_BATCH", 1)
    found, unseen = [], torch.zeros((), dtype=torch.bool)
    for some in (3, 1000):
        monkeypatch.setattr(posterior, "FIRST_IMAGES", some)
        stage, block = stage_of(12), make(torch.Generator().manual_seed(1))
        state, inputs, truth = tensors_of(stage)
        for images in (state.image, inputs, truth):
            images[::4] = 0
        rescale(block, stage)
        with torch.no_grad():
            h = block.features(state, inputs).common
            rare = int(h.mean((0, 2, 3)).argmax())  # this feature becomes one that empty images do not have
            block.trunk.common[-2].bias[rare] -= 1.01 * h[::4, rare].max()
            if some == 3:
                posterior.iterate_std(block.last, stage, 1e-3, PlainRunner(block))
                unseen = block.last.log_std == 0
        refitted(block, stage, temperature=1e-3)
        found.append(block.last.log_std.detach().clone())
    assert (found[1][unseen] < -1).any()
    assert torch.allclose(*found, atol=2 * posterior.CONVERGED)


def test_a_std_that_is_not_a_number_is_a_failed_try() -> None:
    stage, block = stage_of(), make(torch.Generator().manual_seed(1))
    block.trunk.common[0].weight.data.fill_(torch.inf)
    with pytest.raises(Failure, match="the standard deviation of the weights is not a number"):
        refitted(block, stage)


def test_the_full_refit_lowers_the_negative_log_likelihood() -> None:
    stage, block = stage_of(), make(torch.Generator().manual_seed(1))
    rescale(block, stage)
    state, inputs, truth = tensors_of(stage)
    before = float(nll(block(state, inputs, MeanWeights()), truth).sum().detach())
    refitted(block, stage, move=True)
    assert float(nll(block(state, inputs, MeanWeights()), truth).sum().detach()) < before


def test_one_variance_becomes_the_mean_squared_error_after_the_block() -> None:
    stage = stage_of()
    block = homoscedastic.build(BlockSettings(channels=3), torch.Generator().manual_seed(1)).double()
    refitted(block, stage, move=True)
    state, inputs, truth = tensors_of(stage)
    prediction = block(state, inputs, MeanWeights())
    assert prediction.variance is not None
    mse = float(((prediction.mean - truth) ** 2).mean().detach())
    assert float(prediction.variance) == pytest.approx(mse, rel=1e-6)


@pytest.mark.parametrize(("resample", "different"), [(0, 1), (1, 4), (2, 2)])
def test_inputs_are_sampled_again(resample: int, different: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first block, every `resample` epochs; how many different inputs the second block sees."""
    seen: list[set[float]] = []
    original = greedy.fit

    def spied(block: Block, stages: object, *arguments: object, **named: object) -> None:
        seen.append({float(group_of(stages(epoch)).state[:].sum()) for epoch in range(4)})  # type: ignore[operator]
        original(block, stages, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(greedy, "fit", spied)
    settings = GreedySettings(blocks=2, resample=resample, restarts=0, refit="none")
    train_cascade(training_of(settings, FitSettings(epochs=4, batch=2)), stage_of(), stage_of(2))
    assert [len(inputs) for inputs in seen] == [1, different]


def test_a_resumed_training_is_the_same() -> None:
    training = training_of(GreedySettings(blocks=3, resample=1, restarts=0), FitSettings(epochs=2, batch=2))
    whole = train_cascade(training, stage_of(), stage_of(2))
    resumed = train_cascade(training, stage_of(), stage_of(2), done=whole[:1])
    for a, b in zip(whole, resumed, strict=True):
        for one, other in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
            assert torch.equal(one, other)


def test_stages_do_not_change() -> None:
    stage = stage_of()
    group = group_of(stage)
    before = [store[:].clone() for store in (group.state, group.inputs, group.truth)]
    train_cascade(training_of(GreedySettings(blocks=1), FitSettings(epochs=1, batch=2)), stage, stage_of(2))
    next_stage(make(torch.Generator()), stage, "weights", runner_of(stage), seed=0, batch=2)
    for old, now in zip(before, (group.state, group.inputs, group.truth), strict=True):
        assert torch.equal(old, now[:])


def test_new_tries_start_warm_and_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, bool, float]] = []
    original = greedy.fit

    def spied(block: Block, stages: Any, loss: Any, fitting: FitSettings, *rest: Any, **named: Any) -> None:
        tried.append((int(torch.equal(block.last.weight, done[-1].last.weight)), True, fitting.learning_rate))
        original(block, stages, loss, fitting, *rest, **named)

    monkeypatch.setattr(greedy, "fit", spied)
    monkeypatch.setattr(greedy, "LEAST_GAIN", 100.0)
    training = training_of(
        GreedySettings(blocks=3, restarts=2, refit="none", start="warm"),
        FitSettings(epochs=1, batch=2, learning_rate=8e-3),
    )
    done = [make(torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    assert train_cascade(training, stage_of(), stage_of(2), done) == done
    assert tried == [(1, True, 8e-3), (1, True, 2e-3), (1, True, 5e-4)]


def test_a_lower_rate_is_carried_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a block that needed a slower try, also when the training is resumed."""
    tried: list[int] = []
    saved: list[dict[str, Any]] = []

    def scripted(training: Training, task: Task, attempt: int, *rest: Any) -> Trained:
        tried.append(task.slower + attempt)
        if len(tried) == 1:
            raise Failure("the loss is nan")
        record = {"validation_psnr": task.validation.psnr() + 1, "warnings": [], "slower": task.slower + attempt}
        return Trained(make(torch.Generator().manual_seed(0)), record)

    monkeypatch.setattr(greedy, "try_block", scripted)
    save = lambda index, block, record: saved.append(record)  # noqa: E731
    training = training_of(GreedySettings(blocks=4, refit="none"), FitSettings(epochs=1, batch=2), save=save)
    whole = train_cascade(training, stage_of(), stage_of(2))
    assert tried == [0, 1, 1, 1, 1]
    train_cascade(training, stage_of(), stage_of(2), whole[:3], slower=saved[2]["slower"])
    assert tried == [0, 1, 1, 1, 1, 1]
    train_cascade(training, stage_of(), stage_of(2), whole[:3], slower=9)
    assert tried[-1] == greedy.MOST_RATE_CUTS
    assert greedy.slowed(training.fitting, 1).learning_rate == training.fitting.learning_rate / 4


@pytest.mark.slow
@pytest.mark.usefixtures("_interpreter")
@pytest.mark.parametrize("kind", [heteroscedastic, homoscedastic])
def test_the_fused_kernels_give_the_same_std(kind: Any) -> None:
    found = []
    for runner in ("plain", "fused"):
        stage = stage_of()
        block = kind.build(BlockSettings(channels=3), torch.Generator().manual_seed(1)).double()
        rescale(block, stage)
        refitted(block, stage, runner)
        found.append([layer.log_std.detach() for layer in posterior.random_layers(block)])
    for plain, fused in zip(*found, strict=True):
        assert torch.allclose(plain, fused, rtol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("runner", ["plain", "fused"])
def test_the_std_on_a_gpu_is_that_of_float64(runner: str) -> None:
    found = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        stage = stage_of(dtype=dtype, device=device)
        block = make(torch.Generator().manual_seed(1)).to(device, dtype)
        rescale(block, stage)
        refitted(block, stage, runner if device == "cuda" else "plain")
        found.append([layer.log_std.detach().cpu().double() for layer in posterior.random_layers(block)])
    for exact, quick in zip(*found, strict=True):
        assert torch.allclose(exact, quick, atol=2 * posterior.CONVERGED)
