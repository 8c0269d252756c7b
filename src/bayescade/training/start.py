"""Initial weights and scales of a block: weights of the previous block, and scales that fit the input images."""

from collections.abc import Mapping

import torch
from torch import Tensor

from bayescade.blocks.block import Block, State
from bayescade.blocks.convolution import ConvStack
from bayescade.errors import UserError
from bayescade.training.stage import Stage

STARTS = ("revived", "warm", "fresh")
INPUT_LEVEL = 0.3  # standard deviation of the scaled planes of the problem, over the training set
OUTPUT_LEVEL = 20.0  # ratio of `output_scale` to the root mean square error of the input images
WIDE_OUTPUT_LEVEL = 3.0  # the same for a block of `widen`, whose features are larger
REVIVE_IMAGES = 64  # number of training images that are used to find dead features; fewer if they are large
DEAD_BELOW = 0.005  # a feature is dead if it is positive in less than this fraction of the pixels


def start_block(
    block: Block,  # with new weights
    previous: Block | None,
    stage: Stage,
    start: str,  # one of STARTS
) -> None:
    """Sets weights and scales of a block for its training on the stage.

    fresh: nothing is changed (the paper). warm: the weights of the previous block, and scales that fit the stage.
    revived: the same as warm, but dead features have new weights. The first block always has new weights.
    """
    if start == "fresh":
        return
    new_weights = {name: value.clone() for name, value in block.state_dict().items()}
    if previous is not None:
        copy_weights(block, previous)
    rescale(block, stage)
    if previous is not None and start == "revived" and block.trunk.can_die:
        group = stage.groups[0]
        batch = slice(0, min(group.pass_batch(REVIVE_IMAGES), len(group)))
        revive(block, new_weights, State.unstacked(group.state[batch]), group.inputs[batch])
    if previous is None and block.variance is not None:
        block.variance.start(stage.mse())


@torch.no_grad()
def start_as_identity(
    block: Block,  # with new weights
    stage: Stage,
) -> None:
    """Sets the scales of a block for these images, and its last layer to zero: the block does not change an image."""
    widen(block)
    rescale(block, stage, WIDE_OUTPUT_LEVEL)
    block.last.weight.zero_()
    block.last.bias.zero_()
    if block.variance is not None:
        block.variance.start(stage.mse())


@torch.no_grad()
def widen(
    block: Block,  # with new weights
) -> None:
    """Scales the new weights so that features are as large as their inputs."""
    block.trunk.widen()
    if block.variance is not None and block.variance.body is not None:
        block.variance.body.widen()


def start_from(
    block: Block,  # with new weights
    stored: Mapping[str, Tensor],  # tensors of a trained block; those of the variance may be missing
    stage: Stage,
) -> None:
    """Sets weights and scales of a block to those of a trained block; a variance that was not stored starts anew.

    As in `copy_weights`, the standard deviations of the random weights are not copied.
    """
    kept = {name: value for name, value in stored.items() if not name.endswith("last.log_std")}
    block.load_state_dict({**block.state_dict(), **kept})
    if block.variance is not None and not any(name.startswith("variance.") for name in stored):
        block.variance.rescale(stage.mse() ** 0.5)
        block.variance.start(stage.mse())


def copy_weights(block: Block, previous: Block) -> None:
    """Copies the weights of the previous block; only the standard deviations of the random weights are not copied.

    If a feature was always zero, the refit after training (setting `refit`) gave the last layer's weights for this feature the
    standard deviation of the prior. This is too large for the start of a new training, in which the feature may be positive.
    """
    log_stds = {name: value for name, value in block.state_dict().items() if name.endswith("last.log_std")}
    block.load_state_dict({**previous.state_dict(), **log_stds})


@torch.no_grad()
def revive(
    block: Block,
    fresh: dict[str, Tensor],  # new weights, as in the state_dict of a block
    state: State,  # input of the block
    inputs: Tensor,  # of the problem, at this state
    least: float = DEAD_BELOW,  # fraction of pixels, see DEAD_BELOW
) -> Tensor:
    """Gives dead features new weights, and sets the weights that the next layer has for these features to zero.

    Without this, the number of features that are not dead would fall, from block to block or during training. Gives which
    common features were dead, (c,).
    """
    planes = torch.cat(block.state_planes(state, inputs), 1)
    trunk = block.trunk.as_branches()
    scaled = inputs * block.input_scale.reshape(-1, 1, 1)
    image_features, dead_image = revive_stack(trunk.image, "trunk.image", fresh, planes, least)
    input_features, dead_input = revive_stack(trunk.gradient, "trunk.gradient", fresh, scaled, least)
    trunk.common.convolutions()[0].weight[:, torch.cat([dead_image, dead_input])] = 0
    features = torch.cat([image_features, input_features], 1)
    _, dead = revive_stack(trunk.common, "trunk.common", fresh, features, least)
    block.last.weight[:, dead] = 0
    if block.variance is not None:
        block.variance.zero_weights_of(dead)
    return dead


@torch.no_grad()
def zero_weights_of_memory(
    block: Block,
    memory: Tensor,  # (m,) booleans: a mask of memory channels
) -> None:
    """Sets the weights of the masked memory channels in the first layers of a block to zero."""
    first = [block.trunk.as_branches().image.convolutions()[0]]
    if block.variance is not None and block.variance.body is not None:
        first.append(block.variance.body.convolutions()[0])
    for convolution in first:
        convolution.weight[:, 1 : 1 + len(memory)][:, memory] = 0


def revive_stack(
    stack: ConvStack,
    name: str,  # of the stack in the state_dict of a block
    fresh: dict[str, Tensor],
    h: Tensor,  # (batch, channels, height, width): the input of the stack
    least: float,
) -> tuple[Tensor, Tensor]:
    """`revive` for one stack; gives its new output, and which features of its last layer were dead, (channels,)."""
    dead = torch.zeros(h.shape[1], dtype=torch.bool, device=h.device)
    for index, layer in enumerate(stack.convolutions()):
        if index:
            layer.weight[:, dead] = 0
        out = layer(h).relu()
        dead = (out > 0).float().mean((0, 2, 3)) < least
        for parameter in ("weight", "bias"):  # 2 * index: a ReLU is between two convolutions of the stack
            getattr(layer, parameter)[dead] = fresh[f"{name}.{2 * index}.{parameter}"][dead]
        h = layer(h).relu()
    return h, dead


def rescale(block: Block, stage: Stage, output_level: float = OUTPUT_LEVEL) -> None:
    """Sets the scales of inputs, output and predicted standard deviations, from the images of the stage."""
    rmse, stds = stage.mse() ** 0.5, stage.input_std()
    if not (rmse > 0 and stds[0] > 0):
        raise UserError(
            "training images: expected inputs of the block that differ from the truths, and gradients that are not constant: "
            "there is nothing to learn; are all images empty?"
        )
    scales = [INPUT_LEVEL / std if std > 0 else 1.0 for std in stds]  # a constant plane is not scaled
    block.input_scale.copy_(torch.tensor(scales))
    block.output_scale.fill_(output_level * rmse)
    if block.variance is not None:
        block.variance.rescale(rmse)
