"""Values that cannot be line integrals: counts, transmissions and Hounsfield units are told from them before anything else.

A mere scale is no fault: line integrals may have any unit.
"""

import torch
from torch import Tensor

from bayescade.consistency.moments import border_bins

BRIGHT_BORDER = (
    0.7  # of the largest value: rays beside an object have the smallest line integrals, and the largest counts
)
NEGATIVE = 0.1  # of the largest value, below zero, in NEGATIVE_SHARE of the rays
NEGATIVE_SHARE = 0.05


def looks_like(
    sinogram: Tensor,  # (1, 1, views, bins)
) -> str | None:
    """`counts`, `transmission` or `hounsfield` where the values look like these; None for line integrals."""
    y = sinogram[0, 0].double()
    largest, least = float(y.max()), float(y.min())
    if largest <= 0 or float(y.quantile(NEGATIVE_SHARE) if y.numel() < 2**24 else least) < -NEGATIVE * largest:
        return "hounsfield" if least < 0 else None
    border = border_bins(y.shape[-1])
    ends = torch.cat([y[:, :border], y[:, -border:]], 1)
    middle = y[:, y.shape[-1] // 4 : -(y.shape[-1] // 4) or None]
    bright = float(ends.median()) > BRIGHT_BORDER * largest and float(middle.median()) < float(ends.median())
    if least >= 0 and bright:
        return "transmission" if largest < 2 else "counts"
    return None
