"""Samples of a cascade against brute force, and their independence of how work is cut and by what it is computed."""

import dataclasses
import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, relu, softplus

from bayescade.blocks import deterministic, heteroscedastic
from bayescade.blocks.block import Block
from bayescade.blocks.runner import PlainRunner
from bayescade.blocks.sampling import MeanWeights
from bayescade.blocks.settings import BlockSettings
from bayescade.errors import UserError
from bayescade.inference import monte_carlo
from bayescade.inference.moments import Estimate
from bayescade.inference.monte_carlo import InferenceSettings, Sampler
from bayescade.inference.regions import region_covariance, region_mean
from bayescade.networks.cascade import Cascade, first_iterate, first_state, iterates
from bayescade.physics.problem import InverseProblem
from bayescade.projectors import ray_transform
from tests.geometries import small_parallel

SIZE = 6


def block_of(kind: object, seed: int, log_std: float = -3.0, memory: int = 0, planes: int = 1) -> Block:
    settings = BlockSettings(channels=3, memory_channels=memory)
    block: Block = kind.build(settings, torch.Generator().manual_seed(seed), planes)  # type: ignore[attr-defined]
    for name, parameter in block.named_parameters():
        if name.endswith("last.log_std"):
            torch.nn.init.constant_(parameter, log_std)
    block.input_scale.fill_(3.0)
    return block


def cascade_of(blocks: int = 3, log_std: float = -3.0, kind: object = heteroscedastic) -> Cascade:
    return Cascade([block_of(kind, seed, log_std) for seed in range(blocks)]).requires_grad_(False)


def data_of(images: int = 2, device: str = "cpu") -> tuple[InverseProblem, Tensor]:
    operator = ray_transform(small_parallel(SIZE), device)
    truth = torch.rand((images, 1, SIZE, SIZE), generator=torch.Generator().manual_seed(9))
    return InverseProblem(operator, norm=12.0), operator(truth.to(device))


def estimate(
    cascade: Cascade, problem: InverseProblem, y: Tensor, settings: InferenceSettings, **options: int
) -> Estimate:
    return Sampler(cascade, settings).estimate(problem, y, **options)  # type: ignore[arg-type]


def sample_images(
    cascade: Cascade, problem: InverseProblem, y: Tensor, settings: InferenceSettings, **options: int
) -> Tensor:
    return Sampler(cascade, settings).images(problem, y, **options)  # type: ignore[arg-type]


