"""A cascade (equation 3 of the paper): a sequence of blocks. Block k uses the gradient of the data fidelity at x_k.

    x_0 = initial(y),    x_{k+1} = relu(x_k + f_k(x_k, inputs(x_k, y))),    k = 0 .. K - 1

`iterates` computes this recursion. Training uses `step`, one block at a time; sampling uses `prediction`.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import final

from torch import Tensor, nn

from bayescade.bayes.gaussian import Gaussian
from bayescade.blocks.block import Block, Features, State
from bayescade.blocks.runner import BlockRunner, PlainRunner, StepRunner
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
    """The output of the last block. The shapes of the variances broadcast to the shape of the mean."""

    mean: Tensor  # (samples * batch, 1, height, width), ordered by sample
    variance: Tensor | None  # over the weights of the last block, if they are integrated; None if they are sampled
    aleatoric: Tensor | None  # aleatoric variance; None if the last block has no variance


def step(runner: StepRunner, state: State, features: Features, sampling: Sampling) -> State:
    """x_{k+1} = relu(x_k + f_k(x_k, inputs)), and the memory for the next block."""
    image = runner.image(state, features, sampling)
    memory = runner.memory(state, features)
    if memory is not None:
        memory = sampling.repeat_for_samples(memory, state.shared)
    return State(image, memory, state.per_sample or isinstance(sampling, SampledWeights))


def first_iterate(
    runner: StepRunner,
    problem: InverseProblem,
    y: Tensor,
    state: State,
    known: Tensor | None = None,  # as for `InverseProblem.inputs`
) -> Iterate:
    """The input of the first block: x_0, and the features of the first block at x_0."""
    return Iterate(0, state, runner.features(state, problem.inputs(state.image, y, known)))


def first_state(image: Tensor, memory_channels: int) -> State:
    """The input state of the first block: its memory is zero."""
    shape = (len(image), memory_channels, *image.shape[2:])
    return State(image, image.new_zeros(shape) if memory_channels else None)


def iterates(
    runners: Sequence[StepRunner],
    problem: InverseProblem,
    y: Tensor,  # (batch, *range_shape)
    start: Iterate,
    samplings: Sequence[Sampling],  # one per block
    known: Tensor | None = None,  # as for `InverseProblem.inputs`
) -> Iterator[Iterate]:
    """The recursion, from `start` to the input of the last block."""
    current = start
    yield current
    known = problem.known(y) if known is None and start.index + 1 < len(runners) else known
    for index in range(start.index + 1, len(runners)):
        state = step(runners[index - 1], current.state, current.features, samplings[index - 1])
        current = Iterate(index, state, runners[index].features(state, problem.inputs(state.image, y, known)))
        yield current


def prediction(
    runners: Sequence[BlockRunner],
    problem: InverseProblem,
    y: Tensor,
    start: Iterate,
    samplings: Sequence[Sampling],
    analytic: bool = False,  # whether the weights of the last block are integrated, not sampled
) -> Prediction:
    """The output of the last block, after the recursion from `start`."""
    *_, last = iterates(runners, problem, y, start, samplings)
    if analytic:
        image, aleatoric = runners[-1].moments(last.state, last.features)
        return Prediction(image.mean, image.variance, aleatoric)
    aleatoric = runners[-1].variance(last.state, last.features, samplings[-1])
    return Prediction(runners[-1].image(last.state, last.features, samplings[-1]), None, aleatoric)


def first_random(runners: Sequence[BlockRunner], problem: InverseProblem, y: Tensor, start: Iterate) -> Iterate:
    """The input of the first block that has random layers; all samples share the blocks before it.

    If no block has random layers: the input of the last block.
    """
    mean_weights = [MeanWeights()] * len(runners)
    for current in iterates(runners, problem, y, start, mean_weights):
        if runners[current.index].block.layers:
            break
    return current


@final
class Cascade(nn.Module):
    """The blocks in order. A call with data and a problem gives the reconstruction, by default with mean weights."""

    def __init__(self, blocks: Sequence[Block]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def block(self, index: int) -> Block:
        """The block with this index, counted from 0."""
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
        """The image, in the user's units (not divided by `problem.scale`), and its aleatoric variance or None."""
        runners = [PlainRunner(block) for block in self.all_blocks()]
        start = first_iterate(runners[0], problem, y, first_state(problem.initial(y), self.block(0).memory_channels))
        output = prediction(runners, problem, y, start, sampling or [MeanWeights()] * len(runners))
        variance = output.aleatoric * problem.scale**2 if output.aleatoric is not None else None
        return Gaussian(output.mean * problem.scale, variance)

    @functools.cached_property
    def widest(self) -> int:
        """The largest number of input or output channels of a convolution."""
        return max(max(parameter.shape[:2]) for parameter in self.parameters() if parameter.ndim == 4)
