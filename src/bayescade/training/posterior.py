"""The posterior of a trained block's random layers, set in closed form under the likelihood of the training images.

Behind the ReLU that ends a block a weight is known by the pixels that are open: pixel i tells w_i h_id^2 about weight d with
the probability F(m_i / s_i) that a draw opens it, m_i and s_i being mean and standard deviation before the ReLU, F the normal
distribution function. The variance of the nearest Gaussian with independent weights (where the truth is 0, as it is where most
pixels are closed; elsewhere in the sense of Gauss and Newton) is where

    1 / variance_d = 1 + sum_i w_i h_id^2 F(m_i / s_i) / temperature,

which has the variances on both sides, in s_i. A pixel that is closed with mean weights tells nothing by them, but as soon as
draws would open it; without this a weight that only closed pixels have would be as wide as the prior, and the draws of it noise
in what should be empty.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from bayescade.bayes.gaussian import safe_sqrt
from bayescade.bayes.last_layer import Curvature, Inputs, NormalEquations, PlainInputs
from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks.block import Block
from bayescade.blocks.fused import FusedBlock
from bayescade.errors import Failure
from bayescade.kernels._triton import is_fused
from bayescade.training.optimiser import precision_on
from bayescade.training.stage import Stage, batches, images_behind, mean_square

REFIT_BATCH = 64
SOME = 256  # images, about, that the standard deviations are sought with first
SOME_BYTES = 2**30  # that their features may take
PASSES = 20  # over them, at most
MORE = 3  # over all, at most
NEAR = 0.05  # in the logarithm of a standard deviation: that is near enough
FAR = 0.5  # a step over all images that is shorter has no need of another
SHORTER, LONGER = 0.5, 1.5  # the length of a step over that of the one before


@torch.no_grad()
def refit(
    block: Block, stage: Stage, temperature: float, move: bool, kernels: str = "plain", precision: str = "auto"
) -> None:
    """The posterior of the random layers under the honest likelihood of the stage, the features frozen.

    The image's layer sees precision output_scale^2 / v where the ReLU is open; with `move` its mean is set too. The variance's
    layer has its Fisher information, and keeps its mean, which was fitted by the likelihood. One variance for all pixels
    becomes the mean squared error.
    """
    if block.variance is None:
        return
    assert isinstance(block.last, MeanFieldConv)
    if move:
        refit_mean(block, block.last, stage, temperature)
    look = look_of(block, stage, kernels, precision)
    seek_spread(block, block.last, stage, temperature, look)
    refit_spreads(block, stage, temperature, look)
    if not all(bool(layer.log_std.isfinite().all()) for layer in random_layers(block)):
        raise Failure("the spread of the weights is not a number")
    if not block.variance.layers:
        image = images_behind(block, stage, "mean", batch=REFIT_BATCH)
        block.variance.start(mean_square(image, stage.truth))


def refit_mean(block: Block, layer: MeanFieldConv, stage: Stage, temperature: float) -> None:
    """The mean of the image's layer, by the normal equations of the pixels that are open."""
    equations = NormalEquations(layer)
    for some in batches(len(stage), REFIT_BATCH):
        seen = plain_look(block, stage, some)
        assert isinstance(seen.inputs, PlainInputs)
        residual = stage.truth[some] - seen.mean.clamp_min(0)
        equations.add(seen.inputs.h, seen.weight * (seen.mean > 0), residual / block.output_scale)
    equations.refit(layer, temperature)


def seek_spread(block: Block, layer: MeanFieldConv, stage: Stage, temperature: float, look: "Look") -> None:
    """The standard deviations of the image's layer that ask for themselves, by some of the images, from the prior on."""
    layer.log_std.zero_()
    steps = Steps(layer.log_std)
    some = some_images(stage, look)
    share = sum(len(seen.mean) for seen in some) / len(stage)
    for _ in range(PASSES):
        found = Curvature(layer)
        for seen in some:
            found.add(seen.inputs, seen.weight * seen.open_share(block))
        if steps.towards(found.log_std(temperature * share)) < NEAR:
            break