def brute_force(
    cascade: Cascade, problem: InverseProblem, y: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """One sample, written out: weights sampled one by one, no shared code but the trunk."""
    x = variance = problem.operator.initial(y)
    for block in cascade.all_blocks():
        g = problem.operator.adjoint(problem.operator.forward(x) - y) / 12.0**2 * block.input_scale
        h = block.trunk(x, g)
        net = block.variance
        assert isinstance(net, heteroscedastic.VarianceNet)
        weight = block.last.weight + block.last.std() * torch.randn(block.last.weight.shape, generator=generator)
        weight_variance = net.last.weight + net.last.std() * torch.randn(net.last.weight.shape, generator=generator)
        z = conv2d(net.body(torch.cat([x, g], 1)), weight_variance, net.last.bias, padding=1)
        variance = softplus(z) ** 2 + net.floor
        x = relu(x + conv2d(h, weight, block.last.bias, padding=1))
    return x, variance


@pytest.fixture(scope="module")
def brute_samples() -> tuple[Tensor, Tensor]:
    """2000 images and variances, one after the other."""
    cascade, (problem, y) = cascade_of(), data_of()
    generator = torch.Generator().manual_seed(4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # images are tiny
    samples = [brute_force(cascade, problem, y, generator) for _ in range(2000)]
    torch.set_num_threads(threads)
    return torch.stack([x for x, _ in samples]).double(), torch.stack([v for _, v in samples]).double()


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["weights", "all-weights"])
def test_both_parts_of_the_variance_against_brute_force(sampling: str, brute_samples: tuple[Tensor, Tensor]) -> None:
    cascade, (problem, y) = cascade_of(), data_of()
    images, variances = brute_samples
    number = len(images)
    found = estimate(cascade, problem, y, InferenceSettings(sampling=sampling), samples=2000, seed=0)
    epistemic = images.var(0, correction=0)
    image_error = (epistemic / number + found.image_error**2).sqrt()
    assert ((found.image - images.mean(0)).abs() < 5 * image_error + 1e-7).all()
    squares = ((images - images.mean(0)) ** 2).var(0) / number
    assert ((found.epistemic - epistemic).abs() < 5 * (squares + found.epistemic_error**2).sqrt() + 1e-12).all()
    assert found.aleatoric is not None
    assert found.aleatoric_error is not None
    error = (variances.var(0) / number + found.aleatoric_error**2).sqrt()
    assert ((found.aleatoric - variances.mean(0)).abs() < 5 * error + 1e-9).all()


def test_samples_with_aleatoric_noise_have_the_total_variance() -> None:
    cascade, (problem, y) = cascade_of(2), data_of()
    settings = InferenceSettings()
    found = estimate(cascade, problem, y, settings, samples=2000, seed=0)
    assert found.aleatoric is not None
    model = sample_images(cascade, problem, y, settings, samples=2000, seed=1, aleatoric=False).double()
    full = sample_images(cascade, problem, y, settings, samples=2000, seed=1, aleatoric=True).double()
    assert float((model.var(0) / found.epistemic).mean()) == pytest.approx(1, rel=0.1)
    assert float((full.var(0) / (found.epistemic + found.aleatoric)).mean()) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("sampling", ["weights", "activations"])
def test_the_answer_does_not_depend_on_how_samples_are_cut(sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cascade, (problem, y) = cascade_of(), data_of()
    settings = InferenceSettings(sampling=sampling)
    together = estimate(cascade, problem, y, settings, samples=20, seed=3)
    monkeypatch.setitem(monte_carlo.CHUNK_BYTES, "cpu", 1)  # one at a time
    alone = estimate(cascade, problem, y, settings, samples=20, seed=3)
    assert torch.allclose(together.image, alone.image, atol=1e-6)
    assert torch.allclose(together.epistemic, alone.epistemic, rtol=1e-3, atol=1e-10)


@pytest.mark.parametrize("sampling", ["weights", "activations"])
def test_the_answer_does_not_depend_on_how_images_are_cut(sampling: str) -> None:
    cascade, (problem, y) = cascade_of(), data_of(3)
    settings = InferenceSettings(sampling=sampling)
    together = estimate(cascade, problem, y, settings, samples=20, seed=3)
    noisy = sample_images(cascade, problem, y, settings, samples=3, seed=3, aleatoric=True)
    for index in range(3):
        some = slice(index, index + 1)
        alone = estimate(cascade, problem, y[some], settings, samples=20, seed=3, index=index)
        one = sample_images(cascade, problem, y[some], settings, samples=3, seed=3, aleatoric=True, index=index)
        assert torch.allclose(noisy[:, some], one, atol=1e-5)
        assert torch.allclose(together.image[some], alone.image, atol=1e-6)
        assert torch.allclose(together.epistemic[some], alone.epistemic, rtol=1e-3, atol=1e-10)


@pytest.mark.slow
@pytest.mark.usefixtures("_interpreter")
@pytest.mark.parametrize("at_once", [2, 128])
def test_the_fused_kernels_give_the_same_samples(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are worked on at once."""
    monkeypatch.setattr(monte_carlo, "MOST_PASSES", at_once)
    cascade, (problem, y) = cascade_of(2), data_of()
    plain, fused = (
        estimate(cascade, problem, y, InferenceSettings(runner=runner), samples=3, seed=3)
        for runner in ("plain", "fused")
    )
    assert torch.allclose(plain.image, fused.image, atol=1e-5)
    assert torch.allclose(plain.epistemic, fused.epistemic, rtol=1e-2, atol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("_interpreter")
@pytest.mark.parametrize("runner", ["fused", "perturbation"])
@pytest.mark.parametrize(("sampling", "memory", "planes"), [("weights", 2, 3), ("all-weights", 0, 1)])
def test_cascades_that_begin_without_chance_work_on_every_runner(
    runner: str, sampling: str, memory: int, planes: int
) -> None:
    """The first two blocks are the same for all samples; there may be more planes, and memory."""
    kinds = (deterministic, deterministic, heteroscedastic, deterministic, heteroscedastic)
    blocks = [block_of(kind, seed, memory=memory, planes=planes) for seed, kind in enumerate(kinds)]
    cascade = Cascade(blocks).requires_grad_(False)
    problem, y = data_of()
    more = (lambda x, y: 0.5 * x, lambda x, y: torch.full_like(x, 0.2))[: planes - 1]
    problem = dataclasses.replace(problem, planes=more)
    exact, found = (
        estimate(cascade, problem, y, InferenceSettings(sampling=sampling, runner=name), samples=4, seed=3)
        for name in ("plain", runner)
    )
    std = exact.epistemic.sqrt()
    assert float(std.max()) > 1e-3
    assert ((exact.image - found.image).abs() < 0.01 * std.max()).all()
    assert ((std - found.epistemic.sqrt()).abs() < 0.01 * std.max()).all()
    assert exact.aleatoric is not None
    assert found.aleatoric is not None
    assert torch.allclose(exact.aleatoric, found.aleatoric, rtol=0.02)


def test_a_cascade_is_called() -> None:
    """With mean weights, against the same written out."""
    cascade, (problem, y) = cascade_of(2), data_of()
    x = problem.operator.initial(y)
    for block in cascade.all_blocks():
        g = problem.operator.adjoint(problem.operator.forward(x) - y) / 12.0**2
        h = block.trunk(x, g * block.input_scale)
        x = relu(x + block.last.mean(h))
    found = cascade(y, problem)
    assert torch.allclose(found.mean, x, atol=1e-6)
    assert found.variance is not None
    runners = [PlainRunner(block) for block in cascade.all_blocks()]
    start = first_iterate(runners[0], problem, y, first_state(problem.initial(y), memory_channels=0))
    states = [now.state.image for now in iterates(runners, problem, y, start, [MeanWeights()] * 2)]
    assert torch.equal(states[0], problem.operator.initial(y))
    assert len(states) == 2


def test_units_do_not_matter() -> None:
    """The same scan in other units, at the scale of these units, gives the same image in these units."""
    cascade, (problem, y) = cascade_of(2), data_of()
    one = cascade(y, problem)
    other = cascade(1000 * y, dataclasses.replace(problem, scale=1000.0))
    assert torch.allclose(other.mean, 1000 * one.mean, rtol=1e-4, atol=1e-2)
    assert one.variance is not None
    assert other.variance is not None
    assert torch.allclose(other.variance, 1e6 * one.variance, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", ["weights", "all-weights"])
@pytest.mark.parametrize("images", [1, 3])
def test_a_replayed_graph_gives_the_same_samples(images: int, sampling: str) -> None:
    cascade = cascade_of().cuda()
    operator = ray_transform(small_parallel(SIZE), "cuda")
    problem = InverseProblem(operator, norm=12.0)
    settings = InferenceSettings(runner="fused", sampling=sampling)
    fast, serial = Sampler(cascade, settings), Sampler(cascade, dataclasses.replace(settings, schedule="serial"))
    plain = Sampler(cascade, dataclasses.replace(settings, runner="plain"))
    for turn in range(3):  # captured, then replayed with other data
        truth = torch.rand((images, 1, SIZE, SIZE), generator=torch.Generator().manual_seed(turn)).cuda()
        exact, found, alone = (
            sampler.estimate(problem, operator(truth), samples=40, seed=turn) for sampler in (plain, fast, serial)
        )
        assert torch.equal(found.image, alone.image)
        assert torch.equal(found.epistemic, alone.epistemic)
        assert (exact.image - found.image).abs().max() < 0.02 * exact.image.abs().max()
        assert (exact.epistemic - found.epistemic).abs().mean() < 0.05 * exact.epistemic.mean()
        assert exact.aleatoric is not None
        assert found.aleatoric is not None
        assert (exact.aleatoric - found.aleatoric).abs().mean() < 0.05 * exact.aleatoric.mean()


@pytest.mark.gpu
def test_features_in_single_precision_are_nearly_exact() -> None:
    worst = {}
    exact = estimate(cascade_of(), *data_of(), InferenceSettings(runner="plain"), samples=20, seed=0)
    for precision in ("half", "single"):
        settings = InferenceSettings(runner="fused", precision=precision)
        found = estimate(cascade_of().cuda(), *data_of(device="cuda"), settings, samples=20, seed=0)
        worst[precision] = float((found.image.cpu() - exact.image).abs().max())
    assert worst["single"] < 2e-6
    assert worst["half"] > 2 * worst["single"]


@pytest.mark.gpu
def test_what_is_not_sampled_is_in_full_precision() -> None:
    found = []
    for device in ("cpu", "cuda"):
        cascade = cascade_of(kind=deterministic).to(device)
        found.append(estimate(cascade, *data_of(device=device), InferenceSettings(), samples=3, seed=0).image.cpu())
    assert torch.allclose(*found, atol=2e-6)


@pytest.mark.parametrize("runner", ["plain", "perturbation"])
@pytest.mark.parametrize("sampling", ["weights", "activations"])
def test_threads_compute_no_gradients(runner: str, sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`no_grad` is of a thread; where gradients are computed, layers go another way, slower and not bit for bit the same."""
    if runner == "perturbation" and sampling == "activations":
        return
    seen: set[tuple[str, bool]] = set()
    original = PlainRunner.image

    def spied(*arguments: Any) -> Tensor:
        seen.add((threading.current_thread().name, torch.is_grad_enabled()))
        return original(*arguments)

    monkeypatch.setattr(PlainRunner, "image", spied)
    monkeypatch.setitem(monte_carlo.CHUNK_BYTES, "cpu", 1)  # one sample at a time
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        settings = InferenceSettings(sampling=sampling, runner=runner)
        estimate(cascade_of(), *data_of(), settings, samples=6, seed=0)
    finally:
        torch.set_num_threads(before)
    assert len({name for name, _ in seen} - {"MainThread"}) > 0
    assert not any(gradients for _, gradients in seen)


def test_the_seed_is_the_answer() -> None:
    cascade, (problem, y) = cascade_of(), data_of()
    one, again, other = (estimate(cascade, problem, y, InferenceSettings(), samples=5, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.epistemic, again.epistemic)
    assert not torch.equal(one.epistemic, other.epistemic)


def test_one_sample_of_something_random_claims_no_error() -> None:
    cascade, (problem, y) = cascade_of(), data_of()
    found = estimate(cascade, problem, y, InferenceSettings(), samples=1, seed=0)
    assert not found.has_errors
    assert found.relative_error() == float("inf")


def test_sampling_stops_at_the_tolerance() -> None:
    cascade, (problem, y) = cascade_of(), data_of()
    loose = estimate(cascade, problem, y, InferenceSettings(tolerance=0.3), samples=5000, seed=0)
    tight = estimate(cascade, problem, y, InferenceSettings(tolerance=0.05), samples=5000, seed=0)
    assert loose.samples < tight.samples < 5000
    assert tight.relative_error() <= 0.05
    assert loose.relative_error() <= 0.3


def test_a_schedule_that_cannot_be_is_named() -> None:
    with pytest.raises(UserError, match="graph needs the fused kernels on a GPU"):
        Sampler(cascade_of(1), InferenceSettings(schedule="graph"))
    cascade, (problem, y) = cascade_of(2), data_of()
    serial, threads = (
        estimate(cascade, problem, y, InferenceSettings(schedule=schedule), samples=4, seed=0)
        for schedule in ("serial", "threads")
    )
    assert torch.allclose(serial.image, threads.image, atol=1e-6)


def test_a_cascade_without_chance_needs_one_sample() -> None:
    cascade, (problem, y) = cascade_of(kind=deterministic), data_of()
    found = estimate(cascade, problem, y, InferenceSettings(), samples=100, seed=0)
    assert found.samples == 1
    assert torch.allclose(found.image.float(), cascade(y, problem).mean, atol=1e-6)
    assert found.has_errors
    assert float(found.epistemic.max()) == 0
    assert found.aleatoric is None


def test_one_block_in_closed_form_needs_one_sample() -> None:
    cascade, (problem, y) = cascade_of(1), data_of()
    exact = estimate(cascade, problem, y, InferenceSettings(), samples=100, seed=0)
    drawn = estimate(cascade, problem, y, InferenceSettings(sampling="all-weights"), samples=3000, seed=0)
    assert exact.samples == 1
    assert float(exact.epistemic_std_error.max()) == 0
    assert ((exact.image - drawn.image).abs() < 5 * drawn.image_error + 1e-7).all()


def test_activations_have_the_wrong_mean_over_a_region() -> None:
    cascade, (problem, y) = cascade_of(1), data_of()
    mask = torch.ones(SIZE, SIZE, dtype=torch.bool)
    stds = [
        sample_images(cascade, problem, y, InferenceSettings(sampling=kind), samples=1000, seed=0, aleatoric=False)
        .mean((-1, -2))
        .std(0)
        .mean()
        for kind in ("weights", "activations")
    ]
    by_means = region_mean(
        sample_images(cascade, problem, y, InferenceSettings(), samples=1000, seed=0, aleatoric=False),
        torch.full((2, 1, SIZE, SIZE), 0.04),
        mask,
    )
    assert stds[0] > 2 * stds[1]
    assert torch.allclose(by_means.aleatoric, torch.full((2,), 0.04 / SIZE**2).double())


def test_the_variance_of_a_region_is_the_mean_of_its_covariance() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn((50, 2, 1, 4, 5), generator=generator)
    aleatoric = torch.rand((2, 1, 4, 5), generator=generator)
    mask = torch.rand((4, 5), generator=generator) > 0.5
    covariance = region_covariance(samples, aleatoric, mask)
    inside = samples[:, :, 0][:, :, mask].double()
    one = torch.cov(inside[:, 1].T, correction=0) + torch.diag(aleatoric[1, 0][mask].double())
    assert torch.allclose(covariance[1], one)
    found = region_mean(samples, aleatoric, mask)
    assert torch.allclose(found.aleatoric + found.epistemic, covariance.mean((1, 2)))
    assert torch.allclose(found.mean, inside.mean((0, 2)))
    assert torch.allclose(found.std**2, covariance.mean((1, 2)))


def test_a_region_needs_a_pixel() -> None:
    samples, aleatoric = torch.zeros(3, 1, 1, 4, 4), torch.zeros(1, 1, 4, 4)
    with pytest.raises(UserError, match="a mask of booleans"):
        region_mean(samples, aleatoric, torch.zeros(4, 4, dtype=torch.bool))
    with pytest.raises(UserError, match="a mask of booleans"):
        region_covariance(samples, aleatoric, torch.ones(3, 4, dtype=torch.bool))


@pytest.mark.parametrize(
    "wrong",
    [{"sampling": "pixels"}, {"tolerance": 1.5}, {"runner": "fast"}, {"precision": "double"}, {"schedule": "late"}],
)
def test_settings_that_do_not_sample(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        InferenceSettings(**wrong)  # type: ignore[arg-type]
