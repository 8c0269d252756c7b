"""The posterior of a trained block's random layers, set in closed form under the likelihood of the training images.

The random layers are the image layer (the last layer of the block) and the variance layer (the last layer of its
variance network). A ReLU follows the image layer. A pixel whose value before the ReLU is positive is open, else closed.
Only open pixels give information on the weights of the image layer. The Gaussian with independent weights that is
nearest to the posterior has the variances

    1 / variance_d = 1 + sum_i w_i h_id^2 F(m_i / s_i) / temperature    for weight d, summed over all pixels i.

h_id is the feature that weight d multiplies in pixel i, and w_i is the precision of the layer's output in pixel i. m_i
and s_i are mean and standard deviation of the pixel before the ReLU. F is the standard normal distribution function:
F(m_i / s_i) is the probability that the pixel is open for a sample of the weights. The formula is exact for pixels
whose truth is 0 (most closed pixels), and a Gauss-Newton approximation for the other pixels.

s_i depends on the variances. So the equation is solved by fixed-point iteration. A pixel that is closed with mean
weights counts if it is open for some samples. If it did not count, a weight with closed pixels only would have the
variance of the prior, and its samples would add noise.
"""

import dataclasses
from typing import final

import torch
from torch import Tensor

from bayescade.bayes.gaussian import safe_sqrt
from bayescade.bayes.last_layer import Curvature, Inputs, NormalEquations, PlainInputs
from bayescade.bayes.layers import LOG_STD_START, MeanFieldConv
from bayescade.blocks.block import Block, State
from bayescade.blocks.fused import FusedRunner
from bayescade.blocks.runner import PlainRunner
from bayescade.errors import Failure
from bayescade.training.runner import TrainingRunner
from bayescade.training.stage import ImageGroup, Stage, next_states

REFITS = ("none", "std", "full")
REFIT_BATCH = 64
FIRST_IMAGES = 256  # approximate number of images in the first iterations, which use only some of the images
FIRST_BYTES = 2**30  # limit of the bytes of their features
PASSES = 20  # limit of the number of these first iterations
FULL_PASSES = 3  # limit of the number of iterations over all images
CONVERGED = 0.05  # the first iterations stop when no log standard deviation changes by more
CONVERGED_ALL = 0.5  # the same for iterations over all images
UNUSED = -0.1  # log standard deviation: above it a weight has nearly the prior as its posterior
DAMPED, UNDAMPED = 0.5, 1.5  # factors of the step length: after a change of direction, and otherwise


