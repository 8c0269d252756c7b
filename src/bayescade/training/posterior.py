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

import torch
from torch import Tensor

from bayescade.bayes.gaussian import safe_sqrt
from bayescade.bayes.last_layer import Curvature, NormalEquations
from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks._block import Block, MeanDraw
from bayescade.training.stage import Stage, batches, images_behind, mean_square

REFIT_BATCH = 64
SOME = 1024  # images, or a little more, that the search for the standard deviations begins with
PASSES = 20  # over them, at most, and over all
NEAR = 0.05  # in the logarithm of a standard deviation: that is near enough
SHORTER, LONGER = 0.5, 1.5  # the length of a step over that of the one before


@torch.no_grad()
def refit(block: Block, stage: Stage, temperature: float, move: bool) -> None:
    """The posterior of the random layers under the honest likelihood of the stage, the features frozen.

    The image's layer sees precision output_scale^2 / v where the ReLU is open; with `move` its mean is set too. The variance's
    layer has its Fisher information, and keeps its mean, which was fitted by the likelihood. One variance for all pixels
    becomes the mean squared error.
    """
    if block.variance is None:
        return
    if isinstance(block.last, MeanFieldConv):
        if move:
            refit_mean(block, block.last, stage, temperature)
        refit_spread(block, block.last, stage, temperature)
    for layer in block.variance.layers:
        assert isinstance(layer, MeanFieldConv)
        found = Curvature(layer)
        for some in batches(len(stage), REFIT_BATCH):
            known = block.variance.information(*block.features(stage.image[some], stage.gradient[some]))
            assert known is not None
            found.add(*known)
        found.refit(layer, temperature)
    if not block.variance.layers:
        image = images_behind(block, stage, "mean", batch=REFIT_BATCH)
        block.variance.start(mean_square(image, stage.truth))


def refit_mean(block: Block, layer: MeanFieldConv, stage: Stage, temperature: float) -> None:
    """The mean of the image's layer, by the normal equations of the pixels that are open."""
    equations = NormalEquations(layer)
    for some in batches(len(stage), REFIT_BATCH):
        x, h, weight = seen(block, stage, some)
        mean = x + block.output_scale * layer.mean(h)
        residual = stage.truth[some] - mean.clamp_min(0)
        equations.add(h, weight * (mean > 0), residual / block.output_scale)
    equations.refit(layer, temperature)


def refit_spread(block: Block, layer: MeanFieldConv, stage: Stage, temperature: float) -> None:
    """The variances of the image's layer, from the prior on: first over some of the images, then over all until they are near.

    What the standard deviations ask for falls as they rise, so a step may go too far: where one turns back it is half as long
    as the one before, else longer again, up to all of the way.
    """
    layer.log_std.zero_()
    every = max(1, len(stage) // SOME)
    for step in dict.fromkeys((every, 1)):
        before, length = torch.zeros_like(layer.log_std), torch.ones_like(layer.log_std)
        for _ in range(PASSES):
            change = wanted_spread(block, layer, stage, step, temperature).to(layer.log_std) - layer.log_std
            if float(change.abs().max()) < NEAR:
                break
            length = torch.where(change * before < 0, SHORTER * length, (LONGER * length).clamp_max(1))
            layer.log_std.add_(length * change)
            before = change


def wanted_spread(block: Block, layer: MeanFieldConv, stage: Stage, step: int, temperature: float) -> Tensor:
    """The log standard deviations that the present ones ask for, by every so manyth batch as if it were all."""
    found, images = Curvature(layer), 0
    for some in list(batches(len(stage), REFIT_BATCH))[::step]:
        x, h, weight = seen(block, stage, some)
        mean = x + block.output_scale * layer.mean(h)
        std = block.output_scale * safe_sqrt(layer.output_variance(h))
        found.add(h, weight * open_share(mean, std))
        images += len(x)
    return found.log_std(temperature * images / len(stage))


def seen(block: Block, stage: Stage, some: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Images, common features, and the precision of the output of the image's layer where the ReLU is open."""
    assert block.variance is not None
    x = stage.image[some]
    inputs, h = block.features(x, stage.gradient[some])
    variance = block.variance(inputs, h, MeanDraw()).expand_as(x)
    return x, h, block.output_scale**2 / variance


def open_share(mean: Tensor, std: Tensor) -> Tensor:
    """The probability that a Gaussian is above 0."""
    known = std > 0
    return torch.where(known, torch.special.ndtr(mean / torch.where(known, std, 1)), (mean > 0).to(mean.dtype))


def random_layers(block: Block) -> list[MeanFieldConv]:
    """The random layers of a block, in order."""
    return [layer for layer in block.layers if isinstance(layer, MeanFieldConv)]


def spread_of(block: Block) -> list[float]:
    """Median log standard deviation of the weights of each random layer (features that never occur keep the prior's)."""
    return [float(layer.log_std.detach().median()) for layer in random_layers(block)]
