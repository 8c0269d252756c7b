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
from bayescade.blocks._fused import FusedImages
from bayescade.errors import UserError
from bayescade.inference.moments import Estimate, StreamingMoments
from bayescade.kernels._triton import KERNELS, check_kernels
from bayescade.networks.cascade import Cascade, Data
from bayescade.progress import Advance, quiet
from bayescade.seeds import derived_seed

# Bytes of features worked on at once: what stays in the cache of a CPU; on a GPU at most a quarter of what is free.
CHUNK_BYTES = {"cpu": 3 * 2**24, "cuda": 2**33}
MOST_PASSES = 128
# Samples between looks at a tolerance, whatever the memory: so the answer does not depend on the machine.
LOOK_EVERY = 8


@dataclasses.dataclass(frozen=True)
class InferenceSettings:
    """How a trained cascade is sampled."""

    draws: str = "weights"  # weights, or activations (the paper)
    analytic: bool = True  # the last block's weights are integrated in closed form, not drawn
    # plain, or fused: Triton kernels for a GPU with features in half precision, for draws of weights.
    kernels: str = "plain"
    tolerance: float = 0.0  # stop when the relative error of the epistemic std is at most this; 0 = take all samples

    def __post_init__(self) -> None:
        if self.draws not in ("weights", "activations"):
            raise UserError(f"setting draws: expected weights or activations, got '{self.draws}'")
        if self.kernels not in KERNELS:
            raise UserError(f"setting kernels: expected {', '.join(KERNELS)}, got '{self.kernels}'")
        if not 0 <= self.tolerance < 1:
            raise UserError(f"setting tolerance: expected at least 0 and less than 1, got {self.tolerance}")


