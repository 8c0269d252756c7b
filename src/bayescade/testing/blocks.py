"""Checks of blocks and of their runners."""

from collections.abc import Callable

import torch
from torch import Tensor

from bayescade.bayes.layers import LastConv
from bayescade.blocks.block import Block, Features, State
from bayescade.blocks.runner import BlockRunner, PlainRunner
from bayescade.blocks.sampling import ActivationNoise, MeanWeights, SampledWeights, Sampling
from bayescade.testing._compare import expect_close, expect_shape, random_numbers

SAMPLES = 3


def check_block(
    block: Block,
    *,
    size: tuple[int, int] = (5, 6),
    samples: int = 20_000,
    seed: int = 0,
) -> None:
    """Checks a block, and changes it to float64.

    The next image has the shape of the image and no negative values. Variances are at least the floor. Without noise, all
    ways to sample give the same image. Closed-form moments agree with those of samples. The gradients are finite.
    """
    block = block.double()
    state, inputs = _random_inputs(block, 2, size, seed)
    features = block.features(state, inputs)
    runner = PlainRunner(block)
    at_mean = block(state, inputs, MeanWeights())
    expect_shape("image", at_mean.mean, state.image)
    assert bool((at_mean.mean >= 0).all()), "image: expected values of at least 0"
    if at_mean.variance is not None and block.variance is not None:
        least = float(at_mean.variance.detach().min())
        assert least >= block.variance.floor, f"variance: expected at least {block.variance.floor:g}, got {least:g}"
    _check_without_noise(block, state, inputs, at_mean.mean)
    if block.layers:
        _check_moments(runner, state, features, samples, seed)
    noise = {layer: random_numbers(tuple(state.image.shape), torch.float64, "cpu", seed + 3) for layer in block.layers}
    prediction = block(state, inputs, ActivationNoise(noise))
    loss = prediction.mean.square().sum()
    loss = loss + prediction.variance.sum() if prediction.variance is not None else loss
    parameters = dict(block.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    for name, gradient in zip(parameters, gradients, strict=True):
        assert gradient is None or bool(torch.isfinite(gradient).all()), f"gradient of {name}: expected finite numbers"


def _check_without_noise(block: Block, state: State, inputs: Tensor, mean_image: Tensor) -> None:
    """Without noise, every way to sample gives the image of the mean weights."""
    zeros = {layer: torch.zeros_like(layer.weight) for layer in block.layers}
    without_noise: list[Sampling] = [ActivationNoise({layer: torch.zeros_like(state.image) for layer in block.layers})]
    without_noise += [SampledWeights(PlainRunner(block).sample_weights(zeros))] if zeros else []
    for sampling in without_noise:
        expect_close(f"{type(sampling).__name__} without noise", block(state, inputs, sampling).mean, mean_image, 1e-12)


@torch.no_grad()
def _check_moments(runner: PlainRunner, state: State, features: Features, samples: int, seed: int) -> None:
    """Compares the closed-form mean and variance of the next image, and the closed-form mean of the aleatoric variance, with
    those of samples. They may differ by five standard errors."""
    image, aleatoric = runner.moments(state, features)
    noise = _weight_noise(runner.block, samples, seed)
    sampling = SampledWeights(runner.sample_weights(noise))
    images = runner.image(state, features, sampling).reshape(samples, *state.image.shape)
    standard_error = images.std(0) / samples**0.5
    assert bool(((image.mean - images.mean(0)).abs() <= 5 * standard_error + 1e-9).all()), (
        "moments: the mean is not the mean of the samples"
    )
    assert image.variance is not None
    squares = (images - images.mean(0)).square()
    standard_error = squares.std(0) / samples**0.5
    difference = (image.variance - squares.mean(0)).abs()
    assert bool((difference <= 5 * standard_error + 1e-12).all()), (
        "moments: the variance is not the variance of the samples"
    )
    variances = runner.variance(state, features, sampling)
    if aleatoric is None or variances is None:
        assert aleatoric is None
        assert variances is None
        return
    variances = variances.expand(samples * len(state.image), *state.image.shape[1:]).reshape(images.shape)
    standard_error = variances.std(0) / samples**0.5
    difference = (aleatoric - variances.mean(0)).abs()
    assert bool((difference <= 5 * standard_error + 1e-12).all()), (
        "moments: the aleatoric variance is not the mean over the samples"
    )


@torch.no_grad()
def check_runner(
    make: Callable[[Block], BlockRunner],
    block: Block,  # on the device and in the precision of the images
    *,
    tolerance: float,
    size: tuple[int, int] = (7, 9),
    seed: int = 0,
) -> None:
    """Checks that a runner gives the same next image, memory, variance and moments as the plain layers.

    There are three cases: mean weights; samples of the weights with one image that all samples share; and samples of the
    weights with a different image for each sample.
    """
    plain, runner = PlainRunner(block), make(block)
    state, inputs = _random_inputs(block, 2, size, seed)
    _compare_runners(plain, runner, state, inputs, MeanWeights(), MeanWeights(), tolerance)
    if not block.layers:
        return
    noise = _weight_noise(block, SAMPLES, seed)
    plain_samples = SampledWeights(plain.sample_weights(noise))
    runner_samples = SampledWeights(runner.sample_weights(noise))
    _compare_runners(plain, runner, state, inputs, plain_samples, runner_samples, tolerance)

    def different_copies(tensor: Tensor, seed: int) -> Tensor:
        tensor = tensor.repeat(SAMPLES, 1, 1, 1)
        noise = random_numbers(tuple(tensor.shape), torch.float64, "cpu", seed).to(tensor)
        return tensor + 1e-2 * noise

    memory = different_copies(state.memory, seed + 5) if state.memory is not None else None
    states = State(different_copies(state.image, seed + 6), memory, per_sample=True)
    different_inputs = different_copies(inputs, seed + 7)
    _compare_runners(plain, runner, states, different_inputs, plain_samples, runner_samples, tolerance)


def _compare_runners(
    plain: PlainRunner,
    runner: BlockRunner,
    state: State,
    inputs: Tensor,
    plain_sampling: Sampling,
    runner_sampling: Sampling,  # the same weights, in the layout of the runner
    tolerance: float,
) -> None:
    images = "one image per sample" if state.per_sample else "one image"
    what = f"{type(runner).__name__}, {type(plain_sampling).__name__}, {images}"
    plain_features, features = plain.features(state, inputs), runner.features(state, inputs)
    expected_next = plain.image(state, plain_features, plain_sampling)
    expect_close(f"{what}: image", runner.image(state, features, runner_sampling), expected_next, tolerance)
    (image, aleatoric), (expected_image, expected_aleatoric) = (
        runner.moments(state, features),
        plain.moments(state, plain_features),
    )
    for name, result, expected in (
        ("memory", runner.memory(state, features), plain.memory(state, plain_features)),
        (
            "variance",
            runner.variance(state, features, runner_sampling),
            plain.variance(state, plain_features, plain_sampling),
        ),
        ("closed-form mean of the variance", aleatoric, expected_aleatoric),
        ("closed-form mean of the image", image.mean, expected_image.mean),
        ("closed-form variance of the image", image.variance, expected_image.variance),
    ):
        assert (result is None) == (expected is None), f"{what}: {name}: only one of the two runners gives it"
        if result is not None and expected is not None:
            expect_close(f"{what}: {name}", result, expected, tolerance)


def _random_inputs(block: Block, images: int, size: tuple[int, int], seed: int) -> tuple[State, Tensor]:
    """A random state and random inputs, with the number of channels of the block."""
    like = block.last.weight
    shape = (images, 1 + block.memory_channels + len(block.input_scale), *size)
    planes = random_numbers(shape, torch.float64, "cpu", seed).to(like).abs()
    state_channels = 1 + block.memory_channels
    return State.unstacked(planes[:, :state_channels]), planes[:, state_channels:]


def _weight_noise(block: Block, samples: int, seed: int) -> dict[LastConv, Tensor]:
    return {
        layer: random_numbers((samples, *layer.weight.shape[1:]), torch.float64, "cpu", seed + 1 + index).to(
            layer.weight
        )
        for index, layer in enumerate(block.layers)
    }
