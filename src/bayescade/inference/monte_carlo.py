"""Samples of a cascade: T draws of all its random weights, each pushed through all blocks for every image.

Draw t is one tensor per layer for all pixels and all images, and depends on the seed and t only: not on the device, not on how
images or draws are cut into runs. `activations` is the paper's way: noise of its own in every pixel of every block, which
gives each pixel the right variance behind one block, and the wrong one to every mean over pixels and to the blocks that follow.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bayescade.blocks._block import ActivationDraw, Block, Draw, MeanDraw, WeightDraw
from bayescade.errors import UserError
from bayescade.inference.moments import Estimate, StreamingMoments
from bayescade.networks.cascade import Cascade, Data
from bayescade.progress import Advance, quiet
from bayescade.seeds import derived_seed

CHUNK_BYTES = {"cpu": 2**27, "cuda": 2**33}  # of features held at once
FEWEST = 8  # samples before a tolerance is believed


@dataclasses.dataclass(frozen=True)
class InferenceSettings:
    """How a trained cascade is sampled."""

    draws: str = "weights"  # weights, or activations (the paper)
    analytic: bool = True  # the last block's weights are integrated in closed form, not drawn
    tolerance: float = 0.0  # stop when the relative error of the epistemic std is at most this; 0 = take all samples

    def __post_init__(self) -> None:
        if self.draws not in ("weights", "activations"):
            raise UserError(f"setting draws: expected weights or activations, got '{self.draws}'")
        if not 0 <= self.tolerance < 1:
            raise UserError(f"setting tolerance: expected a number from 0 to 1, got {self.tolerance}")


@torch.no_grad()
def estimate(
    cascade: Cascade,
    data: Data,
    first: Tensor,  # (batch, 1, height, width): the first image
    settings: InferenceSettings,
    *,
    samples: int,
    seed: int,
    advance: Advance = quiet,  # told of every sample
) -> Estimate:
    """Mean, aleatoric and epistemic variance of every image, from at most `samples` draws."""
    moments = StreamingMoments()
    for run in sample_runs(cascade, data, first, settings, samples=samples, seed=seed, analytic=settings.analytic):
        moments.add(run.mean, run.variance, run.aleatoric)
        advance(len(run.mean))
        if settings.tolerance and moments.samples >= FEWEST:
            found = moments.estimate()
            if found.relative_error() <= settings.tolerance:
                return found
    return moments.estimate()


@torch.no_grad()
def draw_images(
    cascade: Cascade,
    data: Data,
    first: Tensor,
    settings: InferenceSettings,
    *,
    samples: int,
    seed: int,
    aleatoric: bool,
) -> Tensor:
    """Draws of the image, (samples, batch, 1, height, width): of the model alone, or of model and data."""
    drawn = []
    for run in sample_runs(cascade, data, first, settings, samples=samples, seed=seed, analytic=False):
        image = run.mean
        if aleatoric and run.aleatoric is not None:
            noise = [_normal(image.shape[1:], derived_seed(seed, "aleatoric", t)) for t in run.draws]
            image = image + torch.stack(noise).to(image.device) * run.aleatoric.sqrt()
        drawn.append(image)
    return torch.cat(drawn)


@dataclasses.dataclass(frozen=True)
class SampleRun:
    """Some samples of all images; what each is, is said in `moments`."""

    draws: range
    mean: Tensor  # (samples, batch, 1, height, width)
    variance: Tensor | None
    aleatoric: Tensor | None


def sample_runs(
    cascade: Cascade,
    data: Data,
    first: Tensor,
    settings: InferenceSettings,
    *,
    samples: int,
    seed: int,
    analytic: bool,
) -> Iterator[SampleRun]:
    """The samples, as many at a time as fit memory comfortably."""
    if samples < 1:
        raise UserError(f"samples: expected at least 1, got {samples}")
    blocks = [cascade.block(place) for place in range(len(cascade))]
    drawn = blocks[:-1] if analytic else blocks
    total = samples if any(block.layers for block in drawn) else 1  # without chance one sample is all there is
    number = samples_at_once(cascade, first)
    for begin in range(0, total, number):
        yield sample(blocks, data, first, settings.draws, range(begin, min(begin + number, total)), seed, analytic)


def samples_at_once(cascade: Cascade, first: Tensor) -> int:
    """How many samples of the batch fit the memory set aside."""
    widest = max(parameter.shape[1] for parameter in cascade.parameters() if parameter.ndim == 4)
    bytes_each = 4 * 3 * widest * first.numel()
    return max(1, min(128, CHUNK_BYTES[first.device.type] // bytes_each))


def sample(
    blocks: Sequence[Block],
    data: Data,
    first: Tensor,
    kind: str,  # weights or activations
    draws: range,
    seed: int,
    analytic: bool,
) -> SampleRun:
    """Some draws, pushed through all blocks; the last one's weights are integrated where `analytic`."""
    noise = weight_noise(blocks, draws, seed, first.device) if kind == "weights" else []
    x = first if kind == "weights" else first.repeat(len(draws), 1, 1, 1)
    variance: Tensor | None = None
    aleatoric: Tensor | None = None
    for place, block in enumerate(blocks):
        gradient = data.gradient(x)
        if analytic and place == len(blocks) - 1:
            moments, aleatoric = block.moments(x, gradient)
            x, variance = moments.mean, moments.variance
            break
        draw: Draw = MeanDraw()
        if block.layers and kind == "weights":
            draw = WeightDraw(noise[place], shared=place == 0)
        elif block.layers:
            draw = ActivationDraw(activation_noise(block, place, draws, seed, first))
        if place < len(blocks) - 1:
            x = block.image(x, gradient, draw)
        else:
            prediction = block(x, gradient, draw)
            x, aleatoric = prediction.mean, prediction.variance

    def each(maps: Tensor) -> Tensor:
        return maps.expand(len(x), *first.shape[1:]).reshape(-1, *first.shape)

    return SampleRun(
        draws,
        each(x),
        each(variance) if variance is not None else None,
        each(aleatoric) if aleatoric is not None else None,
    )


def weight_noise(blocks: Sequence[Block], draws: range, seed: int, device: torch.device) -> list[list[Tensor]]:
    """Standard normals of every random layer of every block, (samples, channels, 3, 3) each."""
    noise: list[list[list[Tensor]]] = [[[] for _ in block.layers] for block in blocks]
    for t in draws:
        generator = torch.Generator().manual_seed(derived_seed(seed, "draw", t))
        for place, block in enumerate(blocks):
            for number, layer in enumerate(block.layers):
                noise[place][number].append(torch.randn(layer.weight.shape, generator=generator))
    return [[torch.cat(layer).to(device) for layer in block] for block in noise]


def activation_noise(block: Block, place: int, draws: range, seed: int, first: Tensor) -> list[Tensor]:
    """Standard normals for every pixel of every sample, (samples * batch, 1, height, width) per random layer."""
    layers: list[list[Tensor]] = [[] for _ in block.layers]
    for t in draws:
        for number, layer in enumerate(layers):
            layer.append(_normal(first.shape, derived_seed(seed, "activations", t, place, number)))
    return [torch.cat(layer).to(first.device) for layer in layers]


def _normal(shape: torch.Size, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
