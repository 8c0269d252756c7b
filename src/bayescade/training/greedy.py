"""Greedy training of a cascade (algorithm 1 of the paper): block by block, each on the output of the blocks before it.

The result depends only on the settings, the seed and the stages: a run that was interrupted gives the same blocks when
it is resumed after the last saved block.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayescade.blocks.block import Block
from bayescade.blocks.convolution import channels_last
from bayescade.errors import Failure, UserError
from bayescade.progress import Advance, progress, quiet
from bayescade.seeds import derived_seed
from bayescade.training.distributed import ALONE, ProcessGroup
from bayescade.training.fit import FitSettings, fit
from bayescade.training.loop import no_callback
from bayescade.training.losses import LOSSES, loss_of
from bayescade.training.posterior import REFITS, median_log_std, refit
from bayescade.training.records import describe
from bayescade.training.runner import TrainingRunner, training_runner
from bayescade.training.stage import SAMPLINGS, Stage, next_stage, next_states
from bayescade.training.start import STARTS, start_block, start_from

RATE_FACTOR = 4  # ratio of the learning rate of an attempt to that of the next attempt
MOST_RATE_CUTS = 3  # how many times, at most, the learning rate is lowered before the first attempt at a block
LEAST_GAIN = 0.05  # dB: a block gains nothing if it raises the mean PSNR of the validation images by at most this


@dataclasses.dataclass(frozen=True)
class GreedySettings:
    """How a cascade is trained."""

    blocks: int = 10  # K
    loss: str = "side-by-side"  # or elbo (the paper), or elbo-as-released (the code of the paper's authors)
    temperature: float = 1.0  # weight of the KL; the posterior counts every pixel as 1 / temperature observations
    # What is set to the posterior in closed form after training. none: nothing; std: the standard deviations of the
    # random weights; full: also the mean weights of the image's last layer.
    refit: str = "std"
    # What is sampled in a block to compute the input images of the next block. mean: nothing; activations: noise in
    # every pixel; weights: one sample of the weights.
    sampling: str = "weights"
    resample: int = 3  # number of epochs after which the previous block is sampled again; 0: it is sampled only once
    # Initial weights of a block. revived: those of the previous block, but new weights for dead features; warm: those
    # of the previous block; fresh: new weights, and all scales are 1 (the paper).
    start: str = "revived"
    # Number of further attempts, at lower learning rates, if a block gains nothing on the validation images.
    restarts: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.blocks <= 1000:
            raise UserError(f"setting blocks: expected a whole number from 1 to 1000, got {self.blocks}")
        known = {"loss": LOSSES, "refit": REFITS, "sampling": SAMPLINGS, "start": STARTS}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise UserError(f"setting {name}: expected {', '.join(values)}, got '{getattr(self, name)}'")
        for name in ("resample", "restarts"):
            if not 0 <= getattr(self, name) < 1e6:
                raise UserError(f"setting {name}: expected a number of at least 0, got {getattr(self, name)}")
        if not 0 < self.temperature < float("inf"):
            raise UserError(f"setting temperature: expected a positive number, got {self.temperature}")


Record = dict[str, Any]  # JSON values: scores and warnings of a block
Make = Callable[[torch.Generator], Block]  # makes a block with new weights


@dataclasses.dataclass(frozen=True)
class Training:
    """What the training of every block needs."""

    make: Make
    settings: GreedySettings
    fitting: FitSettings
    seed: int
    report: Callable[[Record], None] = no_callback  # (metrics): called after every epoch and every failure
    save: Callable[[int, Block, Record], None] = no_callback  # (index, block, record): called after every block
    end: Callable[[Record], None] = no_callback  # (record): called if training stops early, as a block gained nothing
    processes: ProcessGroup = ALONE
    initial: Sequence[Mapping[str, Tensor]] = ()  # tensors of the first blocks of a trained cascade, to start from

    def runner(self, stage: Stage) -> TrainingRunner:
        """How blocks are computed during training on this stage."""
        return training_runner(self.fitting.runner, self.fitting.precision, stage.example, self.processes)

    def after(self, block: Block, index: int, stage: Stage, epoch: int = 0) -> Stage:
        """The training stage after block `index`, with noise that is sampled for this epoch."""
        seed = derived_seed(self.seed, "advance", index, epoch)
        runner = self.runner(stage)
        return next_stage(block, stage, self.settings.sampling, runner, seed=seed, batch=self.fitting.batch)

    def validation_after(self, block: Block, stage: Stage) -> Stage:
        """The validation stage after a block with mean weights."""
        return next_stage(block, stage, "mean", self.runner(stage), batch=self.fitting.batch)


@dataclasses.dataclass(frozen=True)
class Task:
    """The training of one block."""

    index: int  # of the block, from 0
    previous: Block | None
    before: Stage | None  # the input of the previous block; None if the previous block is not sampled again
    inputs: Stage  # the input of this block
    validation: Stage  # the validation images before this block
    slower: int  # how many times the learning rate was lowered before this block

    @property
    def name(self) -> str:
        """The name of the block in messages."""
        return f"block {self.index + 1}"


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained block and its record; the block is None if all attempts gained nothing."""

    block: Block | None
    record: Record


