"""The fused kernels against the plain layers: forward and every gradient, in float64, for any shape.

On a CPU the kernels run through Triton's interpreter; on a GPU as they are.
"""

import dataclasses
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.bayes.last_layer import PlainInputs
from bayescade.blocks.block import Block, State
from bayescade.blocks.runner import PlainRunner, plain_prediction
from bayescade.blocks.sampling import ActivationNoise, MeanWeights
from bayescade.blocks.settings import BlockSettings
from bayescade.kernels._triton import available
from bayescade.testing import check_runner
from tests.conftest import skip

if not available():
    skip("Triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
JITTER = 1e-3

from bayescade.blocks.fused import FusedRunner, fused_prediction, fused_steps  # noqa: E402


def block_of(kind: str, shape: BlockSettings, seed: int, dtype: torch.dtype = torch.float64, planes: int = 1) -> Block:
    build = importlib.import_module(f"bayescade.blocks.{kind}").build
    block: Block = build(shape, torch.Generator().manual_seed(seed), planes).to(DEVICE, dtype)
    with torch.no_grad():
        for layer in block.layers:
            layer.log_std.fill_(-2.0)
            layer.jitter = JITTER
        block.input_scale.copy_(1.7 - 0.4 * torch.arange(planes))
        block.output_scale.fill_(0.6)
    return block


Tensors = tuple[State, Tensor, Tensor, list[Tensor]]  # state, inputs, truth, noise


def inputs(block: Block, sizes: tuple[int, int, int], seed: int, dtype: torch.dtype = torch.float64) -> Tensors:
    images, height, width = sizes
    generator = torch.Generator().manual_seed(seed)

    def new(channels: int) -> Tensor:
        values = torch.randn((images, channels, height, width), generator=generator, dtype=torch.float64)
        return values.to(DEVICE, dtype)

    state = State.unstacked(new(1 + block.memory_channels))
    return state, new(len(block.input_scale)), new(1), [new(1) for _ in block.layers]


def loss_of(prediction: Gaussian, truth: Tensor) -> Tensor:
    loss = ((prediction.mean - truth) ** 2).sum()
    return loss if prediction.variance is None else loss + (prediction.variance.log() * truth).sum()


def compare(block: Block, tensors: Tensors, tolerance: float, noisy: bool = True) -> None:
    state, planes, truth, normals = tensors
    noise = dict(zip(block.layers, normals, strict=True)) if noisy else {}
    plain, ours = (
        predict(block, state, planes, noise, planes.dtype) for predict in (plain_prediction, fused_prediction)
    )
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["deterministic", "homoscedastic", "heteroscedastic"])
@pytest.mark.parametrize("noisy", [True, False])
def test_every_kind_of_block(kind: str, noisy: bool) -> None:
    block = block_of(kind, BlockSettings(), seed=0)
    compare(block, inputs(block, (2, 9, 7), seed=1), 1e-12, noisy)


@pytest.mark.slow
def test_the_recommended_variance_network() -> None:
    block = block_of("heteroscedastic", BlockSettings(variance="features"), seed=2)
    compare(block, inputs(block, (1, 12, 13), seed=3), 1e-12)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    channels=st.sampled_from([1, 3, 8, 16, 20]),
    memory=st.sampled_from([0, 1, 3]),
    planes=st.integers(1, 3),
    variance=st.sampled_from(["inputs", "features"]),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(1, 8)),
    seed=st.integers(0, 1000),
)
def test_any_shape(
    channels: int, memory: int, planes: int, variance: str, sizes: tuple[int, int, int], seed: int
) -> None:
    shape = BlockSettings(channels, min(memory, channels), variance)
    block = block_of("heteroscedastic", shape, seed, planes=planes)
    compare(block, inputs(block, sizes, seed), 1e-11)


@pytest.mark.slow
def test_what_memory_held_before_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    block = block_of("heteroscedastic", BlockSettings(variance="features"), seed=10)

    def not_empty(like: Tensor, size: int | tuple[int, ...], **kind: torch.dtype) -> Tensor:
        return like.new_full((size,) if isinstance(size, int) else size, torch.nan, **kind)

    monkeypatch.setattr(Tensor, "new_empty", not_empty)
    monkeypatch.setattr(torch, "empty_like", lambda other, **kind: torch.full_like(other, torch.nan, **kind))
    tensors = inputs(block, (2, 6, 8), seed=11)
    compare(block, tensors, 1e-12)
    state, planes, weight, _ = tensors
    fast = FusedRunner(block, torch.float64)
    seen = fast.last_inputs(state, fast.features(state, planes))
    expected = PlainInputs(block.features(state, planes).common).curvature(weight)
    expect("curvature", seen.curvature(weight), expected, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "memory", "planes"),
    [("deterministic", 0, 1), ("homoscedastic", 0, 1), ("heteroscedastic", 2, 3)],
)
def test_the_runner_conforms(kind: str, memory: int, planes: int) -> None:
    block = block_of(kind, BlockSettings(channels=5, memory_channels=memory, variance="features"), 8, planes=planes)
    check_runner(lambda block: FusedRunner(block, torch.float64), block, tolerance=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "channels"), [("homoscedastic", 20), ("heteroscedastic", 5)])
