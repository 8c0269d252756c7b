"""Greedy training of a cascade: block after block, each on the images that the blocks before it give.

Everything depends on the settings, the seed and the stages only: a run that was cut off gives the same blocks when it is
taken up again behind the last block that was kept.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from bayescade.blocks.block import Block, channels_last
from bayescade.errors import Failure, UserError
from bayescade.progress import Advance, progress
from bayescade.seeds import derived_seed
from bayescade.training import losses
from bayescade.training.distributed import ALONE, Team
from bayescade.training.fit import FitSettings, fit
from bayescade.training.posterior import refit, spread_of
from bayescade.training.stage import SAMPLINGS, Stage, advance, images_behind, predictions
from bayescade.training.start import rescale, revive, warm_up

Make = Callable[[torch.Generator], Block]

REFITS = ("none", "spread", "full")
MEAN_SHARE = 2 / 3  # of the epochs, in mean-first
SLOWER = 4  # learning rate of a try over that of the next
MOST_SLOWER = 3  # times that a block begins slower
STILL = 0.1  # a posterior whose log standard deviations move less than this has not learned
FAR_OFF = 4.0  # factor between mean variance and mean squared error at which the variance is not to be believed
COLLAPSED = 0.5  # share of pixels at the variance floor at which the variance says nothing


@dataclasses.dataclass(frozen=True)
class GreedySettings:
    """How a cascade is trained; the block's own settings are beside these."""

    blocks: int = 10  # K
    loss: str = "side-by-side"  # elbo (the paper), elbo-as-released, beta-nll, side-by-side, mean-first
    beta: float = 1.0  # of beta-nll
    balance: float = 1.0  # of side-by-side: 0 = least squares, 1 = images count alike however large their errors are
    temperature: float = 1.0  # weight of the KL; the posterior counts every pixel as 1 / temperature observations
    # The posterior in closed form after training: none, spread (standard deviations), full (the mean of the image's layer too).
    refit: str = "spread"
    sampling: str = "weights"  # noise of the images that go on to the next block: mean, activations, weights
    redraw: int = 3  # epochs between new draws of the noise of the block before; 0 = one draw for all epochs
    warm_start: bool = True  # a block starts from the weights of the one before
    warm_rate: float = 1.0  # the learning rate of such a block, over that of the block before
    # Part of the pixels in which a feature is there, below which it starts afresh in such a block.
    revive: float = 0.005
    gradient_level: float = 0.3  # standard deviation of the gradient input over the training set; 0 = as it comes
    # Scale of a block's output over the root mean square error of the images that come in, which then also is the scale of its
    # standard deviations; 0 = no scales.
    output_level: float = 20.0
    restarts: int = 1  # new tries, at a lower rate, for a block that gains nothing on the validation images
    least_gain: float = 0.05  # dB on the validation images, below which a block is dead
    # Below which those behind it begin slower, as they do behind one that needed a slower try; 0 = behind such a one only.
    weak_gain: float = 0.0

    def __post_init__(self) -> None:
        losses.check_loss(self.loss)
        if not 1 <= self.blocks <= 1000:
            raise UserError(f"setting blocks: expected a whole number from 1 to 1000, got {self.blocks}")
        if self.refit not in REFITS:
            raise UserError(f"setting refit: expected {', '.join(REFITS)}, got '{self.refit}'")
        if self.sampling not in SAMPLINGS:
            raise UserError(f"setting sampling: expected {', '.join(SAMPLINGS)}, got '{self.sampling}'")
        losses.check_balance(self.balance)
        for name in ("beta", "gradient_level", "output_level", "redraw", "restarts", "revive", "weak_gain"):
            if not 0 <= getattr(self, name) < 1e6:
                raise UserError(f"setting {name}: expected a number of at least 0, got {getattr(self, name)}")
        for name in ("temperature", "warm_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"setting {name}: expected a positive number, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class Trained:
    """A block and what is to be said about it; no block where no try gained anything."""

    block: Block | None
    record: dict[str, Any]  # JSON values


Report = Callable[[dict[str, Any]], None]  # a line of metrics
Keep = Callable[[int, Block, dict[str, Any]], None]  # (place, block, record): called as soon as a block is done
End = Callable[[dict[str, Any]], None]  # (record): called when the cascade ends before its time


def train_cascade(
    make: Make,
    train: Stage,
    validation: Stage,
    settings: GreedySettings,
    fitting: FitSettings,
    *,
    seed: int,
    done: Sequence[Block] = (),  # blocks that an earlier run has kept
    slower: int = 0,  # `slower_behind` the last of them
    keep: Keep = lambda place, block, record: None,
    end: End = lambda record: None,
    report: Report = lambda line: None,
    team: Team = ALONE,
) -> list[Block]:
    """The blocks; fewer than asked for where even new tries of one gained nothing."""
    blocks = list(done)
    before, inputs, watched = rebuild(blocks, train, validation, settings, fitting, seed=seed)
    with progress("training", (settings.blocks - len(blocks)) * fitting.epochs) as advance_total:
        for place in range(len(blocks), settings.blocks):
            previous = blocks[-1] if blocks else None

            def stages(epoch: int, before: Stage | None = before, inputs: Stage = inputs, place: int = place) -> Stage:
                if before is None or not settings.redraw or epoch % settings.redraw or not epoch:
                    return inputs
                again = derived_seed(seed, "advance", place - 1, epoch)
                return pushed(blocks[place - 1], before, settings.sampling, fitting, again)

            trained = train_block(
                make, previous, stages, watched, settings, fitting, place, slower, seed, report, advance_total, team
            )
            if trained.block is None:
                end(trained.record)
                break
            slower = slower_behind(trained.record, settings)
            keep(place, trained.block, trained.record)
            blocks.append(trained.block)
            before = inputs if settings.redraw else None
            inputs = next_stage(trained.block, place, inputs, settings, fitting, seed=seed)
            watched = pushed(trained.block, watched, "mean", fitting, 0)
    return blocks


def slower_behind(record: Mapping[str, Any], settings: GreedySettings) -> int:
    """How many times the learning rate of the next block is lowered from the start."""
    weak = settings.weak_gain > 0 and record["gain"] < settings.weak_gain
    return min(int(record["slower"]) + weak, MOST_SLOWER)


def rebuild(
    blocks: Sequence[Block],
    train: Stage,
    validation: Stage,
    settings: GreedySettings,
    fitting: FitSettings,
    *,
    seed: int,
) -> tuple[Stage | None, Stage, Stage]:
    """The stage before the last block, the stage behind it, and the validation stage there."""
    before, inputs, watched = None, train, validation
    for place, block in enumerate(blocks):
        before, inputs = inputs, next_stage(block, place, inputs, settings, fitting, seed=seed)
        watched = pushed(block, watched, "mean", fitting, 0)
    return before, inputs, watched


def next_stage(
    block: Block, place: int, inputs: Stage, settings: GreedySettings, fitting: FitSettings, *, seed: int
) -> Stage:
    """The training stage behind a block."""
    return pushed(block, inputs, settings.sampling, fitting, derived_seed(seed, "advance", place, 0))


def pushed(block: Block, stage: Stage, sampling: str, fitting: FitSettings, seed: int) -> Stage:
    """The stage behind a block."""
    return advance(block, stage, sampling, seed=seed, batch=fitting.batch, kernels=fitting.kernels)


def train_block(
    make: Make,
    previous: Block | None,
    stages: Callable[[int], Stage],
    validation: Stage,
    settings: GreedySettings,
    fitting: FitSettings,
    place: int,
    slower: int,  # times that the rate is lowered from the start
    seed: int,
    report: Report,
    advance_total: Advance,
    team: Team,
) -> Trained:
    """One block, with new tries where it gains nothing on the validation images or its loss is not a number.

    Without new tries (the paper) the block is taken as it is.
    """
    start = time.perf_counter()
    baseline = team.agree(validation.psnr(), validation.image.device)
    tries: list[Trained] = []
    failures: list[str] = []
    for attempt in range(settings.restarts + 1):
        warm = previous if settings.warm_start else None
        rate = fitting.learning_rate * (settings.warm_rate**place if warm is not None else 1.0)
        rate /= SLOWER ** (slower + attempt)
        fitted = dataclasses.replace(
            fitting, learning_rate=rate, final_learning_rate=min(fitting.final_learning_rate, rate)
        )
        try:
            trained = attempt_block(
                make, warm, stages, validation, settings, fitted, place, attempt, seed, report, advance_total, team
            )
        except Failure as failure:
            failures.append(str(failure))
            report({"block": place + 1, "try": attempt + 1, "failed": str(failure)})
            continue
        tries.append(Trained(trained.block, {**trained.record, "slower": slower + attempt}))
        if trained.record["validation_psnr"] - baseline > settings.least_gain:
            break
    if not tries:
        raise Failure(
            f"block {place + 1}, {failures[-1]}; the blocks before it are kept. Try a smaller learning rate in another folder: "
            f"--set fit.learning_rate={fitting.learning_rate / 10:g}"
        )
    best = max(tries, key=lambda trained: trained.record["validation_psnr"])
    gain = best.record["validation_psnr"] - baseline
    number = len(tries) + len(failures)
    record = {**best.record, "gain": gain, "tries": number, "seconds": time.perf_counter() - start}
    if gain <= settings.least_gain and settings.restarts:
        said = (
            f"block {place + 1} gained nothing on the validation images in {number} tries; the cascade ends before it"
        )
        return Trained(None, {"block": place + 1, "tries": number, "seconds": record["seconds"], "warnings": [said]})
    if number > 1:
        said = f"block {place + 1}: needed {number} tries to gain on the validation images"
        record["warnings"] = [*record["warnings"], said]
    elif gain <= settings.least_gain:
        said = f"block {place + 1}: gained {gain:.2f} dB on the validation images"
        record["warnings"] = [*record["warnings"], said]
    return Trained(best.block, record)


def attempt_block(
    make: Make,
    warm: Block | None,
    stages: Callable[[int], Stage],
    validation: Stage,
    settings: GreedySettings,
    fitting: FitSettings,
    place: int,
    attempt: int,
    seed: int,
    report: Report,
    advance_total: Advance,
    team: Team,
) -> Trained:
    """One try at a block."""
    stage = stages(0)
    device = stage.image.device
    block = make(torch.Generator().manual_seed(derived_seed(seed, "weights", place, attempt))).to(device)
    fresh = {name: value.clone() for name, value in block.state_dict().items()}
    if warm is not None:
        warm_up(block, warm)
    rescale(block, stage, settings.gradient_level, settings.output_level)
    if warm is not None and settings.revive:
        revive(block, fresh, stage, settings.revive)
    if warm is None and settings.warm_start and block.variance is not None:
        block.variance.start(stage.mse())
    start_spread = spread_of(block)
    channels_last(block)

    with progress(f"block {place + 1} of {settings.blocks}", fitting.epochs) as advance_block:
        done = 0
        for loss, part, parameters in phases(block, settings, fitting, len(stage), team):

            def on_epoch(epoch: int, loss_value: float, rate: float, done: int = done) -> None:
                score = validation_psnr(block, validation, fitting)
                line = {"block": place + 1, "try": attempt + 1, "epoch": done + epoch + 1, "loss": loss_value}
                report({**line, "validation_psnr": score, "learning_rate": rate})
                note = f"loss {loss_value:.4g}, validation {score:.2f} dB"
                advance_block(1, note)
                if attempt == 0:
                    advance_total(1, note)

            run_seed = derived_seed(seed, "fit", place, attempt, done)
            fit(block, stages, loss, part, seed=run_seed, parameters=parameters, team=team, on_epoch=on_epoch)
            done += part.epochs
    trained_spread = spread_of(block)
    if settings.refit != "none":
        move = settings.refit == "full"
        refit(block, stage, settings.temperature, move, fitting.kernels, fitting.precision)
    record = describe(
        block, validation, fitting, start_spread, trained_spread, place, refitted=settings.refit != "none"
    )
    record["validation_psnr"] = team.agree(record["validation_psnr"], device)
    return Trained(block, record)


def phases(
    block: Block, settings: GreedySettings, fitting: FitSettings, images: int, team: Team
) -> list[tuple[losses.Loss, FitSettings, Sequence[nn.Parameter] | None]]:
    """The losses of a training, each with its epochs and with the parameters that learn (None: all)."""
    temperature = settings.temperature
    if settings.loss == "elbo":
        return [(losses.elbo(images, temperature, team), fitting, None)]
    if settings.loss == "elbo-as-released":
        return [(losses.elbo_as_released(images, temperature, team), fitting, None)]
    if settings.loss == "side-by-side":
        return [(losses.side_by_side(images, temperature, settings.balance, team), fitting, None)]
    if settings.loss == "beta-nll" or block.variance is None:
        return [(losses.beta_nll(images, settings.beta, temperature, team), fitting, None)]
    first = max(1, round(MEAN_SHARE * fitting.epochs))
    second = max(1, fitting.epochs - first)
    return [
        (losses.squared_error, dataclasses.replace(fitting, epochs=first), None),
        (
            losses.variance_nll(images, temperature),
            dataclasses.replace(fitting, epochs=second),
            list(block.variance.parameters()),
        ),
    ]


def validation_psnr(block: Block, validation: Stage, fitting: FitSettings) -> float:
    """Mean PSNR behind the block with its mean weights."""
    image = images_behind(block, validation, "mean", batch=fitting.batch, kernels=fitting.kernels)
    return dataclasses.replace(validation, image=image).psnr()


def describe(
    block: Block,
    validation: Stage,
    fitting: FitSettings,
    start: list[float],
    trained: list[float],
    place: int,
    refitted: bool,
) -> dict[str, Any]:
    """What is to be said about a block: its score, how far its posterior moved, how often its variance is at the floor."""
    warnings: list[str] = []
    record: dict[str, Any] = {"validation_psnr": validation_psnr(block, validation, fitting), "warnings": warnings}
    final = spread_of(block)
    if final:
        record["log_std"] = {"start": start, "trained": trained, "final": final}
        if not refitted and abs(final[0] - start[0]) < STILL:
            warnings.append(f"block {place + 1}: the posterior has not moved from its start; epistemic maps say little")
    if block.variance is not None:
        scores, at_floor, claimed, found = [], [], [], []
        for some, prediction in predictions(block, validation, fitting.batch):
            truth = validation.truth[some]
            scores.append(losses.nll(prediction, truth).flatten(1).mean(1))
            assert prediction.variance is not None
            claimed.append(prediction.variance.expand_as(truth).flatten(1).mean(1))
            found.append(((truth - prediction.mean) ** 2).flatten(1).mean(1))
            if block.variance.layers:
                at_floor.append((prediction.variance < 2 * block.variance.floor).float().flatten(1).mean(1))
        record["validation_nll"] = float(torch.cat(scores).mean())
        variance, error = torch.cat(claimed), torch.cat(found).clamp_min(1e-30)
        record["variance_over_mse"] = float(variance.mean() / error.mean())
        record["variance_over_mse_median"] = float((variance / error).median())
        # One image that is lost and known to be can dominate the mean; a variance that says nothing fails in most images too.
        both = record["variance_over_mse"], record["variance_over_mse_median"]
        if all(not 1 / FAR_OFF < ratio < FAR_OFF for ratio in both):
            warnings.append(
                f"block {place + 1}: the mean variance is {both[0]:.2g} times the mean squared error "
                f"({both[1]:.2g} times in the median image)"
            )
        if at_floor:
            record["share_at_floor"] = float(torch.cat(at_floor).mean())
            if record["share_at_floor"] > COLLAPSED:
                warnings.append(
                    f"block {place + 1}: the variance has collapsed, "
                    f"{record['share_at_floor']:.0%} of the pixels are at its floor"
                )
    return record