def train_cascade(
    training: Training,
    train: Stage,
    validation: Stage,
    done: Sequence[Block] = (),  # blocks that an earlier run has saved
    slower: int = 0,  # the value of `slower` in the record of the last of these blocks
) -> list[Block]:
    """The trained blocks; fewer than requested if all attempts at one block gained nothing."""
    blocks = list(done)
    before, inputs = None, train
    for index, block in enumerate(blocks):
        before, inputs = inputs, training.after(block, index, inputs)
        validation = training.validation_after(block, validation)
    settings = training.settings
    with progress("training", (settings.blocks - len(blocks)) * training.fitting.epochs) as advance:
        for index in range(len(blocks), settings.blocks):
            previous = blocks[-1] if blocks else None
            slower = min(slower, MOST_RATE_CUTS)
            task = Task(index, previous, before if settings.resample else None, inputs, validation, slower)
            trained = train_block(training, task, advance)
            if trained.block is None:
                training.end(trained.record)
                break
            slower = int(trained.record["slower"])
            training.save(index, trained.block, trained.record)
            blocks.append(trained.block)
            before, inputs = inputs, training.after(trained.block, index, inputs)
            validation = training.validation_after(trained.block, validation)
    return blocks


def train_block(training: Training, task: Task, advance: Advance) -> Trained:
    """Trains one block; tries again if it gains nothing on the validation images, or if its loss is not a number.

    If the setting `restarts` is 0 (the paper), the block is used even if it gains nothing.
    """
    start = time.perf_counter()
    restarts, fitting = training.settings.restarts, training.fitting
    baseline = training.processes.value_of_first(task.validation.psnr(), task.inputs.example.device)
    attempts: list[Trained] = []
    failures: list[str] = []
    for attempt in range(restarts + 1):
        try:
            attempts.append(try_block(training, task, attempt, advance if attempt == 0 else quiet))
        except Failure as failure:
            failures.append(str(failure))
            training.report({"block": task.index + 1, "try": attempt + 1, "failed": str(failure)})
            continue
        if attempts[-1].record["validation_psnr"] - baseline > LEAST_GAIN:
            break
    if not attempts:
        raise Failure(
            f"{task.name}, {failures[-1]}; the blocks before it are saved. Try a smaller learning rate in another "
            f"folder: --set fit.learning_rate={fitting.learning_rate / 10:g}"
        )
    best = max(attempts, key=lambda trained: trained.record["validation_psnr"])
    gain, tries = best.record["validation_psnr"] - baseline, len(attempts) + len(failures)
    seconds = time.perf_counter() - start
    if gain <= LEAST_GAIN and restarts:
        message = f"{task.name} gained nothing on the validation images in {tries} tries; the cascade ends before it"
        return Trained(None, {"block": task.index + 1, "tries": tries, "seconds": seconds, "warnings": [message]})
    warnings = [f"{task.name}: {message}" for message in best.record["warnings"]]
    if tries > 1:
        warnings.append(f"{task.name}: needed {tries} tries to gain on the validation images")
    elif gain <= LEAST_GAIN:
        warnings.append(f"{task.name}: gained {gain:.2f} dB on the validation images")
    return Trained(best.block, {**best.record, "warnings": warnings, "gain": gain, "tries": tries, "seconds": seconds})


def try_block(training: Training, task: Task, attempt: int, advance: Advance) -> Trained:
    """One attempt at a block. Every attempt has a lower learning rate than the attempt before it."""
    settings, processes, seed = training.settings, training.processes, training.seed
    stage, runner = task.inputs, training.runner(task.inputs)
    device, batch = stage.example.device, training.fitting.batch
    fitting = slowed(training.fitting, task.slower + attempt)
    block = training.make(torch.Generator().manual_seed(derived_seed(seed, "weights", task.index, attempt))).to(device)
    if task.index < len(training.initial):
        start_from(block, training.initial[task.index], stage)
    else:
        start_block(block, task.previous, stage, settings.start)
    start_log_stds = median_log_std(block)
    channels_last(block)

    def stages(epoch: int) -> Stage:
        """The training stage for an epoch: the previous block is sampled again every `resample` epochs."""
        if task.before is None or task.previous is None or not epoch or epoch % settings.resample:
            return stage
        return training.after(task.previous, task.index - 1, task.before, epoch)

    def score() -> float:
        """Mean PSNR of the validation images after the block."""
        states = next_states(block, task.validation, "mean", runner, batch=batch)
        return task.validation.with_states(states).psnr()

    with progress(f"{task.name} of {settings.blocks}", fitting.epochs) as advance_block:

        def on_epoch(epoch: int, loss: float, rate: float) -> None:
            line = {"block": task.index + 1, "try": attempt + 1, "epoch": epoch + 1, "loss": loss}
            psnr = score()
            training.report({**line, "validation_psnr": psnr, "learning_rate": rate})
            note = f"loss {loss:.4g}, validation {psnr:.2f} dB"
            advance_block(1, note)
            advance(1, note)

        loss = loss_of(settings.loss, len(stage), settings.temperature, processes)
        run_seed = derived_seed(seed, "fit", task.index, attempt, 0)
        fit(block, stages, loss, fitting, runner, seed=run_seed, on_epoch=on_epoch)
    trained_log_stds = median_log_std(block)
    if settings.refit != "none":
        refit(block, stage, settings.temperature, settings.refit == "full", runner)
    record = describe(block, task.validation, batch, (start_log_stds, trained_log_stds), settings.refit != "none")
    record |= {"validation_psnr": processes.value_of_first(score(), device), "slower": task.slower + attempt}
    return Trained(block, record)


def slowed(fitting: FitSettings, times: int) -> FitSettings:
    """The settings with the learning rate divided by RATE_FACTOR**times."""
    rate = fitting.learning_rate / RATE_FACTOR**times
    final = min(fitting.final_learning_rate, rate)
    return dataclasses.replace(fitting, learning_rate=rate, final_learning_rate=final)
