"""Joint training of the blocks of a cascade, after their greedy training: gradients pass through all blocks and the operator.

The loss is that of greedy training, `side_by_side`, summed over the blocks. The last block counts most, and the weight falls
by the factor DECAY from a block to the one before it, so that the first blocks alone are still a cascade. All weights are mean
weights: the standard deviations are set at the end, by the refit of greedy training, block after block.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from bayescade.blocks.block import Block, State
from bayescade.blocks.convolution import channels_last
from bayescade.blocks.runner import PlainRunner
from bayescade.blocks.sampling import MeanWeights
from bayescade.errors import Failure
from bayescade.networks.cascade import step
from bayescade.progress import progress
from bayescade.seeds import derived_seed
from bayescade.training.end_to_end import optimiser_tensors, restore_optimiser, round_bounds
from bayescade.training.greedy import Record, Training
from bayescade.training.joint_step import Batch, Examples, JointSteps, examples_of
from bayescade.training.loop import run_epoch
from bayescade.training.optimiser import (
    Adam,
    Group,
    RateSettings,
    check_whole,
    cudnn_options,
    schedule,
)
from bayescade.training.posterior import median_log_std, refit, silence_unused
from bayescade.training.records import describe
from bayescade.training.runner import training_runner
from bayescade.training.stage import Stage
from bayescade.training.start import (
    REVIVE_IMAGES,
    revive,
    start_as_identity,
    start_from,
    widen,
    zero_weights_of_memory,
)

REFIT_IMAGES = 2000  # about so many images set the standard deviations of the weights
MOST_SKIPPED = 0.05  # share of the steps of an epoch whose gradient may be infinite
BATCH_PIXELS = 64 * 128**2  # most pixels of a batch: with larger images the batch is smaller


@dataclasses.dataclass(frozen=True)
class JointSettings(RateSettings):
    """How all blocks are trained together."""

    epochs: int = 0  # 0: only greedy training
    batch: int = 32  # images, or fewer if they are large
    learning_rate: float = 1e-3
    clip: float = 5.0
    rounds: int = 10  # number of rounds; the cascade is saved after each round

    def __post_init__(self) -> None:
        check_whole(self, "epochs", least=0)
        self.check_rates()
        check_whole(self, "rounds")


@dataclasses.dataclass(frozen=True)
class Saved:
    """What is left of an earlier run: the number of its rounds, their time, and the state of the optimiser."""

    rounds: int = 0
    seconds: float = 0.0
    optimiser: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


# (tensors of each block, their records, or None if they are those of greedy training; number of rounds, their time, and the
# state of the optimiser)
Save = Callable[[list[Block], list[Record] | None, Saved], None]


def train_jointly(
    blocks: Sequence[Block],  # trained greedily; their weights are changed
    stages: tuple[Stage, Stage],  # training and validation, before the first block
    settings: JointSettings,
    training: Training,  # the greedy training
    saved: Saved,
    save: Save,
) -> None:
    """Trains all blocks together, and then sets the standard deviations of their weights."""
    for parameter in itertools.chain(*(block.parameters() for block in blocks)):
        parameter.grad = None  # greedy training leaves those of the standard deviations, and gradients are clipped
    examples = examples_of(stages[0])
    runner = training_runner(training.fitting.runner, settings.precision, stages[0].example)
    if runner.fused:  # gradients come in this format
        for block in blocks:
            block.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    optimiser = adam(blocks, settings)
    restore_optimiser(optimiser, saved.optimiser)
    steps = JointSteps(blocks, optimiser, settings.clip, runner)
    count = len(list(shuffled(examples, settings.batch, training.seed, 0)))
    bounds = round_bounds(settings.epochs, settings.rounds)
    first = bounds[saved.rounds]
    rates = itertools.islice(schedule(settings, settings.epochs * count), first * count, None)
    score = math.nan
    with progress("joint training", settings.epochs - first) as advance, cudnn_options(settings.precision):
        for number in range(saved.rounds, len(bounds) - 1):
            start = time.perf_counter()
            for epoch in range(bounds[number], bounds[number + 1]):
                batches = list(shuffled(examples, settings.batch, training.seed, epoch))
                steps.skipped.zero_()
                loss, rate = run_epoch(epoch, batches, steps.load, rates, training.processes)
                skipped = check_skipped(epoch, steps, len(batches))
                line = {"block": len(blocks) + number + 1, "epoch": epoch + 1, "loss": loss, "learning_rate": rate}
                line |= {"skipped": skipped} if skipped else {}
                if epoch + 1 == bounds[number + 1]:
                    line["validation_psnr"] = score = validation_psnr(training, blocks, stages[1])
                training.report(line)
                advance(1, f"loss {loss:.4g}, validation {score:.2f} dB")
            if number + 2 < len(bounds) and blocks[0].trunk.can_die:
                revive_all(blocks, stages[0], training, number)
            seconds = saved.seconds + time.perf_counter() - start
            saved = Saved(number + 1, seconds, optimiser_tensors(optimiser))
            save(list(blocks), None, saved)
    start = time.perf_counter()
    records = refit_all(blocks, stages, training)
    save(list(blocks), records, Saved(saved.rounds, saved.seconds + time.perf_counter() - start))


def check_skipped(epoch: int, steps: JointSteps, count: int) -> int:
    """The number of steps of an epoch that were skipped; raises `Failure` if there are too many."""
    skipped = int(steps.skipped)
    if skipped > MOST_SKIPPED * count:
        raise Failure(f"epoch {epoch + 1}: the loss or its gradient is not finite in {skipped} of {count} steps")
    return skipped


@torch.no_grad()
def revive_all(blocks: Sequence[Block], stage: Stage, training: Training, number: int) -> None:
    """Gives dead features of all blocks new weights after a round; the images of the cascade stay about the same."""
    group = stage.groups[0]
    problem, y, images = next(group.measured_batches(REVIVE_IMAGES))
    state = State.unstacked(group.state[images])
    for index, block in enumerate(blocks):
        fresh = training.make(torch.Generator().manual_seed(derived_seed(training.seed, "revive", number, index)))
        widen(fresh)
        inputs = problem.inputs(state.image, y)
        dead = revive(block, fresh.to(y.device).state_dict(), state, inputs)
        if index + 1 < len(blocks):
            zero_weights_of_memory(blocks[index + 1], dead[: block.memory_channels])
        runner = PlainRunner(block)
        state = step(runner, state, runner.features(state, inputs), MeanWeights())


def adam(blocks: Sequence[Block], settings: JointSettings) -> Adam:
    """Adam for all parameters but the standard deviations of the weights."""
    parameters = [
        parameter
        for block in blocks
        for name, parameter in block.named_parameters()
        if parameter.requires_grad and not name.endswith("log_std")
    ]
    return Adam([Group(parameters, settings.weight_decay)])


def shuffled(examples: Sequence[Examples], batch: int, seed: int, epoch: int) -> Iterator[Batch]:
    """The batches of an epoch in random order and with random moves; all images of a batch are of one set."""
    generator = torch.Generator().manual_seed(derived_seed(seed, "joint", epoch))
    batches: list[Batch] = []
    for part in examples:
        count = max(1, min(batch, BATCH_PIXELS // part.truth.shape[1:].numel()))
        order = torch.randperm(len(part.truth), generator=generator).to(part.initial.device)
        for indices in order.split(count):
            move = int(torch.randint(part.problem.moves, (), generator=generator))
            batches.append(Batch(part, indices, move))
    for index in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[index]


def start_blocks(training: Training, stages: tuple[Stage, Stage], done: Sequence[Block]) -> list[Block]:
    """The blocks with which a joint training starts, saved one by one: those of a trained cascade, `Training.initial`, or new
    blocks that do not change an image.

    The training images do not pass through them: a cascade that was trained together has the variances of all its blocks.
    """
    stage, validation = stages
    blocks: list[Block] = []
    baseline = validation.psnr()
    for index in range(len(training.initial) or training.settings.blocks):
        if index < len(done):
            block = done[index]
        else:
            block = training.make(torch.Generator().manual_seed(derived_seed(training.seed, "weights", index, 0)))
            block = block.to(stage.example.device)
            if training.initial:
                start_from(block, training.initial[index], stage)
            else:
                start_as_identity(block, stage)
            channels_last(block)
        blocks.append(block)
        validation = training.validation_after(block, validation)
        score = validation.psnr()
        record = {"validation_psnr": score, "gain": score - baseline, "seconds": 0.0, "warnings": []}
        if index >= len(done):
            training.save(index, block, record)
        baseline = score
    return blocks


def validation_psnr(training: Training, blocks: Sequence[Block], validation: Stage) -> float:
    """Mean PSNR of the validation images after the last block."""
    for block in blocks:
        validation = training.validation_after(block, validation)
    return validation.psnr()


def refit_all(blocks: Sequence[Block], stages: tuple[Stage, Stage], training: Training) -> list[Record]:
    """Sets the standard deviations of the weights of every block; gives the records of the blocks."""
    stage, validation = stages
    total = stage.pixels()
    stage = stage.every(max(1, round(len(stage) / REFIT_IMAGES)))
    records = []
    settings, batch = training.settings, training.fitting.batch
    # Some of the images stand for all of them: the information about the weights grows with their number.
    temperature = settings.temperature * stage.pixels() / total
    baseline = validation.psnr()
    for index, block in enumerate(blocks):
        before = median_log_std(block)
        if settings.refit != "none":
            refit(block, stage, temperature, settings.refit == "full", training.runner(stage))
            silence_unused(block)
        record = describe(block, validation, batch, (before, before), settings.refit != "none")
        stage, validation = training.after(block, index, stage), training.validation_after(block, validation)
        score = validation.psnr()
        record |= {"validation_psnr": score, "gain": score - baseline}
        record["warnings"] = [f"block {index + 1}: {message}" for message in record["warnings"]]
        records.append(record)
        baseline = score
    return records
