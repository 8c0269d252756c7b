"""Greedy training: the refit against the likelihood's own curvature, redraws, new tries, resumed runs."""

import dataclasses
from typing import Any

import pytest
import torch

from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks import heteroscedastic, homoscedastic
from bayescade.blocks.block import Block, BlockSettings, MeanDraw
from bayescade.errors import Failure
from bayescade.networks.cascade import Data
from bayescade.projectors import ray_transform
from bayescade.training import greedy, posterior
from bayescade.training.fit import FitSettings
from bayescade.training.greedy import GreedySettings, Trained, slower_behind, train_cascade
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


def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many passes as it takes."""
    monkeypatch.setattr(posterior, "PASSES", 300)
    monkeypatch.setattr(posterior, "NEAR", 1e-10)


def test_the_spread_is_that_of_the_elbo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the truth is 0, as outside an object, the ELBO is known in closed form, and no spread has a better one."""
    exactly(monkeypatch)
    stage, block = stage_of(), make(torch.Generator().manual_seed(1))
    stage = dataclasses.replace(stage, truth=torch.zeros_like(stage.truth), image=stage.image * 0.1)
    rescale(block, stage, 0.3, 20.0)
    with torch.no_grad():  # half of the pixels are closed
        h = block.features(stage.image, stage.gradient)[1]
        block.last.bias -= (stage.image / block.output_scale + block.last.mean(h)).median()
    refit(block, stage, temperature=1.0, move=False)
    image, _ = block.moments(stage.image, stage.gradient)
    assert 0.3 < float((block.image(stage.image, stage.gradient, MeanDraw()) > 0).double().mean()) < 0.7
    variance = block(stage.image, stage.gradient, MeanDraw()).variance.detach()
    likelihood = ((image.mean**2 + image.variance) / variance / 2).sum()
    kl = block.last.kl()
    (slope,) = torch.autograd.grad(likelihood + kl, block.last.log_std, retain_graph=True)
    (of_kl,) = torch.autograd.grad(kl, block.last.log_std)
    assert slope.abs().max() < 1e-6 * of_kl.abs().max()


def test_what_only_closed_pixels_have_does_not_open_them(monkeypatch: pytest.MonkeyPatch) -> None:
    exactly(monkeypatch)
    stage, block = stage_of(), make(torch.Generator().manual_seed(1))
    stage = dataclasses.replace(stage, truth=torch.zeros_like(stage.truth), image=torch.zeros_like(stage.image))
    assert block.variance is not None
    block.variance.start(1e-4)
    block.last.weight.data.zero_()
    block.last.bias.data.fill_(-0.1)
    refit(block, stage, temperature=1.0, move=False)
    image, _ = block.moments(stage.image, stage.gradient)
    features = block.features(stage.image, stage.gradient)[1]
    assert features.max() > 0.1, "with the spread of the prior they would be open half the time, by this much"
    assert float(image.mean.detach().max()) < 0.01


def test_the_variances_spread_is_the_curvature_of_the_likelihood() -> None:
    """1 / variance - 1 of a weight is the second derivative of the NLL, expected over the truth; the mean stays."""
    stage, block = stage_of(), make(torch.Generator().manual_seed(1))
    rescale(block, stage, 0.3, 20.0)
    assert float(block.output_scale) != 1
    prediction = block(stage.image, stage.gradient, MeanDraw())
    assert prediction.variance is not None
    mean, variance = prediction.mean.detach(), prediction.variance.detach()
    # With (x - m)^2 replaced by its expectation v, the NLL of the log variance has the Fisher information as its curvature.
    expected = ((prediction.variance.log() + variance / prediction.variance) / 2).sum()
    assert block.variance is not None
    last = block.variance.layers[0]
    assert isinstance(last, MeanFieldConv)
    (slope,) = torch.autograd.grad(expected, last.weight, create_graph=True)
    curvature = torch.stack(
        [
            torch.autograd.grad(one, last.weight, retain_graph=True)[0].flatten()[i]
            for i, one in enumerate(slope.flatten())
        ]
    )
    kept = block.last.weight.detach().clone()
    refit(block, stage, temperature=1.0, move=False)
    assert torch.allclose(1 / last.std().flatten() ** 2 - 1, curvature, rtol=1e-6, atol=1e-9)
    assert torch.equal(block.last.weight, kept)
    assert torch.equal(block(stage.image, stage.gradient, MeanDraw()).mean, mean)


def test_some_images_first_give_the_same_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(posterior, "REFIT_BATCH", 1)
    for some in (3, 1000):
        monkeypatch.setattr(posterior, "SOME", some)
        stage, block = stage_of(12), make(torch.Generator().manual_seed(1))
        rescale(block, stage, 0.3, 20.0)
        refit(block, stage, temperature=1.0, move=False)
        found.append(block.last.log_std.detach().clone())
    assert torch.allclose(*found, atol=2 * posterior.NEAR)


