"""The loop: rates, precision, the right parameters, and a loss that is not a number."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks import heteroscedastic
from bayescade.blocks.block import Block, BlockSettings
from bayescade.errors import Failure, UserError
from bayescade.networks.cascade import Data
from bayescade.projectors import ray_transform
from bayescade.training import losses
from bayescade.training.fit import FitSettings, adam, fit
from bayescade.training.optimiser import Adam, Group, clipped, schedule
from bayescade.training.stage import Stage, advance
from tests.geometries import small_parallel


def stage_of(images: int = 6, size: int = 8) -> Stage:
    operator = ray_transform(small_parallel(size))
    truth = torch.rand((images, 1, size, size), generator=torch.Generator().manual_seed(0))
    sinogram = operator(truth)
    return Stage.first(Data(operator, 10.0, sinogram), truth, operator.fbp(sinogram))


def block_of(seed: int = 0) -> Block:
    return heteroscedastic.build(BlockSettings(channels=4), torch.Generator().manual_seed(seed))


def test_rates_rise_and_fall() -> None:
    rates = list(schedule(1.0, 0.1, 0.1, 100))
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1, rel=0.01)
    assert all(a > b for a, b in pairwise(rates[10:]))


@pytest.mark.parametrize("most", [0.0, 0.5, 1e6])
def test_gradients_have_a_limit(most: float) -> None:
    parameters = [torch.nn.Parameter(torch.rand(shape)) for shape in ((3, 2), (4,))]
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)
    gradients = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    clipped(gradients, most)
    torch.nn.utils.clip_grad_norm_(parameters, most or math.inf)
    for ours, parameter in zip(gradients, parameters, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(ours, parameter.grad)


def test_steps_are_those_of_torchs_adam() -> None:
    """Rates that change, weight decay, a rate of its own for a group, and a parameter that has no gradient at first."""
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 2), (4,), (2, 4, 3, 3))]
    starts[2] = starts[2].to(memory_format=torch.channels_last)
    ours, theirs = ([nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    mine = Adam([Group(ours[:2], weight_decay=0.1), Group(ours[2:], factor=5.0), Group([])])
    groups = [{"params": theirs[:2], "weight_decay": 0.1}, {"params": theirs[2:]}]
    reference = torch.optim.Adam(groups)
    for step, rate in enumerate((1e-2, 3e-2, 1e-3, 0.0)):
        mine.forget_gradients()
        mine.set_rate(rate)
        for group, factor in zip(reference.param_groups, (1.0, 5.0), strict=True):
            group["lr"] = rate * factor
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            slope = torch.randn(one.shape, generator=generator, dtype=torch.float64)
            slope = torch.empty_like(one).copy_(slope)  # laid out like the parameter, as autograd does it
            one.grad, other.grad = (None, None) if place == 1 and step == 0 else (slope, slope.clone())
        assert len(mine.gradients()) == (2 if step == 0 else 3)
        mine.step()
        reference.step()
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, rtol=1e-12, atol=1e-15)


def test_gradients_that_lie_differently_are_refused() -> None:
    weight = nn.Parameter(torch.rand(2, 3, 3, 3).to(memory_format=torch.channels_last))
    weight.grad = torch.rand(2, 3, 3, 3).contiguous(memory_format=torch.channels_last)
    optimiser = Adam([Group([weight])])
    optimiser.step()
    weight.grad = torch.rand(2, 3, 3, 3)
    with pytest.raises(AssertionError, match="lie differently"):
        optimiser.step()


def test_weight_decay_is_for_weights_that_are_not_random() -> None:
    block = block_of()
    optimiser = adam(block, FitSettings(weight_decay=0.1, posterior_rate=5.0), set(block.parameters()))
    decayed, means, spreads = optimiser.groups
    assert decayed.weight_decay == 0.1
    assert means.weight_decay == spreads.weight_decay == 0
    assert (decayed.factor, means.factor, spreads.factor) == (1.0, 1.0, 5.0)
    assert {id(p) for p in means.parameters} == {id(layer.weight) for layer in block.layers}
    assert {id(p) for p in spreads.parameters} == {
        id(layer.log_std) for layer in block.layers if isinstance(layer, MeanFieldConv)
    }
    assert len(optimiser.parameters) == len(list(block.parameters()))


def test_training_lowers_the_loss_and_changes_no_stage() -> None:
    stage, block = stage_of(), block_of()
    before = [stage.image.clone(), stage.gradient.clone(), stage.truth.clone()]
    seen: list[float] = []
    settings = FitSettings(epochs=30, batch=3, learning_rate=3e-3)
    fit(
        block,
        lambda _: stage,
        losses.beta_nll(6),
        settings,
        seed=0,
        on_epoch=lambda epoch, loss, rate: seen.append(loss),
    )
    assert len(seen) == 30
    assert seen[-1] < seen[0]
    for kept, now in zip(before, [stage.image, stage.gradient, stage.truth], strict=True):
        assert torch.equal(kept, now)


def test_the_same_seed_gives_the_same_weights() -> None:
    trained = []
    for seed in (1, 1, 2):
        block = block_of()
        fit(block, lambda _: stage_of(), losses.elbo(6), FitSettings(epochs=2, batch=3), seed=seed)
        trained.append(torch.cat([p.detach().flatten() for p in block.parameters()]))
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])


def test_only_the_parameters_asked_for_learn() -> None:
    block = block_of()
    before = {name: value.clone() for name, value in block.state_dict().items()}
    assert block.variance is not None
    learning = list(block.variance.parameters())
    fit(
        block, lambda _: stage_of(), losses.variance_nll(6), FitSettings(epochs=1, batch=3), seed=0, parameters=learning
    )
    for name, value in block.state_dict().items():
        assert torch.equal(value, before[name]) != (name.startswith("variance.") and not name.endswith("scale")), name


def test_mixed_precision_trains_on_a_cpu() -> None:
    stage, block = stage_of(), block_of()
    fit(block, lambda _: stage, losses.beta_nll(6), FitSettings(epochs=1, batch=3, precision="bf16"), seed=0)
    assert all(parameter.dtype == torch.float32 and torch.isfinite(parameter).all() for parameter in block.parameters())


def test_a_loss_that_is_not_a_number_stops() -> None:
    def broken(*_: object) -> torch.Tensor:
        return next(iter(block.parameters())).sum() * math.nan

    block = block_of()
    with pytest.raises(Failure, match=r"epoch 1: the loss is nan"):
        fit(block, lambda _: stage_of(), broken, FitSettings(epochs=2, batch=3), seed=0)


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"batch": 0}, {"learning_rate": 0.0}, {"warm_up": 1.0}, {"precision": "half"}]
)
def test_settings_that_do_not_train(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        FitSettings(**wrong)  # type: ignore[arg-type]


def test_stages_are_pushed_with_noise_of_the_weights() -> None:
    stage, block = stage_of(), block_of()
    for layer in block.layers:
        assert isinstance(layer, MeanFieldConv)
        torch.nn.init.constant_(layer.log_std, -3.0)
    mean = advance(block, stage, "mean", seed=0, batch=4).image
    for sampling in ("weights", "activations"):
        one, again, other = (advance(block, stage, sampling, seed=seed, batch=4).image for seed in (0, 0, 1))
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
        assert 1e-4 < float((one - mean).abs().mean()) < 1
    pushed = advance(block, stage, "mean", seed=0, batch=4)
    expected = stage.data.operator.adjoint(stage.data.operator.forward(mean) - stage.data.sinogram) / 100
    assert torch.allclose(pushed.gradient, expected, atol=1e-6)


@pytest.mark.usefixtures("_interpreter")
@pytest.mark.parametrize("sampling", ["mean", "weights"])
def test_the_fused_kernels_push_like_the_plain_layers(sampling: str) -> None:
    block, stage = block_of(), stage_of()
    plain, fused = (
        advance(block, stage, sampling, seed=2, batch=4, kernels=kernels).image for kernels in ("plain", "fused")
    )
    assert torch.allclose(plain, fused, atol=1e-5)
    assert not torch.equal(plain, stage.image)


@pytest.mark.usefixtures("_interpreter")
def test_the_fused_kernels_train_like_the_plain_layers() -> None:
    trained = []
    for kernels in ("plain", "fused"):
        block = block_of()
        settings = FitSettings(epochs=2, batch=3, kernels=kernels)
        fit(block, lambda _: stage_of(), losses.side_by_side(6), settings, seed=0)
        trained.append(torch.cat([parameter.detach().flatten() for parameter in block.parameters()]))
    moved = (
        (trained[0] - torch.cat([parameter.detach().flatten() for parameter in block_of().parameters()])).abs().mean()
    )
    assert (trained[0] - trained[1]).abs().mean() < 0.02 * moved


@pytest.mark.gpu
def test_a_captured_step_is_the_plain_step() -> None:
    results = []
    for device in ("cpu", "cuda"):
        operator = ray_transform(small_parallel(8), device)
        on_cpu = stage_of()
        moved = Stage(
            Data(operator, 10.0, on_cpu.data.sinogram.to(device)),
            on_cpu.truth.to(device),
            on_cpu.image.to(device),
            on_cpu.gradient.to(device),
        )
        block = heteroscedastic.build(BlockSettings(channels=4), torch.Generator().manual_seed(0)).to(device)
        for layer in block.layers:  # no noise: devices draw different numbers
            assert isinstance(layer, MeanFieldConv)
            torch.nn.init.constant_(layer.log_std, -40.0)
        settings = FitSettings(epochs=10, batch=3, precision="float32", kernels="plain")
        fit(block, lambda _, moved=moved: moved, losses.side_by_side(6), settings, seed=0)
        results.append(
            torch.cat([p.detach().flatten().cpu() for n, p in block.named_parameters() if "log_std" not in n])
        )
    assert (results[0] - results[1]).abs().max() < 2e-3
