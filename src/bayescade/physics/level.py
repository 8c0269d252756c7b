"""The level of an image: the value of its object, if the object has one value."""

import torch
from torch import Tensor


def levels(
    image: Tensor,  # (batch, 1, height, width)
) -> Tensor:
    """The level of every image, (batch,), float64: sum u^2 / sum u over its positive values u.

    1 for an image that is nowhere positive.
    """
    positive = image.clamp_min(0).flatten(1).double()
    total = positive.sum(1)
    level = (positive**2).sum(1) / torch.where(total > 0, total, 1)
    return torch.where(level > 0, level, 1)
