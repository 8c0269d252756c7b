"""The posterior of a trained block's random layers, set in closed form under the likelihood of the training images.

A block ends with a ReLU, and only pixels that it leaves positive (open) give information on the weights. Pixel i has precision
w_i h_id^2 for weight d, times the probability F(m_i / s_i) that a sample opens it; m_i and s_i are mean and standard deviation
before the ReLU, F is the normal distribution function. The nearest Gaussian with independent weights has variances with

    1 / variance_d = 1 + sum_i w_i h_id^2 F(m_i / s_i) / temperature,

exactly where the truth is 0 (most closed pixels), else in the Gauss-Newton approximation. Both sides depend on the variances,
the right one through s_i: the equation is solved by fixed-point iteration. A pixel that is closed with mean weights counts if
samples would open it. Otherwise a weight with closed pixels only would have the variance of the prior, and its samples would
add noise.
"""

import dataclasses
from typing import final

import torch
from torch import Tensor

from bayescade.bayes.gaussian import safe_sqrt
from bayescade.bayes.last_layer import Curvature, Inputs, NormalEquations, PlainInputs
from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks.block import Block, State
from bayescade.blocks.fused import FusedRunner
from bayescade.blocks.runner import PlainRunner
from bayescade.errors import Failure
from bayescade.training.runner import TrainingRunner
from bayescade.training.stage import ImageGroup, Stage, next_states

REFITS = ("none", "std", "full")
REFIT_BATCH = 64
FIRST_IMAGES = 256  # about: images of the first iterations of the standard deviations
FIRST_BYTES = 2**30  # most bytes of their features
PASSES = 20  # most iterations over these images
FULL_PASSES = 3  # most iterations over all images
CONVERGED = 0.05  # change of a log standard deviation at which the iteration stops
CONVERGED_ALL = 0.5  # the same for iterations over all images
DAMPED, UNDAMPED = 0.5, 1.5  # factors of the step length


@torch.no_grad()
def refit(block: Block, stage: Stage, temperature: float, move: bool, runner: TrainingRunner) -> None:
    """The posterior of the random layers under the likelihood of the stage, the features frozen.

    The image's layer sees precision output_scale^2 / v where the ReLU is open; with `move` its mean is set too. The variance's
    layer sees its Fisher information; its mean, which was fitted by the likelihood, does not change. A variance shared by all
    pixels is set to the mean squared error.
    """
    if block.variance is None:
        return
    assert isinstance(block.last, MeanFieldConv)
    if move:
        refit_mean(block, block.last, stage, temperature)
    block_runner = runner.block_runner(block)
    iterate_std(block.last, stage, temperature, block_runner)
    refit_std(stage, temperature, block_runner)
    if not all(bool(layer.log_std.isfinite().all()) for layer in random_layers(block)):
        raise Failure("the standard deviation of the weights is not a number")
    if block.variance.last is None:
        states = next_states(block, stage, "mean", runner, batch=REFIT_BATCH)
        block.variance.start(stage.with_states(states).mse())


def refit_mean(block: Block, layer: MeanFieldConv, stage: Stage, temperature: float) -> None:
    """The mean of the image's layer, by the normal equations of the pixels that are open."""
    equations = NormalEquations(layer)
    plain = PlainRunner(block)
    for group, batch in stage.slices(REFIT_BATCH):
        seen = layer_batch(plain, group, batch)
        assert isinstance(seen.inputs, PlainInputs)
        residual = group.truth[batch] - seen.mean.clamp_min(0)
        equations.add(seen.inputs.h, seen.weight * (seen.mean > 0), residual / block.output_scale)
    equations.refit(layer, temperature)


def iterate_std(layer: MeanFieldConv, stage: Stage, temperature: float, runner: "Runner") -> None:
    """The standard deviations of the image's layer by fixed-point iteration over the first images, starting at the prior."""
    layer.log_std.zero_()
    iteration = FixedPoint(layer.log_std)
    first = first_images(stage, runner)
    share = sum(len(seen.mean) for seen in first) / len(stage)
    for _ in range(PASSES):
        curvature = Curvature(layer)
        for seen in first:
            curvature.add(seen.inputs, seen.weight * seen.open_probability(runner.block))
        if iteration.step(curvature.log_std(temperature * share)) < CONVERGED:
            break