@torch.no_grad()
def refit(
    block: Block,
    stage: Stage,
    temperature: float,
    move: bool,  # whether the mean weights of the image layer are set too
    runner: TrainingRunner,
) -> None:
    """Sets the random layers to their posterior under the likelihood of the stage's images; the features do not change.

    The precision w_i is output_scale^2 / v_i for the image layer, v_i the aleatoric variance; for the variance layer it
    is the Fisher information. The mean weights of the variance layer do not change: training has fitted them by the
    likelihood. A variance that all pixels share is set to the mean squared error.
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
    """Sets the mean weights of the image layer, by the normal equations of the open pixels."""
    equations = NormalEquations(layer)
    plain = PlainRunner(block)
    for group, batch in stage.slices(REFIT_BATCH):
        layer_batch = compute_layer_batch(plain, group, batch)
        assert isinstance(layer_batch.inputs, PlainInputs)
        residual = group.truth[batch] - layer_batch.mean.clamp_min(0)
        open_weight = layer_batch.weight * (layer_batch.mean > 0)
        equations.add(layer_batch.inputs.h, open_weight, residual / block.output_scale)
    equations.refit(layer, temperature)


def iterate_std(layer: MeanFieldConv, stage: Stage, temperature: float, runner: "Runner") -> None:
    """Sets the standard deviations of the image layer, by fixed-point iteration over some of the images.

    The iteration starts at the standard deviations of the prior.
    """
    layer.log_std.zero_()
    iteration = FixedPoint(layer.log_std)
    layer_batches = some_batches(stage, runner)
    fraction = sum(len(layer_batch.mean) for layer_batch in layer_batches) / len(stage)
    for _ in range(PASSES):
        curvature = Curvature(layer)
        for layer_batch in layer_batches:
            curvature.add(layer_batch.inputs, layer_batch.weight * layer_batch.open_probability(runner.block))
        # A sum over this fraction of the images, divided by `fraction`, estimates the sum over all images.
        if iteration.step(curvature.log_std(temperature * fraction)) < CONVERGED:
            break


def some_batches(stage: Stage, runner: "Runner") -> list["LayerBatch"]:
    """Batches at equal distances in the stage: about FIRST_IMAGES images, and FIRST_BYTES of features at most."""
    batches = list(stage.slices(REFIT_BATCH))
    first = compute_layer_batch(runner, *batches[0]).without_variance()
    count = min(-(-FIRST_IMAGES // len(first.mean)), FIRST_BYTES // first.inputs.size)
    step = -(-len(batches) // max(count, 1))
    return [first, *(compute_layer_batch(runner, *batch).without_variance() for batch in batches[step::step])]


def refit_std(stage: Stage, temperature: float, runner: "Runner") -> None:
    """Sets the standard deviations of all random layers, from all images.

    The variance layer needs one pass over the images. The image layer starts at its present standard deviations; it
    needs more than one pass if a few images change them much.
    """
    layers = random_layers(runner.block)
    iteration = FixedPoint(layers[0].log_std)
    for index in range(FULL_PASSES):
        curvatures = [Curvature(layer) for layer in layers]
        for group, batch in stage.slices(REFIT_BATCH):
            layer_batch = compute_layer_batch(runner, group, batch)
            curvatures[0].add(layer_batch.inputs, layer_batch.weight * layer_batch.open_probability(runner.block))
            if layer_batch.variance_layer is not None and index == 0:
                curvatures[1].add(*layer_batch.variance_layer)
        if index == 0:
            for layer, curvature in zip(layers[1:], curvatures[1:], strict=True):
                curvature.refit(layer, temperature)
        if iteration.step(curvatures[0].log_std(temperature)) < CONVERGED_ALL:
            break


@final
class FixedPoint:
    """Damped fixed-point iteration of log standard deviations.

    The target falls when the standard deviations rise, so a full step may go too far. Every weight has a step length of
    at most 1 (a full step). It is multiplied by DAMPED if the direction of the step changes, else by UNDAMPED.
    """

    def __init__(self, log_std: Tensor):
        self.log_std = log_std
        self.last_change, self.length = torch.zeros_like(log_std), torch.ones_like(log_std)

    def step(self, target: Tensor) -> float:
        """Moves towards the target; gives the largest difference from the target before the move."""
        change = target.to(self.log_std) - self.log_std
        reverses = change * self.last_change < 0
        self.length = torch.where(reverses, DAMPED * self.length, (UNDAMPED * self.length).clamp_max(1))
        self.log_std.add_(self.length * change)
        self.last_change = change
        return float(change.abs().max())


@dataclasses.dataclass(frozen=True)
class LayerBatch:
    """What the posterior needs of a batch of images; it does not depend on standard deviations of weights."""

    inputs: Inputs  # the input of the image layer: common features
    mean: Tensor  # (images, 1, height, width): the next image before the ReLU, with mean weights
    weight: Tensor  # (images, 1, height, width): w_i, the precision of the output of the image layer
    variance_layer: tuple[Inputs, Tensor] | None  # inputs and Fisher information of the variance layer

    def without_variance(self) -> "LayerBatch":
        """Only what the image layer needs."""
        return dataclasses.replace(self, variance_layer=None)

    def open_probability(self, block: Block) -> Tensor:
        """The probability that a pixel is open for a sample of the weights, (images, 1, height, width)."""
        std = block.output_scale * safe_sqrt(self.inputs.output_variance(block.last))
        is_random = std > 0
        probability = torch.special.ndtr(self.mean / torch.where(is_random, std, 1))
        return torch.where(is_random, probability, (self.mean > 0).to(probability.dtype))


Runner = PlainRunner | FusedRunner


def compute_layer_batch(runner: Runner, group: ImageGroup, batch: slice) -> LayerBatch:
    """What the posterior needs of these images of the group."""
    block = runner.block
    state = State.unstacked(group.state[batch])
    features = runner.features(state, group.inputs[batch])
    inputs = runner.last_inputs(state, features)
    variance, variance_layer = runner.at_mean(state, features)
    mean = state.image + block.output_scale * inputs.output_mean(block.last)
    return LayerBatch(inputs, mean, block.output_scale**2 / variance.expand_as(state.image), variance_layer)


@torch.no_grad()
def silence_unused(block: Block) -> None:
    """Sets the weights of the random layers to zero, almost without deviation, if the images told nothing about them.

    These are weights of features that are zero in all images. Their posterior is the prior, so that in an image in which such
    a feature is positive they would add noise of any size.
    """
    for layer in random_layers(block):
        unused = layer.log_std > UNUSED
        layer.weight[unused] = 0
        layer.log_std[unused] = LOG_STD_START


def random_layers(block: Block) -> list[MeanFieldConv]:
    """The random layers of a block: the image layer, then the variance layer if there is one."""
    return [layer for layer in block.layers if isinstance(layer, MeanFieldConv)]


def median_log_std(block: Block) -> list[float]:
    """The median of the log standard deviations of the weights of each random layer.

    After a refit, the weights of a feature that is always zero have the standard deviation of the prior.
    """
    return [float(layer.log_std.detach().median()) for layer in random_layers(block)]
