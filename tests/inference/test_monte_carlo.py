"""Samples of a cascade against brute force, and their independence of chunks."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, relu, softplus

from bayescade.blocks import deterministic, heteroscedastic
from bayescade.blocks.block import Block, BlockSettings, MeanDraw
from bayescade.errors import UserError
from bayescade.inference import monte_carlo
from bayescade.inference.monte_carlo import InferenceSettings, draw_images, estimate, sampler_of
from bayescade.inference.regions import region_covariance, region_mean
from bayescade.networks.cascade import Cascade, Data
from bayescade.projectors import ray_transform
from tests.geometries import small_parallel

SIZE = 6


def cascade_of(blocks: int = 3, spread: float = -3.0, kind: object = heteroscedastic) -> Cascade:
    settings = BlockSettings(channels=3, variance_floor=1e-9)
    made = []
    for place in range(blocks):
        block: Block = kind.build(settings, torch.Generator().manual_seed(place))  # type: ignore[attr-defined]
        for name, parameter in block.named_parameters():
            if name.endswith("last.log_std"):
                torch.nn.init.constant_(parameter, spread)
        block.gradient_scale.fill_(3.0)
        made.append(block)
    return Cascade(made).requires_grad_(False)


def data_of(images: int = 2, device: str = "cpu") -> tuple[Data, Tensor]:
    operator = ray_transform(small_parallel(SIZE), device)
    truth = torch.rand((images, 1, SIZE, SIZE), generator=torch.Generator().manual_seed(9))
    sinogram = operator(truth.to(device))
    return Data(operator, 12.0, sinogram), operator.fbp(sinogram)


def brute_force(cascade: Cascade, data: Data, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One draw, written out: weights drawn one by one, no shared code but the trunk."""
    variance = x
    for place in range(len(cascade)):
        block = cascade.block(place)
        g = data.operator.adjoint(data.operator.forward(x) - data.sinogram) / data.norm**2 * block.gradient_scale
        h = block.trunk(x, g)
        net = block.variance
        assert isinstance(net, heteroscedastic.VarianceNet)
        weight = block.last.weight + block.last.std() * torch.randn(block.last.weight.shape, generator=generator)
        weight_variance = net.last.weight + net.last.std() * torch.randn(net.last.weight.shape, generator=generator)
        z = conv2d(net.body(torch.cat([x, g], 1)), weight_variance, net.last.bias, padding=1)
        variance = softplus(z) ** 2 + net.floor
        x = relu(x + conv2d(h, weight, block.last.bias, padding=1))
    return x, variance


@pytest.mark.parametrize("analytic", [False, True])
def test_both_parts_of_the_variance_against_brute_force(analytic: bool) -> None:
    cascade, (data, first) = cascade_of(), data_of()
    generator = torch.Generator().manual_seed(4)
    number = 3000
    drawn = [brute_force(cascade, data, first, generator) for _ in range(number)]
    images, variances = torch.stack([x for x, _ in drawn]).double(), torch.stack([v for _, v in drawn]).double()
    found = estimate(cascade, data, first, InferenceSettings(analytic=analytic), samples=2000, seed=0)
    spread = images.var(0, correction=0)
    image_error = (spread / number + found.image_error**2).sqrt()
    assert ((found.image - images.mean(0)).abs() < 5 * image_error + 1e-7).all()
    squares = ((images - images.mean(0)) ** 2).var(0) / number
    assert ((found.epistemic - spread).abs() < 5 * (squares + found.epistemic_error**2).sqrt() + 1e-12).all()
    assert found.aleatoric is not None
    assert found.aleatoric_error is not None
    error = (variances.var(0) / number + found.aleatoric_error**2).sqrt()
    assert ((found.aleatoric - variances.mean(0)).abs() < 5 * error + 1e-9).all()


def test_draws_with_aleatoric_noise_have_the_total_variance() -> None:
    cascade, (data, first) = cascade_of(2), data_of()
    settings = InferenceSettings()
    found = estimate(cascade, data, first, settings, samples=2000, seed=0)
    assert found.aleatoric is not None
    model = draw_images(cascade, data, first, settings, samples=2000, seed=1, aleatoric=False).double()
    full = draw_images(cascade, data, first, settings, samples=2000, seed=1, aleatoric=True).double()
    assert float((model.var(0) / found.epistemic).mean()) == pytest.approx(1, rel=0.1)
    assert float((full.var(0) / (found.epistemic + found.aleatoric)).mean()) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("draws", ["weights", "activations"])
