"""Blocks: their size, the ways to draw them, and the closed-form moments of their output."""

import importlib
import math

import pytest
import torch
from torch import Tensor, nn

from bayescade.blocks import deterministic, heteroscedastic, homoscedastic
from bayescade.blocks.block import Block, State
from bayescade.blocks.heteroscedastic import VarianceNet
from bayescade.blocks.runner import PlainRunner
from bayescade.blocks.sampling import ActivationNoise, MeanWeights, SampledWeights
from bayescade.blocks.settings import BlockSettings
from bayescade.errors import UserError
from bayescade.testing import check_block

SMALL = BlockSettings(channels=4)


def inputs(images: int = 2, size: int = 6) -> tuple[State, Tensor]:
    generator = torch.Generator().manual_seed(1)
    image, gradient = torch.rand((2, images, 1, size, size), generator=generator, dtype=torch.float64).unbind(0)
    return State(image), gradient


def sampled(block: Block, noise: list[Tensor]) -> SampledWeights:
    return SampledWeights(PlainRunner(block).sample_weights(dict(zip(block.layers, noise, strict=True))))


def block_of(kind: str, settings: BlockSettings = SMALL, log_std: float = -1.5) -> Block:
    block: Block = (
        importlib.import_module(f"bayescade.blocks.{kind}").build(settings, torch.Generator().manual_seed(2)).double()
    )
    for name, parameter in block.named_parameters():
        if name.endswith("last.log_std"):
            nn.init.constant_(parameter, log_std)
    nn.init.constant_(block.last.bias, -0.3)  # some pixels below zero, where the ReLU matters
    block.output_scale.fill_(0.7)
    if isinstance(block.variance, VarianceNet):
        block.variance.scale.fill_(0.5)
    return block


@pytest.mark.parametrize(
    ("build", "number"), [(deterministic, 32833), (homoscedastic, 32978), (heteroscedastic, 33126)]
)
def test_the_default_is_the_size_of_the_paper(build: object, number: int) -> None:
    block = build.build(BlockSettings(), torch.Generator())  # type: ignore[attr-defined]
    assert sum(parameter.numel() for parameter in block.parameters()) == number


def test_width_and_variance_network_are_settings() -> None:
    block = block_of("heteroscedastic", BlockSettings(channels=3, variance="features"))
    prediction = block(*inputs(), MeanWeights())
    assert prediction.mean.shape == prediction.variance.shape == (2, 1, 6, 6)
    assert block.variance.body[0].in_channels == 2 + 3
    assert block.variance.last.weight.shape[1] == 16
    assert block.variance.floor == 1e-9


@pytest.mark.parametrize("wrong", [{"channels": 0}, {"memory_channels": 17}, {"variance": "nothing"}])
def test_settings_that_make_no_block(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        BlockSettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["deterministic", "homoscedastic", "heteroscedastic"])
@pytest.mark.parametrize("memory", [0, 2])
@pytest.mark.parametrize("planes", [1, 3])
def test_every_kind_of_block_conforms(kind: str, memory: int, planes: int) -> None:
    settings = BlockSettings(channels=3, memory_channels=memory, variance="features")
    build = importlib.import_module(f"bayescade.blocks.{kind}").build
    block = build(settings, torch.Generator().manual_seed(3), planes)
    for name, parameter in block.named_parameters():
        if name.endswith("last.log_std"):
            nn.init.constant_(parameter, -1.5)
    check_block(block, size=(3, 4), samples=5000)


def test_a_wrong_block_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    block = block_of("heteroscedastic")
    monkeypatch.setattr(PlainRunner, "memory", lambda *_: None)
    moments = type(block).moments_of
    monkeypatch.setattr(
        type(block), "moments_of", lambda block, x, mean, variance: moments(block, x, mean, 1.5 * variance)
    )
    with pytest.raises(AssertionError, match="moments: the"):
        check_block(block, size=(3, 3))


