"""One step of joint training: the loss of all blocks, its gradient through the whole cascade, and the update."""

import dataclasses
import itertools
from collections.abc import Hashable, Sequence
from typing import final

import torch
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.blocks.block import Block
from bayescade.blocks.runner import StepRunner
from bayescade.blocks.sampling import MeanWeights
from bayescade.networks.cascade import Iterate, first_iterate, first_state, iterates
from bayescade.physics.problem import InverseProblem
from bayescade.storage.image_store import ImageStore, copy_images
from bayescade.training.captured import Captured
from bayescade.training.fit import gradient_parts
from bayescade.training.losses import image_error, nll
from bayescade.training.optimiser import Adam, clip_gradients
from bayescade.training.runner import TrainingRunner
from bayescade.training.stage import Stage

DECAY = 0.7  # weight of a block in the loss, divided by that of the next block


@dataclasses.dataclass(frozen=True)
class Examples:
    """The images of one problem, with all that does not change during training."""

    problem: InverseProblem
    y: ImageStore  # (images, *range_shape)
    initial: Tensor  # (images, 1, height, width)
    known: Tensor | None  # `InverseProblem.known`
    truth: Tensor  # (images, 1, height, width), divided by the scale of the problem


@dataclasses.dataclass(frozen=True)
class Batch:
    """Examples of one problem, moved on the pixel grid."""

    examples: Examples
    indices: Tensor
    move: int = 0  # of `InverseProblem.moved`


def examples_of(
    stage: Stage,  # before the first block
) -> list[Examples]:
    """The examples of every problem."""
    examples = []
    for group in stage.groups:
        offset = 0
        for measured in group.measured:
            problem, images = measured.problem, slice(offset, offset + len(measured.data))
            known = None
            if problem.data_planes:  # they follow the gradient
                known = group.inputs[images][:, 1 : 1 + len(problem.data_planes)].contiguous()
            initial = group.state[images][:, :1].contiguous()
            examples.append(Examples(problem, measured.data, initial, known, group.truth[images]))
            offset = images.stop
    return examples


@final
class JointSteps:
    """The steps of joint training: one for each kind of batch, as each is captured as a CUDA graph of its own."""

    def __init__(
        self,
        blocks: Sequence[Block],
        optimiser: Adam,
        clip: float,  # limit of the norm of the gradient
        runner: TrainingRunner,
    ):
        self.blocks, self.optimiser, self.clip, self.runner = blocks, optimiser, clip, runner
        self.steps: dict[tuple[Hashable, int], JointStep] = {}
        # Steps without an update, as the loss or its gradient was not finite.
        self.skipped = torch.zeros((), device=optimiser.parameters[0].device)

    def load(self, batch: Batch) -> "JointStep":
        """The step for a batch, with its images."""
        examples, count = batch.examples, len(batch.indices)
        key = (examples.problem.exchange, count)
        if key not in self.steps:
            other = next(iter(self.steps.values()), None)
            self.steps[key] = JointStep(self, examples, count, other.compute if other is not None else None)
        self.steps[key].load(batch)
        return self.steps[key]

    def update(self, value: Tensor) -> Tensor:
        """Updates all blocks by the gradient of a loss; gives its value, or 0 if it is skipped."""
        self.optimiser.forget_gradients()
        value.backward()
        sizes = [value.detach()]
        for part in zip(*(gradient_parts(block) for block in self.blocks), strict=True):
            norm = clip_gradients(list(itertools.chain(*part)), self.clip)
            sizes += [norm] if norm is not None else []
        finite = torch.stack([size.float() for size in sizes]).isfinite().all()
        skip = (~finite).float()
        self.optimiser.step(skip)
        self.skipped += skip
        return torch.nan_to_num(value.detach(), 0.0, 0.0, 0.0) * finite


@final
class JointStep:
    """One step: load a batch, then compute the loss, its gradient and the update."""

    def __init__(
        self,
        steps: JointSteps,
        examples: Examples,  # the first batch is one of them
        count: int,  # images of a batch
        share: Captured | None,  # shares its memory
    ):
        self.steps = steps
        self.problem = examples.problem.batch(count)
        device = examples.initial.device

        def new(like: ImageStore) -> Tensor:
            return torch.empty((count, *like.shape[1:]), dtype=like.dtype, device=device)

        self.y, self.initial, self.truth = new(examples.y), new(examples.initial), new(examples.truth)
        self.known = new(examples.known) if examples.known is not None else None
        self.compute = Captured(self._compute, device, share=share)

    def load(self, batch: Batch) -> None:
        """Copies the examples of the batch and their scans, moved."""
        examples, indices, move = batch.examples, batch.indices, batch.move
        self.problem.load(examples.problem, indices, move)
        copy_images(examples.y, indices, self.y)
        copy_images(examples.initial, indices, self.initial)
        copy_images(examples.truth, indices, self.truth)
        if self.known is not None and examples.known is not None:
            copy_images(examples.known, indices, self.known)
        if move:
            self.initial.copy_(self.problem.moved(self.initial, move))
            self.truth.copy_(self.problem.moved(self.truth, move))
            if self.known is not None:
                self.known.copy_(self.problem.moved_known(self.known, move))

    def run(self, rate: float) -> Tensor:
        """Updates the blocks with this learning rate; gives the loss before the update."""
        self.steps.optimiser.set_rate(rate)
        return self.compute()

    def _compute(self) -> Tensor:
        autocast = self.steps.runner.autocast
        with torch.autocast(self.y.device.type, torch.bfloat16, enabled=autocast, cache_enabled=False):
            runners = self.steps.runner.step_runners(self.steps.blocks)
            value = cascade_loss(runners, self.problem, self.y, self.initial, self.known, self.truth)
        return self.steps.update(value)


def cascade_loss(
    runners: Sequence[StepRunner],
    problem: InverseProblem,
    y: Tensor,
    initial: Tensor,
    known: Tensor | None,
    truth: Tensor,
) -> Tensor:
    """The weighted sum of the losses of all blocks. The NLL of a block trains only its variance network."""
    mean = MeanWeights()
    start = first_iterate(runners[0], problem, y, first_state(initial, runners[0].block.memory_channels), known)
    steps = list(iterates(runners, problem, y, start, [mean] * len(runners), known))
    images = [step.state.image for step in steps[1:]] + [runners[-1].image(steps[-1].state, steps[-1].features, mean)]
    variances = [variance_of(runner, step) for runner, step in zip(runners, steps, strict=True)]
    weights = torch.pow(DECAY, torch.arange(len(steps) - 1, -1, -1, device=truth.device, dtype=truth.dtype))
    return (weights * block_losses(torch.stack(images).to(truth.dtype), variances, truth)).sum()


def variance_of(runner: StepRunner, step: Iterate) -> Tensor | None:
    """The variance of the next image, whose gradient stays in the variance network."""
    features = step.features
    detached = dataclasses.replace(features, planes=features.planes.detach(), common=features.common.detach())
    return runner.variance(step.state, detached, MeanWeights())


def block_losses(
    images: Tensor,  # (blocks, batch, 1, height, width): the output of every block
    variances: Sequence[Tensor | None],  # of every block; they broadcast to the images of a block
    truth: Tensor,  # (batch, 1, height, width)
) -> Tensor:
    """The loss of every block, (blocks,)."""
    losses = image_error(images, truth)
    known = [variance.expand_as(truth) for variance in variances if variance is not None]
    if not known:
        return losses
    prediction = Gaussian(images.detach(), torch.stack(known).to(truth.dtype))
    return losses + nll(prediction, truth).flatten(1).mean(1)
