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
    """Shapes; the ways to sample agree where nothing is random; closed-form moments are those of samples; variances are
    above the floor; every parameter has a finite gradient. The block is changed to float64."""
    block = block.double()
    state, inputs = _inputs(block, 2, size, seed)
    features = block.features(state, inputs)
    runner = PlainRunner(block)
    mean = block(state, inputs, MeanWeights())
    expect_shape("image", mean.mean, state.image)
    assert bool((mean.mean >= 0).all()), "image: expected values of at least 0"
    if mean.variance is not None and block.variance is not None:
        least = float(mean.variance.detach().min())
        assert least >= block.variance.floor, f"variance: expected at least {block.variance.floor:g}, got {least:g}"
    _check_without_noise(block, state, inputs, mean.mean)
    if block.layers:
        _check_moments(runner, state, features, samples, seed)
    noise = {layer: random_numbers(tuple(state.image.shape), torch.float64, "cpu", seed + 3) for layer in block.layers}
    prediction = block(state, inputs, ActivationNoise(noise))
    loss = prediction.mean.square().sum()
    loss = loss + prediction.variance.sum() if prediction.variance is not None else loss
    parameters = dict(block.named_parameters())
    slopes = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    for name, slope in zip(parameters, slopes, strict=True):
        assert slope is None or bool(torch.isfinite(slope).all()), f"gradient of {name}: expected finite numbers"


def _check_without_noise(block: Block, state: State, inputs: Tensor, mean: Tensor) -> None:
    """Noise of zero gives the mean weights."""
    zeros = {layer: torch.zeros_like(layer.weight) for layer in block.layers}
    still: list[Sampling] = [ActivationNoise({layer: torch.zeros_like(state.image) for layer in block.layers})]
    still += [SampledWeights(PlainRunner(block).sample_weights(zeros))] if zeros else []
    for sampling in still:
        expect_close(f"{type(sampling).__name__} without noise", block(state, inputs, sampling).mean, mean, 1e-12)


@torch.no_grad()
def _check_moments(runner: PlainRunner, state: State, features: Features, samples: int, seed: int) -> None:
    """Mean and variance of the next image, and the mean of the aleatoric variance, against samples: five standard errors."""
    image, aleatoric = runner.moments(state, features)
    noise = _weight_noise(runner.block, samples, seed)
    sampling = SampledWeights(runner.sample_weights(noise))
    images = runner.image(state, features, sampling).reshape(samples, *state.image.shape)
    error = images.std(0) / samples**0.5
    assert bool(((image.mean - images.mean(0)).abs() <= 5 * error + 1e-9).all()), (
        "moments: the mean is not that of samples"
    )
    assert image.variance is not None
    squares = (images - images.mean(0)).square()
    error = squares.std(0) / samples**0.5
    difference = (image.variance - squares.mean(0)).abs()
    assert bool((difference <= 5 * error + 1e-12).all()), "moments: the variance is not that of samples"
    variances = runner.variance(state, features, sampling)
    if aleatoric is None or variances is None:
        assert aleatoric is None
        assert variances is None
        return
    variances = variances.expand(samples * len(state.image), *state.image.shape[1:]).reshape(images.shape)
    error = variances.std(0) / samples**0.5
    difference = (aleatoric - variances.mean(0)).abs()
    assert bool((difference <= 5 * error + 1e-12).all()), "moments: the aleatoric variance is not the mean over samples"


@torch.no_grad()
def check_runner(
    make: Callable[[Block], BlockRunner],
    block: Block,  # on the device and in the precision of the images
    *,
    tolerance: float,
    size: tuple[int, int] = (7, 9),
    seed: int = 0,
) -> None:
    """The same next image, memory, variance and moments as the plain layers: for mean weights, for samples of the weights with
    one image for all of them, and with an image for each."""
    plain, runner = PlainRunner(block), make(block)
    state, inputs = _inputs(block, 2, size, seed)
    _compare_runners(plain, runner, state, inputs, MeanWeights(), MeanWeights(), tolerance)
    if not block.layers:
        return
    noise = _weight_noise(block, SAMPLES, seed)
    ours, theirs = (SampledWeights(one.sample_weights(noise)) for one in (plain, runner))
    _compare_runners(plain, runner, state, inputs, ours, theirs, tolerance)

    def repeated(tensor: Tensor, seed: int) -> Tensor:
        tensor = tensor.repeat(SAMPLES, 1, 1, 1)
        noise = random_numbers(tuple(tensor.shape), torch.float64, "cpu", seed).to(tensor)
        return tensor + 1e-2 * noise

    memory = repeated(state.memory, seed + 5) if state.memory is not None else None
    several = State(repeated(state.image, seed + 6), memory, repeated=True)
    _compare_runners(plain, runner, several, repeated(inputs, seed + 7), ours, theirs, tolerance)


def _compare_runners(
    plain: PlainRunner,
    runner: BlockRunner,
    state: State,
    inputs: Tensor,
    ours: Sampling,
    theirs: Sampling,
    tolerance: float,
) -> None:
    what = f"{type(runner).__name__}, {type(ours).__name__}, {'one image each' if state.repeated else 'one image'}"
    known, features = plain.features(state, inputs), runner.features(state, inputs)
    expect_close(f"{what}: image", runner.image(state, features, theirs), plain.image(state, known, ours), tolerance)
    (image, aleatoric), (expected_image, expected_aleatoric) = (
        runner.moments(state, features),
        plain.moments(state, known),
    )
    for name, result, expected in (
        ("memory", runner.memory(state, features), plain.memory(state, known)),
        ("variance", runner.variance(state, features, theirs), plain.variance(state, known, ours)),
        ("mean of the variance", aleatoric, expected_aleatoric),
        ("mean", image.mean, expected_image.mean),
        ("variance of the mean", image.variance, expected_image.variance),
    ):
        assert (result is None) == (expected is None), f"{what}: {name}: one has it, the other not"
        if result is not None and expected is not None:
            expect_close(f"{what}: {name}", result, expected, tolerance)


def _inputs(block: Block, images: int, size: tuple[int, int], seed: int) -> tuple[State, Tensor]:
    """A state and inputs that fit the block."""
    like = block.last.weight
    shape = (images, 1 + block.memory_channels + len(block.input_scale), *size)
    planes = random_numbers(shape, torch.float64, "cpu", seed).to(like).abs()
    split = 1 + block.memory_channels
    return State.unstacked(planes[:, :split]), planes[:, split:]


def _weight_noise(block: Block, samples: int, seed: int) -> dict[LastConv, Tensor]:
    return {
        layer: random_numbers((samples, *layer.weight.shape[1:]), torch.float64, "cpu", seed + 1 + index).to(
            layer.weight
        )
        for index, layer in enumerate(block.layers)
    }