def test_the_memory_is_the_first_features_and_reaches_the_next_block() -> None:
    settings = BlockSettings(channels=4, memory_channels=2)
    block = importlib.import_module("bayescade.blocks.deterministic").build(settings, torch.Generator().manual_seed(0))
    state, gradient = inputs()
    state = State(state.image.float(), torch.zeros(2, 2, 6, 6))
    runner = PlainRunner(block)
    features = runner.features(state, gradient.float())
    assert torch.equal(runner.memory(state, features), features.common[:, :2])
    remembered = State(state.image, torch.ones(2, 2, 6, 6))
    assert not torch.equal(features.common, runner.features(remembered, gradient.float()).common)


def test_the_same_generator_gives_the_same_weights_and_leaves_the_global_one_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one, two = block_of("heteroscedastic"), block_of("heteroscedastic")
    assert torch.equal(torch.rand(3), expected)
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_without_posterior_variance_bdgd_plus_is_dgd() -> None:
    plus = block_of("heteroscedastic", log_std=-math.inf)
    plain = block_of("deterministic")
    weights = {name: value for name, value in plus.state_dict().items() if name in plain.state_dict()}
    plain.load_state_dict(weights)
    state, gradient = inputs()
    expected = plain(state, gradient, MeanWeights()).mean
    noise = {layer: torch.randn(2, 1, 6, 6).double() for layer in plus.layers}
    samples = sampled(plus, [torch.randn(1, *layer.weight.shape[1:]).double() for layer in plus.layers])
    assert torch.equal(plus(state, gradient, MeanWeights()).mean, expected)
    assert torch.equal(plus(state, gradient, ActivationNoise(noise)).mean, expected)
    assert torch.allclose(plus(state, gradient, samples).mean, expected, rtol=1e-12)
    runner = PlainRunner(plus)
    moments, _ = runner.moments(state, runner.features(state, gradient))
    assert torch.allclose(moments.mean, expected, rtol=1e-12)
    assert float(moments.variance.max()) == 0


def test_a_sample_for_all_images_is_the_same_however_they_are_cut() -> None:
    block = block_of("heteroscedastic")
    state, gradient = inputs(images=3)
    samples = sampled(block, [torch.randn((2, 4, 3, 3)).double(), torch.randn((2, 4, 3, 3)).double()])
    together = block(state, gradient, samples)
    alone = [block(State(state.image[i : i + 1]), gradient[i : i + 1], samples) for i in range(3)]
    assert torch.allclose(
        together.mean.reshape(2, 3, 6, 6), torch.stack([one.mean[:, 0] for one in alone], 1), rtol=1e-12
    )


def test_the_floor_is_the_least_variance() -> None:
    block = block_of("heteroscedastic")
    assert isinstance(block.variance, VarianceNet)
    nn.init.constant_(block.variance.last.bias, -60.0)
    prediction = block(*inputs(), MeanWeights())
    assert float(prediction.variance.min()) >= 1e-6
    assert float(prediction.variance.max()) < 1e-5


def test_the_information_is_that_of_a_log_variance() -> None:
    block = block_of("heteroscedastic")
    assert isinstance(block.variance, VarianceNet)
    features = block.features(*inputs())
    variance, (seen, information) = block.variance.at_mean(features)
    z = seen.output_mean(block.variance.last).detach().requires_grad_()
    (slope,) = torch.autograd.grad(block.variance.of(z).log().sum(), z)
    assert torch.allclose(information, slope**2 / 2, rtol=1e-9)
    assert torch.equal(variance, block.variance(features, MeanWeights(), shared=True))


@pytest.mark.parametrize("kind", ["homoscedastic", "heteroscedastic"])
def test_a_variance_starts_where_it_is_told(kind: str) -> None:
    block = block_of(kind)
    assert block.variance is not None
    if block.variance.last is not None:
        nn.init.zeros_(block.variance.last.weight)
    block.variance.start(1e-4)
    variance = block(*inputs(), MeanWeights()).variance
    assert float(variance.mean()) == pytest.approx(1e-4 + block.variance.floor, rel=1e-4)


def test_the_inputs_are_scaled_on_their_way_in() -> None:
    block = block_of("heteroscedastic")
    state, gradient = inputs()
    once = block(state, 3 * gradient, MeanWeights())
    block.input_scale.fill_(3.0)
    again = block(state, gradient, MeanWeights())
    assert torch.equal(once.mean, again.mean)
    assert torch.equal(once.variance, again.variance)
