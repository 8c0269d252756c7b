"""Blocks: their size, the ways to draw them, and the closed-form moments of their output."""

import importlib
import math

import pytest
import torch
from torch import Tensor, nn

from bayescade.blocks import deterministic, heteroscedastic, homoscedastic
from bayescade.blocks.block import ActivationDraw, Block, BlockSettings, MeanDraw, WeightDraw
from bayescade.blocks.heteroscedastic import VarianceNet
from bayescade.errors import UserError

SMALL = BlockSettings(channels=4, variance_floor=1e-9)


def inputs(images: int = 2, size: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand((2, images, 1, size, size), generator=generator, dtype=torch.float64).unbind(0)


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


def test_width_depth_and_variance_network_are_settings() -> None:
    settings = BlockSettings(channels=3, depth=3, variance_channels=5, variance_depth=2, variance_input="features")
    block = block_of("heteroscedastic", settings)
    prediction = block(*inputs(), MeanDraw())
    assert prediction.mean.shape == prediction.variance.shape == (2, 1, 6, 6)
    assert len([m for m in block.trunk.modules() if isinstance(m, nn.Conv2d)]) == 9
    assert block.variance.body[0].in_channels == 2 + 3
    shallow = block_of("deterministic", BlockSettings(channels=3, depth=1))
    assert shallow(*inputs(), MeanDraw()).mean.shape == (2, 1, 6, 6)


@pytest.mark.parametrize(
    "wrong", [{"channels": 0}, {"depth": -1}, {"variance_input": "nothing"}, {"variance_floor": -1e-9}, {"jitter": 2.0}]
)
def test_settings_that_make_no_block(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        BlockSettings(**wrong)  # type: ignore[arg-type]


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
    x, gradient = inputs()
    expected = plain(x, gradient, MeanDraw()).mean
    noise = [torch.randn(2, 1, 6, 6).double(), torch.randn(2, 1, 6, 6).double()]
    draws = [torch.randn(1, 4, 3, 3).double(), torch.randn(1, 4, 3, 3).double()]
    assert torch.equal(plus(x, gradient, MeanDraw()).mean, expected)
    assert torch.equal(plus(x, gradient, ActivationDraw(noise)).mean, expected)
    assert torch.allclose(plus(x, gradient, WeightDraw(draws, shared=True)).mean, expected, rtol=1e-12)
    moments, _ = plus.moments(x, gradient)
    assert torch.allclose(moments.mean, expected, rtol=1e-12)
    assert float(moments.variance.max()) == 0


def test_the_moments_of_a_block_against_a_million_draws() -> None:
    block = block_of("heteroscedastic")
    x, gradient = inputs(images=1, size=3)
    moments, aleatoric = block.moments(x, gradient)
    generator = torch.Generator().manual_seed(3)
    total, squares, variances, square_variances, number = 0.0, 0.0, 0.0, 0.0, 0
    with torch.no_grad():
        for _ in range(10):
            noise = [torch.randn((100_000, 4, 3, 3), generator=generator).double() for _ in range(2)]
            prediction = block(x, gradient, WeightDraw(noise, shared=True))
            total = total + prediction.mean.sum(0)
            squares = squares + (prediction.mean**2).sum(0)
            variances = variances + prediction.variance.sum(0)
            square_variances = square_variances + (prediction.variance**2).sum(0)
            number += len(prediction.mean)
    mean, variance = total / number, squares / number - (total / number) ** 2
    assert number == 1_000_000
    assert ((moments.mean - mean).abs() < 5 * (variance / number).sqrt() + 1e-8).all()
    assert torch.allclose(moments.variance[0], variance, rtol=0.02, atol=1e-5)
    spread = square_variances / number - (variances / number) ** 2
    assert ((aleatoric[0] - variances / number).abs() < 5 * (spread / number).sqrt()).all()
    assert (
        float(((x + 0.7 * block.last.mean(block.features(x, gradient)[1])) < 0).double().mean()) > 0
    )  # the ReLU matters


def test_a_draw_for_all_images_is_the_same_however_they_are_cut() -> None:
    block = block_of("heteroscedastic")
    x, gradient = inputs(images=3)
    noise = [torch.randn((2, 4, 3, 3)).double(), torch.randn((2, 4, 3, 3)).double()]
    together = block(x, gradient, WeightDraw(noise, shared=True))
    alone = [block(x[i : i + 1], gradient[i : i + 1], WeightDraw(noise, shared=True)) for i in range(3)]
    assert torch.allclose(
        together.mean.reshape(2, 3, 6, 6), torch.stack([one.mean[:, 0] for one in alone], 1), rtol=1e-12
    )


def test_the_floor_is_the_least_variance() -> None:
    block = block_of("heteroscedastic")
    assert isinstance(block.variance, VarianceNet)
    nn.init.constant_(block.variance.last.bias, -60.0)
    prediction = block(*inputs(), MeanDraw())
    assert float(prediction.variance.min()) >= 1e-9
    assert float(prediction.variance.max()) < 1e-8


def test_the_information_is_that_of_a_log_variance() -> None:
    block = block_of("heteroscedastic")
    assert isinstance(block.variance, VarianceNet)
    inputs_there, h = block.features(*inputs())
    variance, (features, information) = block.variance.at_mean(inputs_there, h)
    z = features.output_mean(block.variance.last).detach().requires_grad_()
    (slope,) = torch.autograd.grad(block.variance.of(z).log().sum(), z)
    assert torch.allclose(information, slope**2 / 2, rtol=1e-9)
    assert torch.equal(variance, block.variance(inputs_there, h, MeanDraw()))


@pytest.mark.parametrize("kind", ["homoscedastic", "heteroscedastic"])
def test_a_variance_starts_where_it_is_told(kind: str) -> None:
    block = block_of(kind)
    assert block.variance is not None
    for layer in block.variance.layers:
        nn.init.zeros_(layer.weight)
    block.variance.start(1e-4)
    variance = block(*inputs(), MeanDraw()).variance
    assert float(variance.mean()) == pytest.approx(1e-4, rel=1e-4)


def test_the_gradient_is_scaled_on_its_way_in() -> None:
    block = block_of("heteroscedastic")
    x, gradient = inputs()
    once = block(x, 3 * gradient, MeanDraw())
    block.gradient_scale.fill_(3.0)
    again = block(x, gradient, MeanDraw())
    assert torch.equal(once.mean, again.mean)
    assert torch.equal(once.variance, again.variance)