def test_the_answer_does_not_depend_on_how_samples_are_cut(draws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cascade, (data, first) = cascade_of(), data_of()
    settings = InferenceSettings(draws=draws)
    together = estimate(cascade, data, first, settings, samples=20, seed=3)
    monkeypatch.setitem(monte_carlo.CHUNK_BYTES, "cpu", 1)  # one at a time
    alone = estimate(cascade, data, first, settings, samples=20, seed=3)
    assert torch.allclose(together.image, alone.image, atol=1e-6)
    assert torch.allclose(together.epistemic, alone.epistemic, rtol=1e-3, atol=1e-10)


@pytest.mark.parametrize("draws", ["weights", "activations"])
def test_the_answer_does_not_depend_on_how_images_are_cut(draws: str) -> None:
    cascade, (data, first) = cascade_of(), data_of(3)
    settings = InferenceSettings(draws=draws)
    together = estimate(cascade, data, first, settings, samples=20, seed=3)
    noisy = draw_images(cascade, data, first, settings, samples=3, seed=3, aleatoric=True)
    for place in range(3):
        some = slice(place, place + 1)
        own = dataclasses.replace(data, sinogram=data.sinogram[some])
        alone = estimate(cascade, own, first[some], settings, samples=20, seed=3, place=place)
        one = draw_images(cascade, own, first[some], settings, samples=3, seed=3, aleatoric=True, place=place)
        assert torch.allclose(noisy[:, some], one, atol=1e-5)
        assert torch.allclose(together.image[some], alone.image, atol=1e-6)
        assert torch.allclose(together.epistemic[some], alone.epistemic, rtol=1e-3, atol=1e-10)


@pytest.mark.usefixtures("_interpreter")
@pytest.mark.parametrize("at_once", [1, 6, 128])
def test_the_fused_kernels_give_the_same_samples(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are drawn and worked on at once."""
    monkeypatch.setattr(monte_carlo, "MOST_PASSES", at_once)
    cascade, (data, first) = cascade_of(), data_of()
    plain, fused = (
        estimate(cascade, data, first, InferenceSettings(kernels=kernels), samples=7, seed=3)
        for kernels in ("plain", "fused")
    )
    assert torch.allclose(plain.image, fused.image, atol=1e-5)
    assert torch.allclose(plain.epistemic, fused.epistemic, rtol=1e-2, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("analytic", [True, False])
@pytest.mark.parametrize("images", [1, 3])
def test_a_replayed_graph_gives_the_same_samples(images: int, analytic: bool) -> None:
    cascade = cascade_of().cuda()
    operator = ray_transform(small_parallel(SIZE), "cuda")
    settings = InferenceSettings(kernels="fused", analytic=analytic)
    fast = sampler_of(cascade, settings)
    assert fast is not None
    for turn in range(3):  # captured, then replayed with other data
        truth = torch.rand((images, 1, SIZE, SIZE), generator=torch.Generator().manual_seed(turn)).cuda()
        data, first = Data(operator, 12.0, operator(truth)), operator.fbp(operator(truth))
        plain = estimate(cascade, data, first, dataclasses.replace(settings, kernels="plain"), samples=40, seed=turn)
        found = estimate(cascade, data, first, settings, samples=40, seed=turn, fast=fast)
        assert (plain.image - found.image).abs().max() < 0.02 * plain.image.abs().max()
        assert (plain.epistemic - found.epistemic).abs().mean() < 0.05 * plain.epistemic.mean()
        assert plain.aleatoric is not None
        assert found.aleatoric is not None
        assert (plain.aleatoric - found.aleatoric).abs().mean() < 0.05 * plain.aleatoric.mean()


@pytest.mark.gpu
def test_features_in_single_precision_are_nearly_exact() -> None:
    worst = {}
    exact = estimate(cascade_of(), *data_of(), InferenceSettings(kernels="plain"), samples=20, seed=0)
    for features in ("half", "single"):
        settings = InferenceSettings(kernels="fused", features=features)
        found = estimate(cascade_of().cuda(), *data_of(device="cuda"), settings, samples=20, seed=0)
        worst[features] = float((found.image.cpu() - exact.image).abs().max())
    assert worst["single"] < 2e-6
    assert worst["half"] > 2 * worst["single"]


@pytest.mark.gpu
def test_what_is_not_drawn_is_in_full_precision() -> None:
    found = []
    for device in ("cpu", "cuda"):
        cascade = cascade_of(kind=deterministic).to(device)
        operator = ray_transform(small_parallel(SIZE), device)
        sinogram = operator(torch.rand((2, 1, SIZE, SIZE), generator=torch.Generator().manual_seed(0)).to(device))
        data, first = Data(operator, 12.0, sinogram), operator.fbp(sinogram)
        found.append(estimate(cascade, data, first, InferenceSettings(), samples=3, seed=0).image.cpu())
    assert torch.allclose(*found, atol=2e-6)


def test_the_seed_is_the_answer() -> None:
    cascade, (data, first) = cascade_of(), data_of()
    one, again, other = (
        estimate(cascade, data, first, InferenceSettings(), samples=5, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(one.epistemic, again.epistemic)
    assert not torch.equal(one.epistemic, other.epistemic)


def test_one_sample_of_something_random_claims_no_error() -> None:
    cascade, (data, first) = cascade_of(), data_of()
    found = estimate(cascade, data, first, InferenceSettings(), samples=1, seed=0)
    assert not found.has_errors
    assert found.relative_error() == float("inf")


def test_sampling_stops_at_the_tolerance() -> None:
    cascade, (data, first) = cascade_of(), data_of()
    loose = estimate(cascade, data, first, InferenceSettings(tolerance=0.3), samples=5000, seed=0)
    tight = estimate(cascade, data, first, InferenceSettings(tolerance=0.05), samples=5000, seed=0)
    assert loose.samples < tight.samples < 5000
    assert tight.relative_error() <= 0.05
    assert loose.relative_error() <= 0.3


def test_a_cascade_without_chance_needs_one_sample() -> None:
    cascade, (data, first) = cascade_of(kind=deterministic), data_of()
    found = estimate(cascade, data, first, InferenceSettings(), samples=100, seed=0)
    assert found.samples == 1
    x = first
    for place in range(len(cascade)):
        x = cascade.block(place).image(x, data.gradient(x), MeanDraw())
    assert torch.allclose(found.image.float(), x, atol=1e-6)
    assert found.has_errors
    assert float(found.epistemic.max()) == 0
    assert found.aleatoric is None


def test_one_block_in_closed_form_needs_one_sample() -> None:
    cascade, (data, first) = cascade_of(1), data_of()
    exact = estimate(cascade, data, first, InferenceSettings(), samples=100, seed=0)
    drawn = estimate(cascade, data, first, InferenceSettings(analytic=False), samples=3000, seed=0)
    assert exact.samples == 1
    assert float(exact.epistemic_std_error.max()) == 0
    assert ((exact.image - drawn.image).abs() < 5 * drawn.image_error + 1e-7).all()


def test_activations_have_the_wrong_mean_over_a_region() -> None:
    cascade, (data, first) = cascade_of(1), data_of()
    mask = torch.ones(SIZE, SIZE, dtype=torch.bool)
    spreads = [
        draw_images(cascade, data, first, InferenceSettings(draws=kind), samples=1000, seed=0, aleatoric=False)
        .mean((-1, -2))
        .std(0)
        .mean()
        for kind in ("weights", "activations")
    ]
    by_means = region_mean(
        draw_images(cascade, data, first, InferenceSettings(), samples=1000, seed=0, aleatoric=False),
        torch.full((2, 1, SIZE, SIZE), 0.04),
        mask,
    )
    assert spreads[0] > 2 * spreads[1]
    assert torch.allclose(by_means.aleatoric, torch.full((2,), 0.04 / SIZE**2).double())


def test_the_variance_of_a_region_is_the_mean_of_its_covariance() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn((50, 2, 1, 4, 5), generator=generator)
    aleatoric = torch.rand((2, 1, 4, 5), generator=generator)
    mask = torch.rand((4, 5), generator=generator) > 0.5
    covariance = region_covariance(draws, aleatoric, mask)
    inside = draws[:, :, 0][:, :, mask].double()
    one = torch.cov(inside[:, 1].T, correction=0) + torch.diag(aleatoric[1, 0][mask].double())
    assert torch.allclose(covariance[1], one)
    found = region_mean(draws, aleatoric, mask)
    assert torch.allclose(found.aleatoric + found.epistemic, covariance.mean((1, 2)))
    assert torch.allclose(found.mean, inside.mean((0, 2)))
    assert torch.allclose(found.std**2, covariance.mean((1, 2)))


def test_a_region_needs_a_pixel() -> None:
    draws, aleatoric = torch.zeros(3, 1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    with pytest.raises(UserError, match="a mask of booleans"):
        region_mean(draws, aleatoric, torch.zeros(4, 4, dtype=torch.bool))
    with pytest.raises(UserError, match="a mask of booleans"):
        region_covariance(draws, aleatoric, torch.ones(3, 4, dtype=torch.bool))


@pytest.mark.parametrize(
    "wrong", [{"draws": "pixels"}, {"tolerance": 1.5}, {"kernels": "fast"}, {"features": "double"}]
)
def test_settings_that_do_not_sample(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        InferenceSettings(**wrong)  # type: ignore[arg-type]
