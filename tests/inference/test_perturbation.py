"""Blocks by what samples change: the same numbers as the blocks themselves, and when they are computed so."""

import pytest
import torch

from bayescade.blocks import deterministic, heteroscedastic, homoscedastic
from bayescade.blocks.perturbation import PerturbationRunner, PerturbedStack, Weights, stack_weights
from bayescade.blocks.settings import BlockSettings
from bayescade.errors import UserError
from bayescade.inference import monte_carlo, runners
from bayescade.inference.monte_carlo import InferenceSettings, Sampler
from bayescade.inference.runners import choose_runner
from bayescade.testing import check_runner
from tests.inference.test_monte_carlo import cascade_of, data_of, estimate


@pytest.mark.parametrize("change", [1e-4, 1.0, 100.0])
def test_a_stack_computes_any_change(change: float) -> None:
    block = cascade_of(1).double().block(0)
    generator = torch.Generator().manual_seed(1)
    at = torch.rand((2, 2, 6, 6), generator=generator, dtype=torch.float64)
    inputs = at.repeat(3, 1, 1, 1) + change * torch.randn((6, 2, 6, 6), generator=generator, dtype=torch.float64)
    joined = [Weights(*layer) for layer in block.trunk.joined()]
    stack = PerturbedStack([*joined, *stack_weights(block.trunk.common)], at, torch.float64)
    assert torch.allclose(stack.output, block.trunk(at[:, :1], at[:, 1:]), rtol=1e-12)
    assert torch.allclose(stack(inputs), block.trunk(inputs[:, :1], inputs[:, 1:]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [heteroscedastic, homoscedastic, deterministic])
@pytest.mark.parametrize("variance", ["inputs", "features"])
@pytest.mark.parametrize(("memory", "planes"), [(0, 1), (2, 3)])
def test_the_runner_conforms(kind: object, variance: str, memory: int, planes: int) -> None:
    settings = BlockSettings(channels=3, memory_channels=memory, variance=variance)
    block = kind.build(settings, torch.Generator().manual_seed(0), planes).double()  # type: ignore[attr-defined]
    block.output_scale.fill_(0.7)
    for layer in block.layers:
        torch.nn.init.constant_(layer.log_std, -2.0)
    check_runner(lambda block: PerturbationRunner(block, torch.float64), block, tolerance=1e-10)


def test_a_wrong_runner_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    image = PerturbationRunner.image
    monkeypatch.setattr(PerturbationRunner, "image", lambda *arguments: image(*arguments) * (1 + 1e-6))
    block = cascade_of(1).double().block(0)
    with pytest.raises(AssertionError, match="PerturbationRunner, MeanWeights, one image: image"):
        check_runner(lambda block: PerturbationRunner(block, torch.float64), block, tolerance=1e-10)


@pytest.mark.parametrize("log_std", [-9.0, -3.0])
def test_bfloat16_has_the_uncertainty_of_any_size(log_std: float) -> None:
    cascade, (problem, y) = cascade_of(4, log_std), data_of()
    plain, narrow = (
        estimate(cascade, problem, y, InferenceSettings(runner=runner), samples=30, seed=0)
        for runner in ("plain", "perturbation")
    )
    std = plain.epistemic.sqrt()
    there = std > 1e-3 * std.max()
    assert ((narrow.epistemic.sqrt() / std - 1)[there].abs() < 0.01).all()
    assert ((narrow.image - plain.image).abs() < 0.01 * std.max() + 1e-6).all()
    assert narrow.aleatoric is not None
    assert plain.aleatoric is not None
    assert torch.allclose(narrow.aleatoric, plain.aleatoric, rtol=0.01)


def test_when_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")

    def chosen(asked: str, sampling: str = "weights", random: bool = True, bfloat16: bool = True) -> str:
        monkeypatch.setattr(runners, "has_bfloat16", lambda: bfloat16)
        return choose_runner(asked, sampling, random, cpu, torch.float32)

    assert chosen("auto") == "perturbation"
    assert chosen("auto", bfloat16=False) == "plain"
    assert chosen("auto", sampling="activations") == "plain"
    assert chosen("auto", random=False) == "plain"
    assert chosen("perturbation", bfloat16=False) == "perturbation"
    assert chosen("perturbation", random=False) == "plain"
    with pytest.raises(UserError, match="perturbation is for samples of weights on a CPU"):
        chosen("perturbation", sampling="activations")


def test_a_reference_that_is_too_large_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "has_bfloat16", lambda: True)
    cascade, (problem, y) = cascade_of(2), data_of()
    plain = estimate(cascade, problem, y, InferenceSettings(runner="plain"), samples=5, seed=0)
    monkeypatch.setattr(monte_carlo, "MOST_REFERENCE", 1000)
    sampler = Sampler(cascade, InferenceSettings())
    assert sampler.runner == "perturbation"
    assert torch.equal(sampler.estimate(problem, y, samples=5, seed=0).image, plain.image)


def test_without_chance_one_sample_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = InferenceSettings(runner="perturbation")
    assert estimate(cascade_of(2, kind=deterministic), *data_of(), settings, samples=5, seed=0).samples == 1