def test_what_the_last_layers_see(kind: str, channels: int) -> None:
    """Mean and variance of their output, and the curvature that weighted pixels give their weights."""
    block = block_of(kind, BlockSettings(channels=channels, variance="features"), seed=12)
    state, planes, weight, _ = inputs(block, (3, 6, 9), seed=13)
    plain, fast = PlainRunner(block), FusedRunner(block, torch.float64)
    known, features = plain.features(state, planes), fast.features(state, planes)
    (variance, of_variance), (expected, of_known) = fast.at_mean(state, features), plain.at_mean(state, known)
    expect("variance at the mean", variance, expected, 1e-12)
    pairs = [(fast.last_inputs(state, features), plain.last_inputs(state, known), block.last)]
    assert (of_variance is None) == (of_known is None) == (kind == "homoscedastic")
    if of_variance is not None and of_known is not None:
        expect("information", of_variance[1], of_known[1], 1e-11)
        assert block.variance is not None
        assert block.variance.last is not None
        pairs.append((of_variance[0], of_known[0], block.variance.last))
    for ours, theirs, layer in pairs:
        expect("mean", ours.output_mean(layer), theirs.output_mean(layer), 1e-12)
        expect("variance", ours.output_variance(layer), theirs.output_variance(layer), 1e-12)
        expect("curvature", ours.curvature(weight**2), theirs.curvature(weight**2), 1e-12)


@pytest.mark.parametrize(("memory", "planes", "channels", "seed"), [(0, 1, 3, 0), (2, 3, 5, 1), (3, 17, 20, 2)])
def test_a_step_of_a_cascade_has_the_gradients_of_the_plain_layers(
    memory: int, planes: int, channels: int, seed: int
) -> None:
    settings = BlockSettings(channels=channels, memory_channels=memory, variance="features")
    block = block_of("heteroscedastic", settings, seed, planes=planes)
    state, planes_in, truth, _ = inputs(block, (2, 5, 7), seed)
    stacked = state.stacked().requires_grad_()
    planes_in.requires_grad_()
    gradients = []
    other = block_of("heteroscedastic", settings, seed + 1, planes=planes)
    for runner in (PlainRunner(block), fused_steps([other, block], torch.float64)[1]):
        start = State.unstacked(stacked)
        features = runner.features(start, planes_in)
        image, rest = runner.image(start, features, MeanWeights()), runner.memory(start, features)
        detached = dataclasses.replace(features, planes=features.planes.detach(), common=features.common.detach())
        variance = runner.variance(start, detached, MeanWeights())
        assert variance is not None
        loss = ((image - truth) ** 2).sum() + (variance.log() * truth).sum()
        if rest is not None:
            loss = loss + (rest * truth).square().sum()
        wanted = [stacked, planes_in, *(value for name, value in block.named_parameters() if "log_std" not in name)]
        gradients.append(torch.autograd.grad(loss, wanted))
    for index, (plain, fused) in enumerate(zip(*gradients, strict=True)):
        expect(f"gradient {index}", fused, plain, 1e-9)


@pytest.mark.slow
def test_features_that_are_all_dead_have_finite_gradients() -> None:
    block = block_of("heteroscedastic", BlockSettings(channels=4), seed=4)
    with torch.no_grad():
        block.trunk.common.convolutions()[-1].bias.fill_(-1e3)
    state, planes, truth, normals = inputs(block, (1, 5, 5), seed=5)
    noise = dict(zip(block.layers, normals, strict=True))
    loss = loss_of(fused_prediction(block, state, planes, noise, planes.dtype), truth)
    slopes = torch.autograd.grad(loss, list(block.parameters()))
    assert all(bool(torch.isfinite(slope).all()) for slope in slopes)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lower_precision_is_close_at_full_size(dtype: torch.dtype) -> None:
    """Against float64 on 4 images of 128 x 128: no worse than twice what autocast to the same type does."""
    block = block_of("heteroscedastic", BlockSettings(), seed=6)
    state, planes, truth, normals = inputs(block, (4, 128, 128), seed=7)
    noise = dict(zip(block.layers, normals, strict=True))
    exact_loss = loss_of(plain_prediction(block, state, planes, noise, planes.dtype), truth)
    exact = torch.autograd.grad(exact_loss, list(block.parameters()))
    single = block_of("heteroscedastic", BlockSettings(), seed=6, dtype=torch.float32)
    image, planes, truth = state.image.float(), planes.float(), truth.float()
    noise = dict(zip(single.layers, (one.float() for one in normals), strict=True))
    ours = fused_prediction(single, State(image), planes, noise, dtype)
    found = torch.autograd.grad(loss_of(ours, truth), list(single.parameters()))
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        plain = single(State(image), planes, ActivationNoise(noise))
    beside = torch.autograd.grad(loss_of(plain, truth), list(single.parameters()))
    for (name, _), one, other, reference in zip(block.named_parameters(), found, beside, exact, strict=True):
        scale = float(reference.norm())
        error, theirs = (float((slope.double() - reference).norm()) / scale for slope in (one, other))
        print(f"{dtype!s:16} {name:28} fused {error:.1e} autocast {theirs:.1e}")
        assert error < 2 * theirs + 1e-3, f"{name}: relative error {error:.1e}, autocast has {theirs:.1e}"