@torch.no_grad()
def estimate(
    cascade: Cascade,
    data: Data,
    first: Tensor,  # (batch, 1, height, width): the first image
    settings: InferenceSettings,
    *,
    samples: int,
    seed: int,
    place: int = 0,  # of the first image among all
    advance: Advance = quiet,  # told of every sample
) -> Estimate:
    """Mean, aleatoric and epistemic variance of every image, from at most `samples` draws."""
    moments = StreamingMoments()
    chance = is_random(cascade, settings.analytic)
    runs = sample_runs(cascade, data, first, settings, settings.analytic, samples=samples, seed=seed, place=place)
    for run in runs:
        moments.add(run.mean, run.variance, run.aleatoric)
        advance(len(run.mean))
        if settings.tolerance and moments.samples % LOOK_EVERY == 0:
            found = moments.estimate(chance)
            if found.relative_error() <= settings.tolerance:
                return found
    return moments.estimate(chance)


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
    place: int = 0,  # of the first image among all
) -> Tensor:
    """Draws of the image, (samples, batch, 1, height, width): of the model alone, or of model and data."""
    drawn = []
    for run in sample_runs(cascade, data, first, settings, False, samples=samples, seed=seed, place=place):
        image = run.mean
        if aleatoric and run.aleatoric is not None:
            noise = torch.cat([normals(first, place, seed, "aleatoric", t) for t in run.draws])
            image = image + noise.reshape(image.shape) * run.aleatoric.sqrt()
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
    analytic: bool,
    *,
    samples: int,
    seed: int,
    place: int,
) -> Iterator[SampleRun]:
    """The samples, as many at a time as fit memory comfortably."""
    if samples < 1:
        raise UserError(f"samples: expected at least 1, got {samples}")
    blocks = [cascade.block(number) for number in range(len(cascade))]
    total = samples if is_random(cascade, analytic) else 1  # without chance one sample is all there is
    number = max(1, passes_at_once(cascade, (first.shape[-2], first.shape[-1]), first.device) // len(first))
    if settings.tolerance:
        number = min(number, LOOK_EVERY)
        while LOOK_EVERY % number:
            number -= 1
    check_kernels(settings.kernels, first.device)
    fast: list[FusedImages] = []
    if settings.kernels == "fused" and settings.draws == "weights":
        half = torch.float16 if first.is_cuda else first.dtype
        fast = [FusedImages(block, half) for block in blocks[:-1] if block.layers]
    start = Start.of(blocks[0], data, first)
    for begin in range(0, total, number):
        draws = range(begin, min(begin + number, total))
        yield sample(blocks, fast, data, start, settings.draws, draws, seed, place, analytic)


@dataclasses.dataclass(frozen=True)
class Start:
    """What all samples share: the first image, and the features of the first block there."""

    image: Tensor  # (batch, 1, height, width)
    features: Tensor  # (batch, c, height, width)

    @classmethod
    def of(cls, block: Block, data: Data, image: Tensor) -> "Start":
        """The start of a cascade that begins with this block."""
        return cls(image, block.features(image, data.gradient(image))[1])


def is_random(cascade: Cascade, analytic: bool) -> bool:
    """Whether anything is drawn."""
    drawn = len(cascade) - 1 if analytic else len(cascade)
    return any(cascade.block(number).layers for number in range(drawn))


def passes_at_once(cascade: Cascade, shape: tuple[int, int], device: torch.device) -> int:
    """How many images, or samples of one, fit the memory set aside."""
    widest = max(max(parameter.shape[:2]) for parameter in cascade.parameters() if parameter.ndim == 4)
    room = CHUNK_BYTES[device.type]
    if device.type == "cuda":
        room = min(room, torch.cuda.mem_get_info(device)[0] // 4)
    return max(1, min(MOST_PASSES, room // (4 * 3 * widest * shape[0] * shape[1])))


def sample(
    blocks: Sequence[Block],
    fast: Sequence[FusedImages],  # the same but the last, or none
    data: Data,
    start: Start,
    kind: str,  # weights or activations
    draws: range,
    seed: int,
    place: int,  # of the first image among all
    analytic: bool,
) -> SampleRun:
    """Some draws, pushed through all blocks; the last one's weights are integrated where `analytic`."""
    first = start.image
    noise = weight_noise(blocks, draws, seed, first.device) if kind == "weights" else []
    x = first if kind == "weights" else first.repeat(len(draws), 1, 1, 1)
    last = len(blocks) - 1
    variance: Tensor | None = None
    aleatoric: Tensor | None = None
    for number, block in enumerate(blocks):
        draw: Draw = MeanDraw()
        if block.layers and kind == "weights":
            draw = WeightDraw(noise[number], shared=number == 0)
        elif block.layers:
            draw = ActivationDraw(activation_noise(block, number, draws, seed, place, first))
        if fast and number < last:
            weights = block.last.draw(noise[number][0])
            x = fast[number].image(x, data.gradient(x), weights, shared=number == 0)
        elif number == 0 and number < last and kind == "weights":
            x = block.image_of(x, start.features, draw)
        elif number < last:
            x = block.image(x, data.gradient(x), draw)
        elif analytic:
            moments, aleatoric = block.moments(x, data.gradient(x))
            x, variance = moments.mean, moments.variance
        else:
            prediction = block(x, data.gradient(x), draw)
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


def activation_noise(block: Block, number: int, draws: range, seed: int, place: int, first: Tensor) -> list[Tensor]:
    """Standard normals for every pixel of every sample, (samples * batch, 1, height, width) per random layer."""
    return [
        torch.cat([normals(first, place, seed, "activations", t, number, layer) for t in draws])
        for layer in range(len(block.layers))
    ]


def normals(like: Tensor, place: int, *names: int | str) -> Tensor:
    """Standard normals like the images; those of an image depend on the names and its place only."""
    drawn = []
    for image in range(place, place + len(like)):
        generator = torch.Generator().manual_seed(derived_seed(*names, image))
        drawn.append(torch.randn((1, *like.shape[1:]), generator=generator))
    return torch.cat(drawn).to(like.device)
