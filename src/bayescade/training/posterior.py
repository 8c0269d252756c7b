"""The posterior of a trained block's random layers, set in closed form under the likelihood of the training images."""

from collections.abc import Sequence

import torch

from bayescade.bayes.last_layer import Curvature, NormalEquations
from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks._block import Block, MeanDraw
from bayescade.training.stage import Stage, batches, images_behind, mean_square

REFIT_BATCH = 64


@torch.no_grad()
def refit(block: Block, stage: Stage, temperature: float, move: bool) -> None:
    """The posterior of the random layers under the honest likelihood of the stage, the features frozen.

    The image's layer sees precision output_scale^2 / v where the ReLU is open. The variance's layer has its Fisher information,
    and keeps its mean, which was fitted by the likelihood. One variance for all pixels becomes the mean squared error.
    """
    if block.variance is None:
        return
    layers = random_layers(block)
    sums: list[NormalEquations | Curvature] = [
        NormalEquations(layer) if move and place == 0 else Curvature(layer) for place, layer in enumerate(layers)
    ]
    for some in batches(len(stage), REFIT_BATCH):
        add_images(block, stage, some, sums)
    for layer, found in zip(layers, sums, strict=True):
        found.refit(layer, temperature)
    if not block.variance.layers:
        image = images_behind(block, stage, "mean", batch=REFIT_BATCH)
        block.variance.start(mean_square(image, stage.truth))


def add_images(block: Block, stage: Stage, some: slice, sums: Sequence[NormalEquations | Curvature]) -> None:
    """Adds some images of the stage to the sums of the random layers."""
    assert block.variance is not None
    x = stage.image[some]
    inputs, h = block.features(x, stage.gradient[some])
    scale = block.output_scale
    mean = x + scale * block.last.mean(h)
    variance = block.variance(inputs, h, MeanDraw()).expand_as(x)
    residual = stage.truth[some] - mean.clamp_min(0)
    sums[0].add(h, scale**2 * (mean > 0) / variance, residual / scale)
    known = block.variance.information(inputs, h)
    if known is not None:
        features, information = known
        sums[1].add(features, information, torch.zeros_like(information))


def random_layers(block: Block) -> list[MeanFieldConv]:
    """The random layers of a block, in order."""
    return [layer for layer in block.layers if isinstance(layer, MeanFieldConv)]


def spread_of(block: Block) -> list[float]:
    """Median log standard deviation of the weights of each random layer (features that never occur keep the prior's)."""
    return [float(layer.log_std.detach().median()) for layer in random_layers(block)]
