"""Samples of a cascade: T draws of all its random weights, each pushed through all blocks for every image.

Draw t is one tensor per layer for all pixels and all images, and depends on the seed and t only: not on the device, not on how
images or draws are cut into runs. `activations` is the paper's way: noise of its own in every pixel of every block, which
gives each pixel the right variance behind one block, and the wrong one to every mean over pixels and to the blocks that follow.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from bayescade.blocks.block import ActivationDraw, Block, Draw, MeanDraw, WeightDraw
from bayescade.devices import available_bytes, full_precision, has_bfloat16
from bayescade.errors import UserError
from bayescade.inference.fused import FusedSampler
from bayescade.inference.moments import Estimate, StreamingMoments
from bayescade.inference.noise import activation_noise, by_layer, normals, weight_noise
from bayescade.inference.perturbation import NARROW, near_blocks, near_bytes
from bayescade.inference.threads import in_order
from bayescade.kernels._triton import check_kernels, is_fused
from bayescade.networks.cascade import Cascade, Data
from bayescade.progress import Advance, quiet

# Bytes of features worked on at once, on a CPU by each of its threads: what stays in the cache; on a GPU at most a quarter of
# what is free.
CHUNK_BYTES = {"cpu": 3 * 2**24, "cuda": 2**33}
MOST_PASSES = 128
# Bytes of features that samples by differences may keep: a fixed number, so that memory decides no answer.
MOST_NEAR = 2**32
# Samples between looks at a tolerance, whatever the memory: so the answer does not depend on the machine.
LOOK_EVERY = 8


@dataclasses.dataclass(frozen=True)
class InferenceSettings:
    """How a trained cascade is sampled."""

    draws: str = "weights"  # weights, or activations (the paper)
    analytic: bool = True  # the last block's weights are integrated in closed form, not drawn
    # fused: Triton kernels, for draws of weights; differences: on a CPU what draws change, in bfloat16; plain; auto = fused on
    # a GPU, differences on a CPU that gains by them.
    kernels: str = "auto"
    features: str = "half"  # of the fused kernels on a GPU: half precision, or single, where rounding grows on its way
    tolerance: float = 0.0  # stop when the relative error of the epistemic std is at most this; 0 = take all samples

    def __post_init__(self) -> None:
        if self.draws not in ("weights", "activations"):
            raise UserError(f"setting draws: expected weights or activations, got '{self.draws}'")
        check_kernels(self.kernels, "differences")
        if self.kernels == "differences" and self.draws != "weights":
            raise UserError("setting kernels: differences are for draws=weights")
        if self.features not in ("half", "single"):
            raise UserError(f"setting features: expected half or single, got '{self.features}'")
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
    fast: FusedSampler | None = None,  # of this cascade, kept from call to call; see `sampler_of`
    advance: Advance = quiet,  # told of every sample
) -> Estimate:
    """Mean, aleatoric and epistemic variance of every image, from at most `samples` draws."""
    moments = StreamingMoments()
    chance = is_random(cascade, settings.analytic)
    fast = fast or sampler_of(cascade, settings)
    analytic = settings.analytic
    for run in sample_runs(cascade, data, first, settings, analytic, fast, samples=samples, seed=seed, place=place):
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
    fast: FusedSampler | None = None,
) -> Tensor:
    """Draws of the image, (samples, batch, 1, height, width): of the model alone, or of model and data."""
    drawn = []
    fast = fast or sampler_of(cascade, settings)
    for run in sample_runs(cascade, data, first, settings, False, fast, samples=samples, seed=seed, place=place):
        image = run.mean.clone()
        if aleatoric and run.aleatoric is not None:
            noise = torch.cat([normals(first, place, seed, "aleatoric", t) for t in run.draws])
            image = image + noise.reshape(image.shape) * run.aleatoric.sqrt()
        drawn.append(image)
    return torch.cat(drawn)


def sampler_of(cascade: Cascade, settings: InferenceSettings) -> FusedSampler | None:
    """The cascade by the fused kernels, where the settings and its device say so; `auto` does without where nothing is drawn:
    one pass is fast enough in full precision."""
    wanted = is_fused(settings.kernels, next(cascade.parameters()).device)
    if settings.kernels == "auto" and not is_random(cascade, settings.analytic):
        return None
    return FusedSampler(cascade, settings.features == "half") if wanted and settings.draws == "weights" else None


@dataclasses.dataclass(frozen=True)
class SampleRun:
    """Some samples of all images; what each is, is said in `moments`."""

    draws: range
    mean: Tensor  # (samples, batch, 1, height, width)
    variance: Tensor | None
    aleatoric: Tensor | None

    @classmethod
    def of(
        cls, draws: range, first: Tensor, mean: Tensor, variance: Tensor | None, aleatoric: Tensor | None
    ) -> "SampleRun":
        """From maps with samples in front, (samples * batch, 1, height, width); the variances may be one for all."""

        def each(maps: Tensor) -> Tensor:
            return maps.expand(len(mean), *first.shape[1:]).reshape(-1, *first.shape)

        return cls(
            draws,
            each(mean),
            each(variance) if variance is not None else None,
            each(aleatoric) if aleatoric is not None else None,
        )


def sample_runs(
    cascade: Cascade,
    data: Data,
    first: Tensor,
    settings: InferenceSettings,
    analytic: bool,
    fast: FusedSampler | None,
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
    parts = [range(begin, min(begin + number, total)) for begin in range(0, total, number)]
    if fast is not None:
        yield from fused_runs(fast, blocks, data, first, parts, analytic, seed=seed)
        return
    applied: Sequence[Applied] = [WholeBlock(block) for block in blocks]
    if not is_random(cascade, analytic):
        with full_precision():
            alone = sample(
                applied, data, Start.of(applied[0], data, first), settings.draws, parts[0], seed, place, analytic
            )
        yield alone
        return
    if by_differences(settings, blocks, first):
        applied = near_blocks(blocks, data, first, NARROW)
    start = Start.of(applied[0], data, first)

    def work(draws: range) -> SampleRun:
        return sample(applied, data, start, settings.draws, draws, seed, place, analytic)

    if first.device.type == "cpu":
        part = pass_bytes(cascade, (first.shape[-2], first.shape[-1])) * len(parts[0]) * len(first)
        yield from in_order(work, parts, most=available_bytes(first.device) // 4 // part)
    else:
        yield from map(work, parts)


def fused_runs(
    fast: FusedSampler,
    blocks: Sequence[Block],
    data: Data,
    first: Tensor,
    parts: Sequence[range],  # of the draws, all but the last of one length
    analytic: bool,
    *,
    seed: int,
) -> Iterator[SampleRun]:
    """Part after part by the fused kernels, the weights of several parts drawn at once."""
    together = max(1, MOST_PASSES // len(parts[0]))
    for begin in range(0, len(parts), together):
        several = parts[begin : begin + together]
        start = several[0].start
        noise = weight_noise(blocks, range(start, several[-1].stop), seed, first)
        for draws in several:
            drawn = fast.sample(data, first, noise, slice(draws.start - start, draws.stop - start), analytic)
            yield SampleRun.of(draws, first, drawn.mean, drawn.variance, drawn.aleatoric)


def by_differences(settings: InferenceSettings, blocks: Sequence[Block], first: Tensor) -> bool:
    """Whether draws go by what they change: on CPUs that gain by it, unless what it is a change of is very large."""
    on_cpu = first.device.type == "cpu"
    if settings.kernels == "differences" and not on_cpu:
        raise UserError("setting kernels: differences are for a CPU; use kernels=auto")
    if settings.kernels != "auto":
        return settings.kernels == "differences"
    if settings.draws != "weights" or not on_cpu or first.dtype != torch.float32 or not has_bfloat16():
        return False
    return near_bytes(blocks, first, NARROW) < MOST_NEAR


class Applied(Protocol):
    """A block as samples use it."""

    @property
    def block(self) -> Block:
        """The block itself."""

    def features(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Its inputs side by side, and the common features."""

    def variance(self, inputs: Tensor, h: Tensor, draw: Draw | None) -> Tensor | None:
        """The variance for a draw; without one its mean over the weights."""