def test_what_the_first_images_do_not_have_is_learned_from_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posterior, "REFIT_BATCH", 1)
    found, unseen = [], torch.zeros((), dtype=torch.bool)
    for some in (3, 1000):
        monkeypatch.setattr(posterior, "SOME", some)
        stage, block = stage_of(12), make(torch.Generator().manual_seed(1))
        for rows in (stage.image, stage.gradient, stage.truth):
            rows[::4] = 0
        rescale(block, stage, 0.3, 20.0)
        with torch.no_grad():
            h = block.features(stage.image, stage.gradient)[1]
            rare = int(h.mean((0, 2, 3)).argmax())  # this feature becomes one that empty images do not have
            block.trunk.common[-2].bias[rare] -= 1.01 * h[::4, rare].max()
            if some == 3:
                look = posterior.look_of(block, stage, "plain", "auto")
                posterior.seek_spread(block, block.last, stage, temperature=1e-3, look=look)
                unseen = block.last.log_std == 0
        refit(block, stage, temperature=1e-3, move=False)
        found.append(block.last.log_std.detach().clone())
    assert (found[1][unseen] < -1).any()
    assert torch.allclose(*found, atol=2 * posterior.NEAR)


def test_a_spread_that_is_not_a_number_is_a_failed_try() -> None:
    stage, block = stage_of(), make(torch.Generator().manual_seed(1))
    block.trunk.common[0].weight.data.fill_(torch.inf)
    with pytest.raises(Failure, match="the spread of the weights is not a number"):
        refit(block, stage, temperature=1.0, move=False)


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


@pytest.mark.parametrize(
    ("weak", "rates"), [(0.0, [8e-3, 2e-3, 2e-3, 2e-3, 2e-3]), (1.0, [8e-3, 2e-3, 2e-3, 5e-4, 1.25e-4])]
)
def test_a_lower_rate_is_carried_on(weak: float, rates: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a block that needed a slower try, and behind one that gained little."""
    tried: list[float] = []
    kept: list[dict[str, Any]] = []

    def scripted(make, warm, stages, validation, settings, fitting, place, *rest):  # type: ignore[no-untyped-def]
        tried.append(fitting.learning_rate)
        if len(tried) == 1:
            raise Failure("the loss is nan")
        score = validation.psnr() + (2.0 if place == 0 else 0.5)
        return Trained(make(torch.Generator().manual_seed(0)), {"validation_psnr": score, "warnings": []})

    monkeypatch.setattr(greedy, "attempt_block", scripted)
    settings = GreedySettings(blocks=4, weak_gain=weak, refit="none")
    fitting = FitSettings(epochs=1, batch=2, learning_rate=8e-3)
    keep = lambda place, block, record: kept.append(record)  # noqa: E731
    whole = train_cascade(make, stage_of(), stage_of(2), settings, fitting, seed=0, keep=keep)
    assert tried == rates
    assert slower_behind({**kept[2], "gain": -1.0}, GreedySettings()) == kept[2]["slower"], "0 is off"
    slower = slower_behind(kept[2], settings)
    train_cascade(make, stage_of(), stage_of(2), settings, fitting, seed=0, done=whole[:3], slower=slower)
    assert tried == [*rates, rates[-1]], "a run that is taken up again goes on at the same rate"


@pytest.mark.usefixtures("_interpreter")
@pytest.mark.parametrize("kind", [heteroscedastic, homoscedastic])
def test_the_fused_kernels_give_the_same_spread(kind: Any) -> None:
    found = []
    for kernels in ("plain", "fused"):
        stage = stage_of()
        block = kind.build(BlockSettings(channels=3, variance_floor=1e-9), torch.Generator().manual_seed(1)).double()
        rescale(block, stage, 0.3, 20.0)
        refit(block, stage, temperature=1.0, move=False, kernels=kernels)
        found.append([layer.log_std.detach() for layer in posterior.random_layers(block)])
    for plain, fused in zip(*found, strict=True):
        assert torch.allclose(plain, fused, rtol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", ["plain", "fused"])
def test_the_spread_on_a_gpu_is_that_of_float64(kernels: str) -> None:
    found = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        stage, block = stage_of(), make(torch.Generator().manual_seed(1))
        rescale(block, stage, 0.3, 20.0)
        images = {name: getattr(stage, name).to(device, dtype) for name in ("truth", "image", "gradient")}
        block = block.to(device, dtype)
        own = kernels if device == "cuda" else "plain"
        refit(block, dataclasses.replace(stage, **images), temperature=1.0, move=False, kernels=own)
        found.append([layer.log_std.detach().cpu().double() for layer in posterior.random_layers(block)])
    for exact, quick in zip(*found, strict=True):
        assert torch.allclose(exact, quick, atol=2 * posterior.NEAR)