def some_images(stage: Stage, look: "Look") -> list["Seen"]:
    """Batches from all over the stage, as many as are wanted and may be kept."""
    every = list(batches(len(stage), REFIT_BATCH))
    first = look(every[0]).without_variance()
    wanted = min(-(-SOME // len(first.mean)), SOME_BYTES // first.inputs.size)
    step = -(-len(every) // max(wanted, 1))
    return [first, *(look(batch).without_variance() for batch in every[step::step])]


def refit_spreads(block: Block, stage: Stage, temperature: float, look: "Look") -> None:
    """The standard deviations of all random layers, by all of the images: those of the image's layer from the present ones on,
    in more than one pass where few images have something that moves them far."""
    layers = random_layers(block)
    steps = Steps(layers[0].log_std)
    for number in range(MORE):
        found = [Curvature(layer) for layer in layers]
        for some in batches(len(stage), REFIT_BATCH):
            seen = look(some)
            found[0].add(seen.inputs, seen.weight * seen.open_share(block))
            if seen.of_variance is not None and number == 0:
                found[1].add(*seen.of_variance)
        if number == 0:
            for layer, curvature in zip(layers[1:], found[1:], strict=True):
                curvature.refit(layer, temperature)
        if steps.towards(found[0].log_std(temperature)) < FAR:
            break


@final
class Steps:
    """Log standard deviations on their way to those that ask for themselves.

    What they ask for falls as they rise, so a step may go too far: where one turns back it is half as long as the one before,
    else longer again, up to all of the way.
    """

    def __init__(self, log_std: Tensor):
        self.log_std = log_std
        self.before, self.length = torch.zeros_like(log_std), torch.ones_like(log_std)

    def towards(self, wanted: Tensor) -> float:
        """A step; the longest way that was left before it."""
        change = wanted.to(self.log_std) - self.log_std
        self.length = torch.where(change * self.before < 0, SHORTER * self.length, (LONGER * self.length).clamp_max(1))
        self.log_std.add_(self.length * change)
        self.before = change
        return float(change.abs().max())


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a block's last layer sees of some images; nothing of it depends on standard deviations."""

    inputs: Inputs  # common features
    mean: Tensor  # (images, 1, height, width): the next image before the ReLU, with mean weights
    weight: Tensor  # (images, 1, height, width): precision of the layer's output where the ReLU is open
    of_variance: tuple[Inputs, Tensor] | None  # inputs and Fisher information of the variance's random layer

    @classmethod
    def of(
        cls, block: Block, x: Tensor, inputs: Inputs, variance: Tensor, of_variance: tuple[Inputs, Tensor] | None
    ) -> "Seen":
        """What is seen of images x."""
        mean = x + block.output_scale * inputs.output_mean(block.last)
        return cls(inputs, mean, block.output_scale**2 / variance.expand_as(x), of_variance)

    def without_variance(self) -> "Seen":
        """What the image's layer needs."""
        return dataclasses.replace(self, of_variance=None)

    def open_share(self, block: Block) -> Tensor:
        """The probability that a draw of the layer opens the ReLU, (images, 1, height, width)."""
        std = block.output_scale * safe_sqrt(self.inputs.output_variance(block.last))
        known = std > 0
        share = torch.special.ndtr(self.mean / torch.where(known, std, 1))
        return torch.where(known, share, (self.mean > 0).to(share.dtype))


Look = Callable[[slice], Seen]  # at some images of a stage


def look_of(block: Block, stage: Stage, kernels: str, precision: str) -> Look:
    """How images are looked at: by the fused kernels, where they are used; where training is in 16 bits, so are features."""
    if not is_fused(kernels, stage.image.device):
        return functools.partial(plain_look, block, stage)
    half = precision_on(stage.image.device, precision) == "bf16"
    fast = FusedBlock(block, torch.float16 if half else stage.image.dtype)

    def look(some: slice) -> Seen:
        x = stage.image[some]
        features = fast.features(x, stage.gradient[some])
        return Seen.of(block, x, fast.last_inputs(features), *fast.at_mean(features))

    return look


def plain_look(block: Block, stage: Stage, some: slice) -> Seen:
    """The same by the plain layers."""
    assert block.variance is not None
    x = stage.image[some]
    inputs, h = block.features(x, stage.gradient[some])
    return Seen.of(block, x, PlainInputs(h), *block.variance.at_mean(inputs, h))


def random_layers(block: Block) -> list[MeanFieldConv]:
    """The random layers of a block, in order."""
    return [layer for layer in block.layers if isinstance(layer, MeanFieldConv)]


def spread_of(block: Block) -> list[float]:
    """Median log standard deviation of the weights of each random layer (features that never occur keep the prior's)."""
    return [float(layer.log_std.detach().median()) for layer in random_layers(block)]
