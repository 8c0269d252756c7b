"""Initial weights and scales of a block: the weights of the block before, and scales that fit the input images."""

import torch
from torch import Tensor

from bayescade.blocks.block import Block, State
from bayescade.blocks.convolution import ConvStack
from bayescade.errors import UserError
from bayescade.training.stage import Stage

STARTS = ("revived", "warm", "fresh")
INPUT_LEVEL = 0.3  # standard deviation of the planes of the problem over the training set
OUTPUT_LEVEL = 20.0  # scale of a block's output over the root mean square error of the input images
REVIVED_BY = 64  # training images that decide which features are dead
REVIVED_BELOW = 0.005  # share of pixels in which a feature is positive; below it the feature is dead


def start_block(
    block: Block,  # with fresh weights
    previous: Block | None,
    stage: Stage,
    start: str,  # fresh (the paper), warm: from the block before, in scales that fit; revived: new weights for dead features
) -> None:
    """Sets weights and scales of a block for its training on the stage."""
    if start == "fresh":
        return
    fresh = {name: value.clone() for name, value in block.state_dict().items()}
    if previous is not None:
        copy_weights(block, previous)
    rescale(block, stage)
    if previous is not None and start == "revived":
        revive(block, fresh, stage)
    if previous is None and block.variance is not None:
        block.variance.start(stage.mse())


def copy_weights(block: Block, previous: Block) -> None:
    """Starts the block from the weights of the one before; the standard deviations of its random weights are new.

    A refitted standard deviation is that of the prior where a feature was always zero. This is too large a start for a feature
    that is no longer zero.
    """
    log_stds = {name: value for name, value in block.state_dict().items() if name.endswith("last.log_std")}
    block.load_state_dict({**previous.state_dict(), **log_stds})


@torch.no_grad()
def revive(block: Block, fresh: dict[str, Tensor], stage: Stage, least: float = REVIVED_BELOW) -> None:
    """Gives dead features fresh weights, and sets their weights in the next layer to zero.

    Otherwise the number of features that are not dead would fall from block to block.
    """
    group = stage.groups[0]
    batch = slice(0, min(REVIVED_BY, len(group)))
    planes, inputs = State.unstacked(group.state[batch]).stacked(), group.inputs[batch]
    trunk = block.trunk
    scaled = inputs * block.input_scale.reshape(-1, 1, 1)
    image, dead_image = revive_stack(trunk.image, "trunk.image", fresh, planes, least)
    other, dead_other = revive_stack(trunk.gradient, "trunk.gradient", fresh, scaled, least)
    trunk.common.convolutions()[0].weight[:, torch.cat([dead_image, dead_other])] = 0
    _, dead = revive_stack(trunk.common, "trunk.common", fresh, torch.cat([image, other], 1), least)
    block.last.weight[:, dead] = 0
    if block.variance is not None:
        block.variance.zero_weights_of(dead)


def revive_stack(
    stack: ConvStack, name: str, fresh: dict[str, Tensor], h: Tensor, least: float
) -> tuple[Tensor, Tensor]:
    """The output of the convolutions, and which features of the last one were dead, (channels,)."""
    dead = torch.zeros(h.shape[1], dtype=torch.bool, device=h.device)
    for number, layer in enumerate(stack.convolutions()):
        if number:
            layer.weight[:, dead] = 0
        out = layer(h).relu()
        dead = (out > 0).float().mean((0, 2, 3)) < least
        for part in ("weight", "bias"):
            getattr(layer, part)[dead] = fresh[f"{name}.{2 * number}.{part}"][dead]  # a ReLU between two convolutions
        h = layer(h).relu()
    return h, dead


def rescale(block: Block, stage: Stage) -> None:
    """Sets the scales of inputs, output and standard deviations by the input images."""
    level, stds = stage.mse() ** 0.5, stage.input_std()
    if not (level > 0 and stds[0] > 0):
        raise UserError(
            "training images: expected first images that differ from the truths, got equal ones: there is nothing to learn; "
            "are all images empty?"
        )
    scales = [INPUT_LEVEL / std if std > 0 else 1.0 for std in stds]  # a constant plane is not scaled
    block.input_scale.copy_(torch.tensor(scales))
    block.output_scale.fill_(OUTPUT_LEVEL * level)
    if block.variance is not None:
        block.variance.rescale(level)
