"""The passes of a cascade over one scan: every pass sees the scan moved by a symmetry, with its own centre of rotation.

The centre is known with a standard deviation. Pass k has the centre that is d_k standard deviations away; the d_k of all passes
have mean 0 and variance 1, so that the passes together are samples of symmetry, centre and weights at once.
"""

import dataclasses
import math
from statistics import NormalDist

from bayescade.physics.symmetries import SYMMETRIES, Symmetry

STRIDE = 3  # neighbouring passes have deviations that are not neighbours


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass of the cascade."""

    symmetry: Symmetry
    samples: int  # of the weights
    deviation: float  # of the centre of rotation, in standard deviations


def passes_of(
    samples: int,
    symmetries: int,  # how many of SYMMETRIES are used
) -> list[Pass]:
    """The samples shared out over the symmetries."""
    count = max(1, min(samples, symmetries))
    shares = [len(range(k, max(samples, 1), count)) for k in range(count)]
    deviations = balanced(shares)
    return [Pass(SYMMETRIES[k], shares[k], deviations[k]) for k in range(count)]


def balanced(
    weights: list[int],  # of the passes
) -> list[float]:
    """Deviations with weighted mean 0 and variance 1, about normal, in mixed order; 0 for one pass."""
    count, total = len(weights), sum(weights)
    if count == 1:
        return [0.0]
    step = next(step for step in range(STRIDE, STRIDE + count + 1) if math.gcd(step, count) == 1)
    ranks = [(k * step) % count for k in range(count)]
    scores = [NormalDist().inv_cdf((rank + 0.5) / count) for rank in ranks]
    mean = sum(w * d for w, d in zip(weights, scores, strict=True)) / total
    variance = sum(w * (d - mean) ** 2 for w, d in zip(weights, scores, strict=True)) / total
    return [(d - mean) / math.sqrt(variance) for d in scores]
