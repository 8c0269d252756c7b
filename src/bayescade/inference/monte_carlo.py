"""Samples of the output of a cascade: from T samples of all its random weights, each used in all blocks and for every image.

Sample t has one tensor of weights per random layer, the same for all pixels and all images. It depends on the seed and t only:
not on the device, and not on how images or samples are split into chunks. The setting sampling=activations is the method of the
paper: independent noise in every pixel of every block. After one block this gives the right variance of each pixel, but a wrong
variance of means over pixels, and wrong variances after later blocks.
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
from bayescade.threads import in_order

# Most bytes of features computed at once. CPU: per thread, to fit the cache. GPU: and at most a quarter of the free memory.
CHUNK_BYTES = {"cpu": 3 * 2**24, "cuda": 3 * 2**30}
MOST_PASSES = 128  # computed at once; a pass is one image with one sample of the weights
# Most bytes of the reference features of `PerturbationRunner`: fixed, so that the result does not depend on the free memory.
MOST_REFERENCE = 2**32
# Number of samples between two checks of the tolerance: fixed, so that the result does not depend on the machine.
CHECK_EVERY = 8
SAMPLINGS = ("weights", "all-weights", "activations", "mean")
ANALYTIC = ("weights", "mean")  # the weights of the last block are integrated in closed form
SCHEDULES = ("auto", "serial", "threads", "graph")


@dataclasses.dataclass(frozen=True)
class InferenceSettings:
    """How a trained cascade is sampled."""

    # What is sampled: weights (of all blocks but the last, whose weights are integrated in closed form), all-weights (of all
    # blocks), activations (noise in every pixel: the paper), or mean (nothing: the mean weights of all blocks, and those of the
    # last block integrated).
    sampling: str = "weights"
    # How a block is computed: plain (torch layers); fused (Triton kernels, on a GPU); perturbation (on a CPU, in bfloat16: the
    # change of the features by a sample); auto: fused on a GPU, perturbation on a CPU with bfloat16 instructions, else plain.
    runner: str = "auto"
    precision: str = "half"  # of features in the fused kernels on a GPU: half; or single, if rounding errors grow
    # How chunks of samples are computed: serial; threads (in parallel on a CPU); graph (as a CUDA graph, fused runner only);
    # auto: graph if possible, threads on a CPU, else serial.
    schedule: str = "auto"
    tolerance: float = 0.0  # stop when the relative error of the epistemic std is at most this; 0: compute all samples

    def __post_init__(self) -> None:
        choices = {"sampling": SAMPLINGS, "runner": RUNNERS, "precision": ("half", "single"), "schedule": SCHEDULES}
        for name, values in choices.items():
            if getattr(self, name) not in values:
                raise UserError(f"setting {name}: expected one of {', '.join(values)}, got '{getattr(self, name)}'")
        if not 0 <= self.tolerance < 1:
            raise UserError(f"setting tolerance: expected at least 0 and less than 1, got {self.tolerance}")


@dataclasses.dataclass(frozen=True)
class SampleChunk:
    """The output of the cascade for a range of samples, all images; `inference/moments.py` explains a, v and s."""

    samples: range  # indices of the samples
    mean: Tensor  # (samples, batch, 1, height, width) a
    variance: Tensor | None  # of the same shape, v
    aleatoric: Tensor | None  # of the same shape, s

    @classmethod
    def from_prediction(
        cls,
        samples: range,
        output: Prediction,  # (samples * batch, 1, height, width); variances broadcast to it
        shape: torch.Size,  # (batch, 1, height, width)
    ) -> "SampleChunk":
        """Splits the first axis of a prediction into samples and batch."""

        def per_sample(maps: Tensor | None) -> Tensor | None:
            return maps.expand(len(output.mean), *shape[1:]).reshape(-1, *shape) if maps is not None else None

        return cls(samples, output.mean.reshape(-1, *shape), per_sample(output.variance), per_sample(output.aleatoric))


@dataclasses.dataclass(frozen=True)
class Job:
    """The arguments of one call of the sampler."""

    problem: InverseProblem
    y: Tensor  # (batch, *range_shape)
    samples: int  # number of samples
    seed: int
    index: int  # index of the batch's first image among all images: noise of activations depends on it
    analytic: bool  # whether the weights of the last block are integrated in closed form


@final
class Sampler:
    """Samples a trained cascade, any number of times; the runner of its blocks is chosen once, when it is created.

    Calls must not run at the same time: they use the same memory of the CUDA graphs.
    """

    def __init__(self, cascade: Cascade, settings: InferenceSettings):
        self.cascade = cascade
        self.blocks = cascade.all_blocks()
        self.memory_channels = self.blocks[0].memory_channels
        self.settings = settings
        example = next(cascade.parameters())
        self.device, self.dtype = example.device, example.dtype
        random = self.is_random(settings.sampling in ANALYTIC)
        self.runner = choose_runner(settings.runner, settings.sampling, random, self.device, self.dtype)
        self.make_runner = runner_factory(self.runner, self.device, self.dtype, settings.precision == "half")
        use_graphs = self.runner == "fused" and self.device.type == "cuda" and settings.schedule in ("auto", "graph")
        if settings.schedule == "graph" and not use_graphs:
            raise UserError("setting schedule: graph needs the fused kernels on a GPU; use schedule=auto")
        if settings.schedule == "threads" and (self.device.type != "cpu" or self.runner == "fused"):
            raise UserError("setting schedule: threads needs a CPU and a runner other than fused; use schedule=auto")
        self.replay: GraphReplay | NoGraph = GraphReplay() if use_graphs else NoGraph()
        # One per block. Empty for perturbation, which needs new runners for new data.
        self.runners: list[BlockRunner] = []
        self.weights: CascadeWeights | None = None
        if self.runner != "perturbation":
            self.runners = [self.make_runner(block) for block in self.blocks]
            self.weights = CascadeWeights(self.runners)

    def is_random(self, analytic: bool) -> bool:
        """Whether anything is sampled. If `analytic`, nothing is sampled in the last block."""
        if self.settings.sampling == "mean" and analytic:
            return False
        return any(block.layers for block in (self.blocks[:-1] if analytic else self.blocks))

    @torch.no_grad()
    def estimate(
        self,
        problem: InverseProblem,
        y: Tensor,  # (batch, *range_shape)
        *,
        samples: int,
        seed: int,
        index: int = 0,  # index of the batch's first image among all images
        advance: Advance = quiet,  # called with the number of samples of every chunk
    ) -> Estimate:
        """Mean, aleatoric variance and epistemic variance of every image, in units of `problem.scale`."""
        moments = StreamingMoments()
        job = Job(problem, y, samples, seed, index, analytic=self.settings.sampling in ANALYTIC)
        random = self.is_random(job.analytic)
        for chunk in self._chunks(job):
            moments.add(chunk.mean, chunk.variance, chunk.aleatoric)
            advance(len(chunk.mean))
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
        index: int = 0,  # index of the batch's first image among all images
        aleatoric: bool = False,  # whether to add noise with the aleatoric variance
    ) -> Tensor:
        """Samples of the image, (samples, batch, 1, height, width): all weights are sampled, in the last block too."""
        chunks = []
        for chunk in self._chunks(Job(problem, y, samples, seed, index, analytic=False)):
            images = chunk.mean.clone()
            if aleatoric and chunk.aleatoric is not None:
                noise = torch.cat([image_normals(images[0], index, seed, "aleatoric", t) for t in chunk.samples])
                images = images + noise.reshape(images.shape) * chunk.aleatoric.sqrt()
            chunks.append(images)
        return torch.cat(chunks)

    def _chunks(self, job: Job) -> Iterator[SampleChunk]:
        """The output for all samples, in chunks that fit memory."""
        if job.samples < 1:
            raise UserError(f"samples: expected at least 1, got {job.samples}")
        height, width = job.problem.operator.domain_shape[-2:]
        total = job.samples if self.is_random(job.analytic) else 1  # without random weights one sample is exact
        chunk_size = max(1, passes_at_once(self.cascade, (height, width), self.device) // len(job.y))
        if self.settings.tolerance:  # a chunk must end at every check
            chunk_size = min(chunk_size, CHECK_EVERY)
            while CHECK_EVERY % chunk_size:
                chunk_size -= 1
        ranges = [range(begin, min(begin + chunk_size, total)) for begin in range(0, total, chunk_size)]
        if not self.is_random(job.analytic):
            with full_precision():
                output = self._mean_prediction(job)
            yield SampleChunk.from_prediction(ranges[0], output, output.mean.shape)
            return
        if self.settings.sampling == "activations":
            compute = self._activation_sampler(job)
        else:
            compute = self._weight_sampler(job, len(ranges[0]))
        if self.device.type != "cpu" or self.runner == "fused" or self.settings.schedule == "serial":
            yield from map(compute, ranges)
            return
        chunk_bytes = pass_bytes(self.cascade, (height, width)) * len(ranges[0]) * len(job.y)
        yield from in_order(compute, ranges, most=available_bytes(self.device) // 4 // chunk_bytes)

    def _mean_prediction(self, job: Job, runners: Sequence[BlockRunner] | None = None) -> Prediction:
        """The output of the cascade with mean weights."""
        runners = runners or self.runners
        start = self._first_iterate(job, runners)
        return prediction(runners, job.problem, job.y, start, [MeanWeights()] * len(runners), job.analytic)

    def _first_iterate(self, job: Job, runners: Sequence[BlockRunner]) -> Iterate:
        state = first_state(job.problem.initial(job.y), self.memory_channels)
        return first_iterate(runners[0], job.problem, job.y, state)

    def _weight_sampler(self, job: Job, chunk_size: int) -> Callable[[range], SampleChunk]:
        """A function that computes a chunk with sampled weights. The blocks that all samples share are computed here, once."""
        runners, weights = self.runners, self.weights
        if weights is None:
            runners = self._perturbation_runners(job)
            weights = CascadeWeights(runners)
        start = self._shared_start(job, runners)
        # Number of samples whose weights are computed at once.
        group_size = max(1, MOST_PASSES // chunk_size) * chunk_size

        def run(y: Tensor, flat: Tensor, image: Tensor, planes: Tensor, common: Tensor, *memory: Tensor) -> Prediction:
            state = State(image, memory[0] if memory else None)
            iterate = Iterate(start.index, state, Features(planes, common))
            return prediction(runners, job.problem, y, iterate, weights.samplings(flat), job.analytic)

        @torch.no_grad()  # a thread does not inherit the no_grad of its caller
        def compute(samples: range) -> SampleChunk:
            group_begin = samples.start // group_size * group_size
            group = range(group_begin, min(group_begin + group_size, job.samples))
            noise = weight_noise(self.blocks, group, job.seed, start.state.image)
            flat = weights.flat(noise, slice(samples.start - group_begin, samples.stop - group_begin))
            inputs = (job.y, flat, *tensors_of(start))
            output = self.replay((job.problem, job.analytic), run, *inputs)
            return SampleChunk.from_prediction(samples, output, start.state.image.shape)

        return compute

    def _perturbation_runners(self, job: Job) -> list[BlockRunner]:
        """Runners whose reference is the pass with mean weights for these data.

        With the setting runner=auto: plain runners, if the reference needs too much memory.
        """
        pixels = len(job.y) * torch.Size(job.problem.operator.domain_shape).numel()
        needed = sum(PerturbationRunner.bytes_for(block, pixels) for block in self.blocks)
        if self.settings.runner == "auto" and needed >= MOST_REFERENCE:
            return [PlainRunner(block) for block in self.blocks]
        runners = [self.make_runner(block) for block in self.blocks]
        self._mean_prediction(job, runners)  # sets the references
        return runners

    def _shared_start(self, job: Job, runners: Sequence[BlockRunner]) -> Iterate:
        """The iterate before the first random block: all samples share it."""

        def run(image: Tensor, y: Tensor) -> Iterate:
            first = first_iterate(runners[0], job.problem, y, first_state(image, self.memory_channels))
            return first_random(runners, job.problem, y, first)

        return self.replay(("start", job.problem), run, job.problem.initial(job.y), job.y)

    def _activation_sampler(self, job: Job) -> Callable[[range], SampleChunk]:
        """A function that computes a chunk with noise of activations."""
        images = job.problem.initial(job.y)

        @torch.no_grad()  # a thread does not inherit the no_grad of its caller
        def compute(samples: range) -> SampleChunk:
            state = first_state(images.repeat(len(samples), 1, 1, 1), self.memory_channels)
            state = dataclasses.replace(state, per_sample=True)
            start = first_iterate(self.runners[0], job.problem, job.y, state)
            samplings: list[Sampling] = [
                ActivationNoise(activation_noise(block, samples, images, job.index, job.seed, block_index))
                for block_index, block in enumerate(self.blocks)
            ]
            output = prediction(self.runners, job.problem, job.y, start, samplings)
            return SampleChunk.from_prediction(samples, output, images.shape)

        return compute


def tensors_of(iterate: Iterate) -> list[Tensor]:
    """The tensors of an iterate: image, planes, common features, and memory if there is memory."""
    memory = [iterate.state.memory] if iterate.state.memory is not None else []
    return [iterate.state.image, iterate.features.planes, iterate.features.common, *memory]


def passes_at_once(
    cascade: Cascade,
    shape: tuple[int, int],  # (height, width)
    device: torch.device,
) -> int:
    """How many passes fit the memory limit; a pass is one image with one sample of the weights."""
    limit = CHUNK_BYTES[device.type] if device.type != "cuda" else gpu_limit(device)
    return max(1, min(MOST_PASSES, limit // pass_bytes(cascade, shape)))


def pass_bytes(cascade: Cascade, shape: tuple[int, int]) -> int:
    """Approximate bytes of the features of one pass inside a block; `shape` is (height, width)."""
    return 4 * 3 * cascade.widest * shape[0] * shape[1]


@functools.lru_cache(maxsize=8)
def gpu_limit(device: torch.device) -> int:
    """Memory limit on a GPU in bytes; cached, because the query is slow."""
    return min(CHUNK_BYTES["cuda"], torch.cuda.mem_get_info(device)[0] // 4)
