"""The loop: rates, precision, the right parameters, and a loss that is not a number."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks import heteroscedastic
from bayescade.blocks.block import Block
from bayescade.blocks.settings import BlockSettings
from bayescade.errors import Failure, UserError
from bayescade.physics.geometry import ParallelBeam
from bayescade.physics.problem import InverseProblem
from bayescade.projectors import ray_transform
from bayescade.training import losses
from bayescade.training.fit import FitSettings, adam, fit
from bayescade.training.optimiser import Adam, Group, clip_gradients, schedule
from bayescade.training.stage import Stage, first_stage, next_stage
from bayescade.training.start import start_block
from tests.training.stages import group_of, runner_of
from tests.training.stages import stage_of as small_stage


def stage_of(device: str = "cpu") -> Stage:
    return small_stage(6, 8, torch.float32, device)


def trained(block: Block, stage: Stage, loss: losses.Loss, settings: FitSettings, seed: int = 0) -> Tensor:
    """All parameters after training."""
    fit(block, lambda _: stage, loss, settings, runner_of(stage, settings.runner, settings.precision), seed=seed)
    return torch.cat([parameter.detach().flatten() for parameter in block.parameters()])


def block_of(seed: int = 0) -> Block:
    return heteroscedastic.build(BlockSettings(channels=4), torch.Generator().manual_seed(seed))


def test_rates_rise_and_fall() -> None:
    settings = FitSettings(learning_rate=1.0, final_learning_rate=0.1, warm_up=0.1)
    rates = list(schedule(settings, 100))
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
    clip_gradients(gradients, most)
    torch.nn.utils.clip_grad_norm_(parameters, most or math.inf)
    for ours, parameter in zip(gradients, parameters, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(ours, parameter.grad)


def test_steps_are_those_of_torchs_adam() -> None:
    """Rates that change, weight decay for a group, and a parameter that has no gradient at first."""
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 2), (4,), (2, 4, 3, 3))]
    starts[2] = starts[2].to(memory_format=torch.channels_last)
    ours, theirs = ([nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    mine = Adam([Group(ours[:2], weight_decay=0.1), Group(ours[2:]), Group([])])
    groups = [{"params": theirs[:2], "weight_decay": 0.1}, {"params": theirs[2:]}]
    reference = torch.optim.Adam(groups)
    for step, rate in enumerate((1e-2, 3e-2, 1e-3, 0.0)):
        mine.forget_gradients()
        mine.set_rate(rate)
        for group in reference.param_groups:
            group["lr"] = rate
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            slope = torch.randn(one.shape, generator=generator, dtype=torch.float64)
            slope = torch.empty_like(one).copy_(slope)  # laid out like the parameter, as autograd does it
            one.grad, other.grad = (None, None) if index == 1 and step == 0 else (slope, slope.clone())
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
    with pytest.raises(AssertionError, match="different memory layouts"):
        optimiser.step()


def test_weight_decay_is_for_weights_that_are_not_random() -> None:
    block = block_of()
    optimiser = adam(block, FitSettings(weight_decay=0.1))
    decayed, means, log_stds = optimiser.groups
    assert decayed.weight_decay == 0.1
    assert means.weight_decay == log_stds.weight_decay == 0
    assert {id(p) for p in means.parameters} == {id(layer.weight) for layer in block.layers}
    assert {id(p) for p in log_stds.parameters} == {
        id(layer.log_std) for layer in block.layers if isinstance(layer, MeanFieldConv)
    }
    assert len(optimiser.parameters) == len(list(block.parameters()))


def test_training_lowers_the_loss_and_changes_no_stage() -> None:
    stage, block = stage_of(), block_of()
    group = group_of(stage)
    before = [group.state[:].clone(), group.inputs[:].clone(), group.truth[:].clone()]
    seen: list[float] = []
    settings = FitSettings(epochs=30, batch=3, learning_rate=3e-3)
    fit(
        block,
        lambda _: stage,
        losses.side_by_side(6),
        settings,
        runner_of(stage),
        seed=0,
        on_epoch=lambda epoch, loss, rate: seen.append(loss),
    )
    assert len(seen) == 30
    assert seen[-1] < seen[0]
    for old, now in zip(before, (group.state, group.inputs, group.truth), strict=True):
        assert torch.equal(old, now[:])


def test_the_same_seed_gives_the_same_weights() -> None:
    settings = FitSettings(epochs=2, batch=3)
    one, again, other = (trained(block_of(), stage_of(), losses.elbo(6), settings, seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_what_is_frozen_does_not_learn() -> None:
    block = block_of()
    before = {name: value.clone() for name, value in block.state_dict().items()}
    assert block.variance is not None
    block.requires_grad_(False)
    block.variance.requires_grad_(True)
    trained(block, stage_of(), losses.side_by_side(6), FitSettings(epochs=1, batch=3))
    for name, value in block.state_dict().items():
        assert torch.equal(value, before[name]) != (name.startswith("variance.") and not name.endswith("scale")), name


def test_mixed_precision_trains_on_a_cpu() -> None:
    stage, block = stage_of(), block_of()
    trained(block, stage, losses.side_by_side(6), FitSettings(epochs=1, batch=3, precision="bf16"))
    assert all(parameter.dtype == torch.float32 and torch.isfinite(parameter).all() for parameter in block.parameters())


def test_a_loss_that_is_not_a_number_stops() -> None:
    def broken(*_: object) -> torch.Tensor:
        return next(iter(block.parameters())).sum() * math.nan

    block = block_of()
    with pytest.raises(Failure, match=r"epoch 1: the loss is nan"):
        trained(block, stage_of(), broken, FitSettings(epochs=2, batch=3))


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": -1}, {"batch": 0}, {"learning_rate": 0.0}, {"warm_up": 1.0}, {"precision": "half"}, {"runner": "fast"}],
)
def test_settings_that_do_not_train(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        FitSettings(**wrong)  # type: ignore[arg-type]


def test_the_next_stage_has_noise_of_the_weights() -> None:
    stage, block = stage_of(), block_of()
    for layer in block.layers:
        assert isinstance(layer, MeanFieldConv)
        torch.nn.init.constant_(layer.log_std, -3.0)

    def after(sampling: str, seed: int) -> Tensor:
        return group_of(next_stage(block, stage, sampling, runner_of(stage), seed=seed, batch=4)).state[:]

    mean = after("mean", 0)
    for sampling in ("weights", "activations"):
        one, again, other = (after(sampling, seed) for seed in (0, 0, 1))
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
        assert 1e-4 < float((one - mean).abs().mean()) < 1
    (measured,) = group_of(stage).measured
    operator = measured.problem.operator
    expected = operator.adjoint(operator.forward(mean) - measured.data[:]) / 100
    found = group_of(next_stage(block, stage, "mean", runner_of(stage), batch=4)).inputs[:]
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.usefixtures("_interpreter")
@pytest.mark.parametrize("sampling", ["mean", "weights"])
def test_the_next_stage_by_the_fused_kernels_is_that_of_the_plain_layers(sampling: str) -> None:
    block, stage = block_of(), stage_of()
    plain, fused = (
        group_of(next_stage(block, stage, sampling, runner_of(stage, runner), seed=2, batch=4)).state[:]
        for runner in ("plain", "fused")
    )
    assert torch.allclose(plain, fused, atol=1e-5)
    assert not torch.equal(plain, group_of(stage).state[:])


@pytest.mark.slow
@pytest.mark.usefixtures("_interpreter")
def test_the_fused_kernels_train_like_the_plain_layers() -> None:
    plain, fused = (
        trained(block_of(), stage_of(), losses.side_by_side(6), FitSettings(epochs=1, batch=3, runner=runner))
        for runner in ("plain", "fused")
    )
    moved = (plain - torch.cat([parameter.detach().flatten() for parameter in block_of().parameters()])).abs().mean()
    assert (plain - fused).abs().mean() < 0.02 * moved


def test_images_of_several_problems_and_shapes_are_trained_on_together() -> None:
    """Two geometries of one image shape are a group; another shape is another; every batch is of one shape."""
    sets = []
    for size, views in ((8, 5), (8, 9), (6, 4)):
        geometry = ParallelBeam([0.3 * view for view in range(views)], bins=13, image_shape=(size, size))
        operator = ray_transform(geometry)
        truth = torch.rand((5, 1, size, size), generator=torch.Generator().manual_seed(views))
        sets.append((InverseProblem(operator), operator(truth), truth))
    stage = first_stage(sets, batch=4)
    assert [len(group) for group in stage.groups] == [10, 5]
    first, _ = stage.groups
    for number, (problem, y, truth) in enumerate(sets[:2]):
        some = slice(5 * number, 5 * number + 5)
        assert torch.equal(first.truth[some], truth)
        assert torch.allclose(first.state[some], problem.initial(y), atol=1e-6)
        assert torch.allclose(first.inputs[some], problem.gradient(problem.initial(y), y), atol=1e-5)
    batches = stage.shuffled_batches(4, torch.Generator().manual_seed(0))
    assert sorted(number for number, _ in batches) == [0, 0, 1]
    block = block_of()
    start_block(block, None, stage, "warm")
    before = stage.psnr()
    trained(block, stage, losses.side_by_side(15), FitSettings(epochs=60, batch=4, learning_rate=3e-3))
    after = next_stage(block, stage, "mean", runner_of(stage), batch=4)
    assert [group.state.shape for group in after.groups] == [(10, 1, 8, 8), (5, 1, 6, 6)]
    assert after.psnr() > before + 1


@pytest.mark.gpu
def test_a_captured_step_is_the_plain_step() -> None:
    results = []
    for device in ("cpu", "cuda"):
        block = heteroscedastic.build(BlockSettings(channels=4), torch.Generator().manual_seed(0)).to(device)
        for layer in block.layers:  # no noise: devices have different random numbers
            assert isinstance(layer, MeanFieldConv)
            torch.nn.init.constant_(layer.log_std, -40.0)
        trained(
            block,
            stage_of(device),
            losses.side_by_side(6),
            FitSettings(epochs=10, batch=3, precision="float32", runner="plain"),
        )
        results.append(
            torch.cat([p.detach().flatten().cpu() for n, p in block.named_parameters() if "log_std" not in n])
        )
    assert (results[0] - results[1]).abs().max() < 2e-3
