"""The block of DGD: it has no random weights and no variance."""

import torch

from bayescade.bayes.layers import PlainConv
from bayescade.blocks.block import Block
from bayescade.blocks.pyramid import make_trunk
from bayescade.blocks.settings import BlockSettings


def build(settings: BlockSettings, generator: torch.Generator, inputs: int = 1) -> Block:
    """A block with new initial weights; `inputs` is the number of input planes of the problem."""
    trunk = make_trunk(settings, inputs, generator)
    return Block(settings, trunk, PlainConv(settings.channels, generator), None, inputs)