def first_images(stage: Stage, runner: "Runner") -> list["LayerBatch"]:
    """Batches from the whole stage, at most `FIRST_IMAGES` images and `FIRST_BYTES` of features."""
    batches = list(stage.slices(REFIT_BATCH))
    first = layer_batch(runner, *batches[0]).without_variance()
    number = min(-(-FIRST_IMAGES // len(first.mean)), FIRST_BYTES // first.inputs.size)
    step = -(-len(batches) // max(number, 1))
    return [first, *(layer_batch(runner, *batch).without_variance() for batch in batches[step::step])]


def refit_std(stage: Stage, temperature: float, runner: "Runner") -> None:
    """The standard deviations of all random layers, by all images. Those of the image's layer start at their present values;
    they need more than one pass where a few images change them much."""
    layers = random_layers(runner.block)
    iteration = FixedPoint(layers[0].log_std)
    for number in range(FULL_PASSES):
        curvatures = [Curvature(layer) for layer in layers]
        for group, batch in stage.slices(REFIT_BATCH):
            seen = layer_batch(runner, group, batch)
            curvatures[0].add(seen.inputs, seen.weight * seen.open_probability(runner.block))
            if seen.of_variance is not None and number == 0:
                curvatures[1].add(*seen.of_variance)
        if number == 0:
            for layer, curvature in zip(layers[1:], curvatures[1:], strict=True):
                curvature.refit(layer, temperature)
        if iteration.step(curvatures[0].log_std(temperature)) < CONVERGED_ALL:
            break


@final
class FixedPoint:
    """Damped fixed-point iteration of log standard deviations.

    The right-hand side falls as they rise, so a step may go too far. Where the direction changes, the step is half as long as
    the one before; else it grows again, up to the full step.
    """

    def __init__(self, log_std: Tensor):
        self.log_std = log_std
        self.before, self.length = torch.zeros_like(log_std), torch.ones_like(log_std)

    def step(self, target: Tensor) -> float:
        """Moves towards the target; gives the largest difference to it."""
        change = target.to(self.log_std) - self.log_std
        turned = change * self.before < 0
        self.length = torch.where(turned, DAMPED * self.length, (UNDAMPED * self.length).clamp_max(1))
        self.log_std.add_(self.length * change)
        self.before = change
        return float(change.abs().max())


@dataclasses.dataclass(frozen=True)
class LayerBatch:
    """The input of a block's last layer for a batch of images; it does not depend on standard deviations."""

    inputs: Inputs  # common features
    mean: Tensor  # (images, 1, height, width): the next image before the ReLU, with mean weights
    weight: Tensor  # (images, 1, height, width): precision of the layer's output where the ReLU is open
    of_variance: tuple[Inputs, Tensor] | None  # inputs and Fisher information of the variance's random layer

    def without_variance(self) -> "LayerBatch":
        """The part that the image's layer needs."""
        return dataclasses.replace(self, of_variance=None)

    def open_probability(self, block: Block) -> Tensor:
        """The probability that a sample of the layer opens the ReLU, (images, 1, height, width)."""
        std = block.output_scale * safe_sqrt(self.inputs.output_variance(block.last))
        is_random = std > 0
        probability = torch.special.ndtr(self.mean / torch.where(is_random, std, 1))
        return torch.where(is_random, probability, (self.mean > 0).to(probability.dtype))


Runner = PlainRunner | FusedRunner


def layer_batch(runner: Runner, group: ImageGroup, batch: slice) -> LayerBatch:
    """The input of the last layer for a batch of the group."""
    block = runner.block
    state = State.unstacked(group.state[batch])
    features = runner.features(state, group.inputs[batch])
    inputs = runner.last_inputs(state, features)
    variance, of_variance = runner.at_mean(state, features)
    mean = state.image + block.output_scale * inputs.output_mean(block.last)
    return LayerBatch(inputs, mean, block.output_scale**2 / variance.expand_as(state.image), of_variance)


def random_layers(block: Block) -> list[MeanFieldConv]:
    """The random layers of a block, in order."""
    return [layer for layer in block.layers if isinstance(layer, MeanFieldConv)]


def median_log_std(block: Block) -> list[float]:
    """Median log standard deviation of the weights of each random layer (a feature that is always zero has the prior's)."""
    return [float(layer.log_std.detach().median()) for layer in random_layers(block)]