@dataclasses.dataclass(frozen=True)
class WholeBlock:
    """A block as it is."""

    block: Block

    def features(self, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Its inputs side by side, and the common features."""
        return self.block.features(x, gradient)

    def variance(self, inputs: Tensor, h: Tensor, draw: Draw | None) -> Tensor | None:
        """The variance for a draw; without one its mean over the weights."""
        net = self.block.variance
        if net is None:
            return None
        found: Tensor = net.expected(inputs, h) if draw is None else net(inputs, h, draw)
        return found


@dataclasses.dataclass(frozen=True)
class Start:
    """What all samples share: the first image, and what the first block makes of it."""

    image: Tensor  # (batch, 1, height, width)
    inputs: Tensor  # (batch, 2, height, width)
    features: Tensor  # (batch, c, height, width)

    @classmethod
    def of(cls, applied: Applied, data: Data, image: Tensor) -> "Start":
        """The start of a cascade that begins with this block."""
        return cls(image, *applied.features(image, data.gradient(image)))


def is_random(cascade: Cascade, analytic: bool) -> bool:
    """Whether anything is drawn."""
    drawn = len(cascade) - 1 if analytic else len(cascade)
    return any(cascade.block(number).layers for number in range(drawn))


def passes_at_once(cascade: Cascade, shape: tuple[int, int], device: torch.device) -> int:
    """How many images, or samples of one, fit the memory set aside."""
    room = CHUNK_BYTES[device.type] if device.type != "cuda" else gpu_room(device)
    return max(1, min(MOST_PASSES, room // pass_bytes(cascade, shape)))


def pass_bytes(cascade: Cascade, shape: tuple[int, int]) -> int:
    """About what one image takes on its way through a block."""
    return 4 * 3 * cascade.widest * shape[0] * shape[1]


@functools.lru_cache(maxsize=8)
def gpu_room(device: torch.device) -> int:
    """Bytes set aside on a GPU; asked for once, since the question takes time."""
    return min(CHUNK_BYTES["cuda"], torch.cuda.mem_get_info(device)[0] // 4)


@torch.no_grad()
def sample(
    applied: Sequence[Applied],
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
    blocks = [each.block for each in applied]
    noise = by_layer(blocks, weight_noise(blocks, draws, seed, first)) if kind == "weights" else []
    x = first if kind == "weights" else first.repeat(len(draws), 1, 1, 1)
    last = len(blocks) - 1
    variance: Tensor | None = None
    aleatoric: Tensor | None = None
    for number, (block, each) in enumerate(zip(blocks, applied, strict=True)):
        draw: Draw = MeanDraw()
        if block.layers and kind == "weights":
            draw = WeightDraw(noise[number], shared=number == 0)
        elif block.layers:
            draw = ActivationDraw(activation_noise(block, number, draws, seed, place, first))
        shared = number == 0 and kind == "weights"
        inputs, h = (start.inputs, start.features) if shared else each.features(x, data.gradient(x))
        if number == last:
            aleatoric = each.variance(inputs, h, None if analytic else draw)
        if number == last and analytic:
            moments = block.moments_of(x, block.last.mean(h), block.last.output_variance(h))
            x, variance = moments.mean, moments.variance
        else:
            x = block.image_of(x, h, draw)
    return SampleRun.of(draws, first, x, variance, aleatoric)
