"""The fused kernels against the plain layers: forward and every gradient, in float64, for any shape.

On a CPU the kernels run through Triton's interpreter; on a GPU as they are.
"""

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.bayes.last_layer import PlainInputs
from bayescade.blocks.block import ActivationDraw, Block, BlockSettings, MeanDraw, WeightDraw
from bayescade.kernels._triton import available
from tests.conftest import skip

if not available():
    skip("Triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from bayescade.blocks.fused import FusedBlock, fused, last_layout  # noqa: E402


def block_of(kind: str, shape: BlockSettings, seed: int, dtype: torch.dtype = torch.float64) -> Block:
    block: Block = (
        importlib.import_module(f"bayescade.blocks.{kind}")
        .build(shape, torch.Generator().manual_seed(seed))
        .to(DEVICE, dtype)
    )
    with torch.no_grad():
        for layer in block.layers:
            layer.log_std.fill_(-2.0)
        block.gradient_scale.fill_(1.7)
        block.output_scale.fill_(0.6)
    return block


def inputs(images: int, height: int, width: int, seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (5, images, 1, height, width)
    return [one.to(DEVICE, dtype) for one in torch.randn(shape, generator=generator, dtype=torch.float64)]


def loss_of(prediction: Gaussian, truth: Tensor) -> Tensor:
    loss = ((prediction.mean - truth) ** 2).sum()
    return loss if prediction.variance is None else loss + (prediction.variance.log() * truth).sum()


def compare(block: Block, tensors: list[Tensor], tolerance: float, noisy: bool = True) -> None:
    x, gradient, truth, *noise = tensors
    noise = noise[: len(block.layers)] if noisy else []
    plain = block(x, gradient, ActivationDraw(noise) if noise else MeanDraw())
    ours = fused(block, x, gradient, noise, x.dtype)
    expect("mean", ours.mean, plain.mean, tolerance)
    if plain.variance is not None:
        assert ours.variance is not None
        expect("variance", ours.variance, plain.variance, tolerance)
    parameters = dict(block.named_parameters())
    expected = torch.autograd.grad(loss_of(plain, truth), list(parameters.values()), allow_unused=True)
    found = torch.autograd.grad(loss_of(ours, truth), list(parameters.values()), allow_unused=True)
    for name, one, other in zip(parameters, found, expected, strict=True):
        if other is not None:
            assert one is not None, f"no gradient of {name}"
            expect(f"gradient of {name}", one, other, tolerance)


def expect(what: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    error = float((found.double() - expected.double()).norm().detach())
    scale = float(expected.double().norm().detach())
    assert error <= tolerance * scale + 1e-300, f"{what}: relative error {error / max(scale, 1e-300):.1e}"


@pytest.mark.parametrize("kind", ["deterministic", "homoscedastic", "heteroscedastic"])
@pytest.mark.parametrize("noisy", [True, False])
def test_every_kind_of_block(kind: str, noisy: bool) -> None:
    compare(block_of(kind, BlockSettings(), seed=0), inputs(2, 9, 7, seed=1), 1e-12, noisy)


def test_the_recommended_variance_network() -> None:
    shape = BlockSettings(variance_input="features", variance_channels=16, variance_depth=2, variance_floor=1e-9)
    compare(block_of("heteroscedastic", shape, seed=2), inputs(1, 12, 13, seed=3), 1e-12)


@settings(max_examples=8, deadline=None)
@given(
    channels=st.sampled_from([1, 3, 8, 16, 20]),
    depth=st.integers(1, 3),
    variance_channels=st.sampled_from([1, 4, 17]),
    variance_depth=st.integers(1, 2),
    variance_input=st.sampled_from(["inputs", "features"]),
    jitter=st.sampled_from([0.0, 1e-3]),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12)),
    seed=st.integers(0, 1000),
)
def test_any_shape(
    channels: int,
    depth: int,
    variance_channels: int,
    variance_depth: int,
    variance_input: str,
    jitter: float,
    sizes: tuple[int, int, int],
    seed: int,
) -> None:
    shape = BlockSettings(channels, depth, variance_channels, variance_depth, variance_input, 1e-6, jitter)
    compare(block_of("heteroscedastic", shape, seed), inputs(*sizes, seed), 1e-11)


def test_what_memory_held_before_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = BlockSettings(variance_input="features", variance_channels=16, variance_depth=2)
    block = block_of("heteroscedastic", shape, seed=10)

    def not_empty(like: Tensor, size: int | tuple[int, ...], **kind: torch.dtype) -> Tensor:
        return like.new_full((size,) if isinstance(size, int) else size, torch.nan, **kind)

    monkeypatch.setattr(Tensor, "new_empty", not_empty)
    monkeypatch.setattr(torch, "empty_like", lambda other, **kind: torch.full_like(other, torch.nan, **kind))
    tensors = inputs(2, 6, 8, seed=11)
    compare(block, tensors, 1e-12)
    x, gradient, weight, *_ = tensors
    fast = FusedBlock(block, torch.float64)
    seen = fast.last_inputs(fast.features(x, gradient))
    expect("curvature", seen.curvature(weight), PlainInputs(block.features(x, gradient)[1]).curvature(weight), 1e-12)


@pytest.mark.parametrize("shared", [True, False])
def test_images_of_draws(shared: bool) -> None:
    block = block_of("heteroscedastic", BlockSettings(channels=5), seed=8)
    x, gradient, *_ = inputs(3 if shared else 6, 7, 5, seed=9)
    noise = torch.randn((2, 5, 3, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    draw = WeightDraw([noise, noise], shared)
    fast = FusedBlock(block, torch.float64)
    ours = fast.image(x, fast.features(x, gradient), last_layout(block.last.draw(noise)), shared)
    expect("image", ours, block.image(x, gradient, draw), 1e-12)


@pytest.mark.parametrize(("kind", "channels"), [("homoscedastic", 20), ("heteroscedastic", 5)])
def test_what_the_last_layers_see(kind: str, channels: int) -> None:
    """Mean and variance of their output, and the curvature that weighted pixels give their weights."""
    shape = BlockSettings(channels=channels, variance_input="features", jitter=1e-3)
    block = block_of(kind, shape, seed=12)
    x, gradient, weight, *_ = inputs(3, 6, 9, seed=13)
    planes, h = block.features(x, gradient)
    assert block.variance is not None
    fast = FusedBlock(block, torch.float64)
    features = fast.features(x, gradient)
    (variance, of_variance), (known, of_known) = fast.at_mean(features), block.variance.at_mean(planes, h)
    expect("variance at the mean", variance, known, 1e-12)
    pairs = [(fast.last_inputs(features), PlainInputs(h), block.last)]
    assert (of_variance is None) == (of_known is None) == (kind == "homoscedastic")
    if of_variance is not None and of_known is not None:
        expect("information", of_variance[1], of_known[1], 1e-11)
        pairs.append((of_variance[0], of_known[0], block.variance.layers[0]))
    for ours, plain, layer in pairs:
        expect("mean", ours.output_mean(layer), plain.output_mean(layer), 1e-12)
        expect("variance", ours.output_variance(layer), plain.output_variance(layer), 1e-12)
        expect("curvature", ours.curvature(weight**2), plain.curvature(weight**2), 1e-12)


def test_features_that_are_all_dead_have_finite_gradients() -> None:
    block = block_of("heteroscedastic", BlockSettings(channels=4), seed=4)
    with torch.no_grad():
        last = block.trunk.common[-2]
        last.bias.fill_(-1e3)
    x, gradient, truth, *noise = inputs(1, 5, 5, seed=5)
    loss = loss_of(fused(block, x, gradient, noise, x.dtype), truth)
    slopes = torch.autograd.grad(loss, list(block.parameters()))
    assert all(bool(torch.isfinite(slope).all()) for slope in slopes)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lower_precision_is_close_at_full_size(dtype: torch.dtype) -> None:
    """Against float64 on 4 images of 128 x 128: no worse than twice what autocast to the same type does."""
    block = block_of("heteroscedastic", BlockSettings(), seed=6)
    x, gradient, truth, *noise = inputs(4, 128, 128, seed=7)
    parameters = list(block.parameters())
    exact = torch.autograd.grad(loss_of(block(x, gradient, ActivationDraw(noise)), truth), parameters)
    single = block_of("heteroscedastic", BlockSettings(), seed=6, dtype=torch.float32)
    tensors = [one.float() for one in (x, gradient, truth, *noise)]
    ours = fused(single, tensors[0], tensors[1], tensors[3:], dtype)
    found = torch.autograd.grad(loss_of(ours, tensors[2]), list(single.parameters()))
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        plain = single(tensors[0], tensors[1], ActivationDraw(tensors[3:]))
    beside = torch.autograd.grad(loss_of(plain, tensors[2]), list(single.parameters()))
    for (name, _), one, other, reference in zip(block.named_parameters(), found, beside, exact, strict=True):
        scale = float(reference.norm())
        error, theirs = (float((slope.double() - reference).norm()) / scale for slope in (one, other))
        print(f"{dtype!s:16} {name:28} fused {error:.1e} autocast {theirs:.1e}")
        assert error < 2 * theirs + 1e-3, f"{name}: relative error {error:.1e}, autocast has {theirs:.1e}"
