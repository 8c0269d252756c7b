"""DGD's block: no random weight and no variance."""

import torch

from bayescade.bayes.layers import PlainConv
from bayescade.blocks.block import Block, BlockSettings, Trunk


def build(settings: BlockSettings, generator: torch.Generator) -> Block:
    """A block with fresh weights."""
    return Block(Trunk(settings, generator), PlainConv(settings.channels, generator), None)
