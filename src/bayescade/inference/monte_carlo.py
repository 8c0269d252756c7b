"""Samples of a cascade: T samples of all its random weights, each applied in all blocks to every image.

Sample t is one tensor per layer for all pixels and all images. It depends on the seed and t only: not on the device, not on how
images or samples are cut into parts. `activations` is the paper's way: independent noise in every pixel of every block.
This gives each pixel the right variance after one block, but the wrong variance to means over pixels and to later blocks.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import final

import torch
from torch import Tensor

from bayescade.blocks.block import Features, State
from bayescade.blocks.perturbation import PerturbationRunner
from bayescade.blocks.runner import BlockRunner, PlainRunner
from bayescade.blocks.sampling import ActivationNoise, MeanWeights, Sampling
from bayescade.devices import available_bytes, full_precision
from bayescade.errors import UserError
from bayescade.inference.graph import GraphReplay, NoGraph
from bayescade.inference.moments import Estimate, StreamingMoments
from bayescade.inference.noise import activation_noise, image_normals, weight_noise
from bayescade.inference.runners import RUNNERS, choose_runner, runner_factory
from bayescade.inference.threads import in_order
from bayescade.inference.weights import CascadeWeights
from bayescade.networks.cascade import (
    Cascade,
    Iterate,
    Prediction,
    first_iterate,
    first_random,
    first_state,
    prediction,
)
from bayescade.physics.problem import InverseProblem
from bayescade.progress import Advance, quiet

# Bytes of features computed at once: on a CPU per thread, to stay in the cache; on a GPU at most a quarter of the free memory.
CHUNK_BYTES = {"cpu": 3 * 2**24, "cuda": 2**33}
MOST_PASSES = 128
# Most bytes of the reference features of a perturbation: a fixed number, so that the result does not depend on free memory.
MOST_REFERENCE = 2**32
# Samples between checks of the tolerance: a fixed number, so that the result does not depend on the machine.
CHECK_EVERY = 8
SAMPLINGS = ("weights", "all-weights", "activations")
SCHEDULES = ("auto", "serial", "threads", "graph")


@dataclasses.dataclass(frozen=True)
class InferenceSettings:
    """How a trained cascade is sampled."""

    # What: weights (those of the last block are integrated in closed form), all-weights (they are sampled too), or activations
    # (the paper).
    sampling: str = "weights"
    # How a block is computed: plain layers; fused (Triton kernels, on a GPU); perturbation (on a CPU, the changes by
    # samples, in bfloat16); auto = fused on a GPU, perturbation on a CPU with bfloat16 instructions.
    runner: str = "auto"
    precision: str = "half"  # of features in the fused kernels on a GPU: half, or single where rounding errors grow
    schedule: str = "auto"  # of the work: serial, threads (on a CPU), graph (a CUDA graph); auto = threads or graph
    tolerance: float = 0.0  # stop when the relative error of the epistemic std is at most this; 0 = use all samples

    def __post_init__(self) -> None:
        known = {"sampling": SAMPLINGS, "runner": RUNNERS, "precision": ("half", "single"), "schedule": SCHEDULES}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise UserError(f"setting {name}: expected {', '.join(values)}, got '{getattr(self, name)}'")
        if not 0 <= self.tolerance < 1:
            raise UserError(f"setting tolerance: expected at least 0 and less than 1, got {self.tolerance}")


@dataclasses.dataclass(frozen=True)
class SamplePart:
    """A range of samples of all images; `moments` explains the tensors."""

    samples: range
    mean: Tensor  # (samples, batch, 1, height, width)
    variance: Tensor | None
    aleatoric: Tensor | None

    @classmethod
    def of(cls, samples: range, images: Tensor, prediction: Prediction) -> "SamplePart":
        """From maps with samples in front, (samples * batch, 1, height, width); variances may be shared by all."""

        def per_sample(maps: Tensor | None) -> Tensor | None:
            return (
                maps.expand(len(prediction.mean), *images.shape[1:]).reshape(-1, *images.shape)
                if maps is not None
                else None
            )

        mean = prediction.mean.reshape(-1, *images.shape)
        return cls(samples, mean, per_sample(prediction.variance), per_sample(prediction.aleatoric))


@dataclasses.dataclass(frozen=True)
class Job:
    """The samples of one call."""

    problem: InverseProblem
    y: Tensor  # (batch, *range_shape)
    samples: int
    seed: int
    index: int  # of the first image among all: noise of activations depends on it
    analytic: bool  # the weights of the last block are integrated


@final
class Sampler:
    """A trained cascade that is sampled many times; the runner of its blocks is chosen once, here.

    One call at a time: CUDA graphs share their memory.
    """

    def __init__(self, cascade: Cascade, settings: InferenceSettings):
        self.cascade = cascade
        self.blocks = cascade.all_blocks()
        self.memory_channels = self.blocks[0].memory_channels
        self.settings = settings
        example = next(cascade.parameters())
        self.device, self.dtype = example.device, example.dtype
        random = self.is_random(settings.sampling == "weights")
        self.runner = choose_runner(settings.runner, settings.sampling, random, self.device, self.dtype)
        self.make = runner_factory(self.runner, self.device, self.dtype, settings.precision == "half")
        graphs = self.runner == "fused" and self.device.type == "cuda" and settings.schedule in ("auto", "graph")
        if settings.schedule == "graph" and not graphs:
            raise UserError("setting schedule: graph is for the fused kernels on a GPU; use schedule=auto")
        if settings.schedule == "threads" and (self.device.type != "cpu" or self.runner == "fused"):
            raise UserError("setting schedule: threads are for layers on a CPU; use schedule=auto")
        self.replay: GraphReplay | NoGraph = GraphReplay() if graphs else NoGraph()
        self.runners: list[BlockRunner] = []  # made once, except for perturbation
        self.weights: CascadeWeights | None = None
        if self.runner != "perturbation":
            self.runners = [self.make(block) for block in self.blocks]
            self.weights = CascadeWeights(self.runners)

    def is_random(self, analytic: bool) -> bool:
        """Whether anything is sampled."""
        return any(block.layers for block in (self.blocks[:-1] if analytic else self.blocks))

    @torch.no_grad()
    def estimate(
        self,
        problem: InverseProblem,
        y: Tensor,  # (batch, *range_shape)
        *,
        samples: int,
        seed: int,
        index: int = 0,  # of the first image among all
        advance: Advance = quiet,  # called for every part of the samples
    ) -> Estimate:
        """Mean, aleatoric and epistemic variance of every image, in units of the problem's scale."""
        moments = StreamingMoments()
        job = Job(problem, y, samples, seed, index, analytic=self.settings.sampling == "weights")
        random = self.is_random(job.analytic)
        for part in self._parts(job):
            moments.add(part.mean, part.variance, part.aleatoric)
            advance(len(part.mean))
            if self.settings.tolerance and moments.samples % CHECK_EVERY == 0:
                estimate = moments.estimate(sampled=random)
                if estimate.relative_error() <= self.settings.tolerance:
                    return estimate
        return moments.estimate(sampled=random)

    @torch.no_grad()
    def images(
        self,
        problem: InverseProblem,
        y: Tensor,  # (batch, *range_shape)
        *,
        samples: int,
        seed: int,
        index: int = 0,
        aleatoric: bool = False,  # with noise of the aleatoric variance
    ) -> Tensor:
        """Samples of the image, (samples, batch, 1, height, width): with model noise only, or with model and data noise."""
        images = []
        for part in self._parts(Job(problem, y, samples, seed, index, analytic=False)):
            image = part.mean.clone()
            if aleatoric and part.aleatoric is not None:
                noise = torch.cat([image_normals(image[0], index, seed, "aleatoric", t) for t in part.samples])
                image = image + noise.reshape(image.shape) * part.aleatoric.sqrt()
            images.append(image)
        return torch.cat(images)

    def _parts(self, job: Job) -> Iterator[SamplePart]:
        """The samples, in parts that fit memory."""
        if job.samples < 1:
            raise UserError(f"samples: expected at least 1, got {job.samples}")
        shape = job.problem.operator.domain_shape
        size = (shape[-2], shape[-1])
        total = job.samples if self.is_random(job.analytic) else 1  # without random weights one sample is exact
        number = max(1, passes_at_once(self.cascade, size, self.device) // len(job.y))
        if self.settings.tolerance:
            number = min(number, CHECK_EVERY)
            while CHECK_EVERY % number:
                number -= 1
        parts = [range(begin, min(begin + number, total)) for begin in range(0, total, number)]
        if not self.is_random(job.analytic):
            with full_precision():
                mean = self._mean_prediction(job)
            yield SamplePart.of(parts[0], mean.mean, mean)
            return
        run = self._activations(job) if self.settings.sampling == "activations" else self._weights(job, parts)
        if self.device.type != "cpu" or self.runner == "fused" or self.settings.schedule == "serial":
            yield from map(run, parts)
            return
        part_bytes = pass_bytes(self.cascade, size) * len(parts[0]) * len(job.y)
        yield from in_order(run, parts, most=available_bytes(self.device) // 4 // part_bytes)

    def _mean_prediction(self, job: Job, runners: Sequence[BlockRunner] | None = None) -> Prediction:
        """One pass with mean weights."""
        runners = runners or self.runners
        start = self._first(job, runners)
        return prediction(runners, job.problem, job.y, start, [MeanWeights()] * len(runners), job.analytic)

    def _first(self, job: Job, runners: Sequence[BlockRunner]) -> Iterate:
        state = first_state(job.problem.initial(job.y), self.memory_channels)
        return first_iterate(runners[0], job.problem, job.y, state)

    def _weights(self, job: Job, parts: Sequence[range]) -> Callable[[range], SamplePart]:
        """A function that computes samples of the weights; what all samples share is computed here, once."""
        runners, weights = self.runners, self.weights
        if weights is None:
            runners = self._near_reference(job)
            weights = CascadeWeights(runners)
        start = self._shared_start(job, runners)
        together = max(1, MOST_PASSES // len(parts[0])) * len(parts[0])  # samples whose weights are made at once

        def run(y: Tensor, flat: Tensor, image: Tensor, planes: Tensor, common: Tensor, *memory: Tensor) -> Prediction:
            state = State(image, memory[0] if memory else None)
            now = Iterate(start.index, state, Features(planes, common))
            return prediction(runners, job.problem, y, now, weights.samplings(flat), job.analytic)

        @torch.no_grad()  # which a thread does not inherit
        def part(samples: range) -> SamplePart:
            first = samples.start // together * together
            group = range(first, min(first + together, job.samples))
            noise = weight_noise(self.blocks, group, job.seed, start.state.image)
            flat = weights.flat(noise, slice(samples.start - first, samples.stop - first))
            inputs = (job.y, flat, *tensors_of(start))
            return SamplePart.of(samples, start.state.image, self.replay((job.problem, job.analytic), run, *inputs))

        return part

    def _near_reference(self, job: Job) -> list[BlockRunner]:
        """Runners whose reference is the prediction of the mean weights for these data."""
        size = len(job.y) * torch.Size(job.problem.operator.domain_shape).numel()
        needed = sum(PerturbationRunner.bytes_for(block, size) for block in self.blocks)
        if self.settings.runner == "auto" and needed >= MOST_REFERENCE:
            return [PlainRunner(block) for block in self.blocks]
        runners = [self.make(block) for block in self.blocks]
        self._mean_prediction(job, runners)
        return runners

    def _shared_start(self, job: Job, runners: Sequence[BlockRunner]) -> Iterate:
        """What all samples share: the iterate before the first random block."""

        def begin(image: Tensor, y: Tensor) -> Iterate:
            first = first_iterate(runners[0], job.problem, y, first_state(image, self.memory_channels))
            return first_random(runners, job.problem, y, first)

        return self.replay(("start", job.problem), begin, job.problem.initial(job.y), job.y)

    def _activations(self, job: Job) -> Callable[[range], SamplePart]:
        """A function that computes samples with noise of activations."""
        first = job.problem.initial(job.y)

        @torch.no_grad()
        def part(samples: range) -> SamplePart:
            state = first_state(first.repeat(len(samples), 1, 1, 1), self.memory_channels)
            state = dataclasses.replace(state, repeated=True)
            start = first_iterate(self.runners[0], job.problem, job.y, state)
            samplings: list[Sampling] = [
                ActivationNoise(activation_noise(block, samples, first, job.index, job.seed, number))
                for number, block in enumerate(self.blocks)
            ]
            return SamplePart.of(samples, first, prediction(self.runners, job.problem, job.y, start, samplings))

        return part


def tensors_of(iterate: Iterate) -> list[Tensor]:
    """Image, planes, common features, and memory where there is one."""
    memory = [iterate.state.memory] if iterate.state.memory is not None else []
    return [iterate.state.image, iterate.features.planes, iterate.features.common, *memory]


def passes_at_once(cascade: Cascade, shape: tuple[int, int], device: torch.device) -> int:
    """How many images, or samples of one, fit the memory limit."""
    limit = CHUNK_BYTES[device.type] if device.type != "cuda" else gpu_limit(device)
    return max(1, min(MOST_PASSES, limit // pass_bytes(cascade, shape)))


def pass_bytes(cascade: Cascade, shape: tuple[int, int]) -> int:
    """About the memory of one image inside a block."""
    return 4 * 3 * cascade.widest * shape[0] * shape[1]


@functools.lru_cache(maxsize=8)
def gpu_limit(device: torch.device) -> int:
    """Memory limit on a GPU in bytes; cached, because the query is slow."""
    return min(CHUNK_BYTES["cuda"], torch.cuda.mem_get_info(device)[0] // 4)
