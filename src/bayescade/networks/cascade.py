"""A cascade (equation 3 of the paper): blocks in sequence, each with the gradient of the data fidelity at its input image.

    x_0 = initial(y),    x_{k+1} = relu(x_k + f_k(x_k, inputs(x_k, y))),    k = 0 .. K - 1

`iterates` is this recursion. Training uses `step`, one block at a time; sampling uses `prediction`.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import final

from torch import Tensor, nn

from bayescade.bayes.gaussian import Gaussian
from bayescade.blocks.block import Block, Features, State
from bayescade.blocks.runner import BlockRunner, PlainRunner
from bayescade.blocks.sampling import MeanWeights, SampledWeights, Sampling
from bayescade.physics.problem import InverseProblem


@dataclasses.dataclass(frozen=True)
class Iterate:
    """x_k, and the features of block k at x_k."""

    index: int  # k, counted from 0
    state: State
    features: Features


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The output of the last block, (samples * batch, 1, height, width) with samples in front; variances broadcast to it."""

    mean: Tensor
    variance: Tensor | None  # over the weights of the last block if these are integrated; None if they are sampled
    aleatoric: Tensor | None


def step(runner: BlockRunner, state: State, features: Features, sampling: Sampling) -> State:
    """x_{k+1} = relu(x_k + f_k(x_k, inputs)), and the memory for the next block."""
    image = runner.image(state, features, sampling)
    memory = runner.memory(state, features)
    if memory is not None:
        memory = sampling.repeat_for_samples(memory, state.shared)
    return State(image, memory, state.repeated or isinstance(sampling, SampledWeights))


def first_iterate(runner: BlockRunner, problem: InverseProblem, y: Tensor, state: State) -> Iterate:
    """The iterate before the first block."""
    return Iterate(0, state, runner.features(state, problem.inputs(state.image, y)))


def first_state(image: Tensor, memory_channels: int) -> State:
    """The state before the first block: the memory is zero."""
    shape = (len(image), memory_channels, *image.shape[2:])
    return State(image, image.new_zeros(shape) if memory_channels else None)


def iterates(
    runners: Sequence[BlockRunner],
    problem: InverseProblem,
    y: Tensor,  # (batch, *range_shape)
    start: Iterate,
    samplings: Sequence[Sampling],  # one per block
) -> Iterator[Iterate]:
    """The recursion, from `start` to the iterate before the last block."""
    now = start
    yield now
    for index in range(start.index + 1, len(runners)):
        state = step(runners[index - 1], now.state, now.features, samplings[index - 1])
        now = Iterate(index, state, runners[index].features(state, problem.inputs(state.image, y)))
        yield now


def prediction(
    runners: Sequence[BlockRunner],
    problem: InverseProblem,
    y: Tensor,
    start: Iterate,
    samplings: Sequence[Sampling],
    analytic: bool = False,  # the weights of the last block are integrated, not sampled
) -> Prediction:
    """The output of the last block, from `start`."""
    *_, last = iterates(runners, problem, y, start, samplings)
    if analytic:
        image, aleatoric = runners[-1].moments(last.state, last.features)
        return Prediction(image.mean, image.variance, aleatoric)
    aleatoric = runners[-1].variance(last.state, last.features, samplings[-1])
    return Prediction(runners[-1].image(last.state, last.features, samplings[-1]), None, aleatoric)


def first_random(runners: Sequence[BlockRunner], problem: InverseProblem, y: Tensor, start: Iterate) -> Iterate:
    """The iterate before the first block in which samples differ; all samples share what comes before."""
    means = [MeanWeights()] * len(runners)
    for now in iterates(runners, problem, y, start, means):
        if runners[now.index].block.layers:
            return now
    return now


@final
class Cascade(nn.Module):
    """The blocks in order; a call with data and their problem gives the image with mean weights."""

    def __init__(self, blocks: Sequence[Block]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def block(self, index: int) -> Block:
        """Block `index`, from 0."""
        block = self.blocks[index]
        assert isinstance(block, Block)
        return block

    def all_blocks(self) -> list[Block]:
        """The blocks in order."""
        return [self.block(index) for index in range(len(self))]

    def forward(
        self,
        y: Tensor,  # (batch, *range_shape)
        problem: InverseProblem,
        sampling: Sequence[Sampling] | None = None,  # one per block; default: mean weights
    ) -> Gaussian:
        """The image in the units of the problem, and its aleatoric variance where the blocks have one."""
        runners = [PlainRunner(block) for block in self.all_blocks()]
        start = first_iterate(runners[0], problem, y, first_state(problem.initial(y), self.block(0).memory_channels))
        last = prediction(runners, problem, y, start, sampling or [MeanWeights()] * len(runners))
        variance = last.aleatoric * problem.scale**2 if last.aleatoric is not None else None
        return Gaussian(last.mean * problem.scale, variance)

    @functools.cached_property
    def widest(self) -> int:
        """The largest number of channels of a layer."""
        return max(max(parameter.shape[:2]) for parameter in self.parameters() if parameter.ndim == 4)
