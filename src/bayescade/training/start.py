"""Where the training of a block starts: from the weights of the block before, in scales that fit the images that come in."""

import torch
from torch import Tensor, nn

from bayescade.blocks.block import Block
from bayescade.errors import UserError
from bayescade.training.stage import Stage

REVIVED_BY = 64  # training images that say which features are there


def warm_up(block: Block, previous: Block) -> None:
    """Starts the block from the weights of the one before; the spread of its random weights starts afresh.

    A refitted spread is that of the prior where a feature never occurred: too wide a start for one that comes to life.
    """
    afresh = {name: value for name, value in block.state_dict().items() if name.endswith("last.log_std")}
    block.load_state_dict({**previous.state_dict(), **afresh})


@torch.no_grad()
def revive(block: Block, fresh: dict[str, Tensor], stage: Stage, least: float) -> None:
    """Gives features of the trunk that are there in hardly a pixel fresh weights, and takes away their weight in what follows.

    A block that inherits few features has few to learn with, and hands on fewer.
    """
    some = slice(0, min(REVIVED_BY, len(stage)))
    image, gradient = stage.image[some], stage.gradient[some]
    trunk, size = block.trunk, block.gradient_scale
    joined = []
    for name, branch, h in (("image", trunk.image, image), ("gradient", trunk.gradient, gradient * size)):
        joined.append(revive_layers(branch, f"trunk.{name}", fresh, h, least))
    first = trunk.common[0]
    assert isinstance(first, nn.Conv2d)
    first.weight[:, torch.cat([dead for _, dead in joined])] = 0
    h, dead = revive_layers(trunk.common, "trunk.common", fresh, torch.cat([h for h, _ in joined], 1), least)
    block.last.weight[:, dead] = 0
    if block.variance is not None:
        block.variance.forget(dead)


def revive_layers(
    layers: nn.Sequential, name: str, fresh: dict[str, Tensor], h: Tensor, least: float
) -> tuple[Tensor, Tensor]:
    """What comes out of convolutions with a ReLU behind each, and which features of the last are new, (channels,)."""
    dead = torch.zeros(h.shape[1], dtype=torch.bool, device=h.device)
    for place, layer in enumerate(layers):
        if not isinstance(layer, nn.Conv2d):
            continue
        if place:
            layer.weight[:, dead] = 0
        out = layer(h).relu()
        dead = (out > 0).float().mean((0, 2, 3)) < least
        for part in ("weight", "bias"):
            getattr(layer, part)[dead] = fresh[f"{name}.{place}.{part}"][dead]
        h = layer(h).relu()
    return h, dead


def rescale(block: Block, stage: Stage, gradient_level: float, output_level: float) -> None:
    """Sets the scales of the gradient, the output and the standard deviations to the images that come in."""
    level, size = stage.mse() ** 0.5, stage.gradient_std()
    if not (level > 0 and size > 0):
        raise UserError("training images: expected images that FBP does not give back exactly; are they all empty?")
    if gradient_level:
        block.gradient_scale.fill_(gradient_level / size)
    if output_level:
        block.output_scale.fill_(output_level * level)
        if block.variance is not None:
            block.variance.rescale(level)
