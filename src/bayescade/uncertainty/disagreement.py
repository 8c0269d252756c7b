"""The variance of the error of an image that is the mean of several passes, from the disagreement of the passes.

The variance network of a cascade was trained for one pass: it knows neither that several passes are averaged, nor how far
they disagree. Over random scans of all kinds (objects, views, arcs, noise) the root mean square error of the mean is
proportional to the root mean square disagreement of the passes, with one number, the `ratio`, for all of them
(docs/uncertainty.md has the figures). So the mean variance of an image is ratio^2 times its mean disagreement b. How the
variance is shared out over the pixels is the geometric mean of what the two sources say:

    v = ratio^2 mean(b) g / mean(g),    g = sqrt(a b_5) + FLOOR mean(sqrt(a b_5)),

with a the variance of the network and b_5 the disagreement averaged over 5 x 5 pixels.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from bayescade.results import Reconstruction

EDGE = 5  # pixels, of the squares over which the disagreement is averaged
FLOOR = 0.002
LEAST_REST = 0.05  # of the epistemic variance: the aleatoric variance is at least this
TRIMMED = 0.02  # of the scans with the largest errors relative to their disagreement: faults that no pass sees


def fitted(
    result: Reconstruction,  # the mean of all passes
    passes: int,
    ratio: float,
) -> Reconstruction:
    """The result with the variance of the formula above, geometry apart; one pass has no disagreement and stays as it is.

    The epistemic variance stays as it is, and the aleatoric variance is the rest of the total.
    """
    if passes < 2 or result.epistemic_symmetries is None:
        return result
    assert result.aleatoric is not None
    assert result.epistemic is not None
    between = result.epistemic_symmetries * (passes / (passes - 1))
    total = variance_of(result.aleatoric, between, ratio)
    aleatoric = torch.maximum(total - result.epistemic, LEAST_REST * result.epistemic)
    return dataclasses.replace(result, aleatoric=aleatoric, aleatoric_standard_error=None)


def variance_of(
    aleatoric: Tensor,  # (batch, 1, height, width): variance of the network
    between: Tensor,  # (batch, 1, height, width): sample variance of the passes
    ratio: float,
) -> Tensor:
    """v of the formula above, (batch, 1, height, width)."""
    reach = EDGE // 2
    local = avg_pool2d(pad(between, (reach, reach, reach, reach), mode="replicate"), EDGE, stride=1)
    shape = (aleatoric * local).sqrt()
    shape = shape + FLOOR * shape.mean((1, 2, 3), keepdim=True)
    mean = shape.mean((1, 2, 3), keepdim=True).clamp_min(torch.finfo(shape.dtype).tiny)
    return ratio**2 * between.mean((1, 2, 3), keepdim=True) * shape / mean


def fit_ratio(
    found: Sequence[float],  # root mean square errors of images
    disagreement: Sequence[float],  # root mean square disagreements of their passes
) -> float:
    """The ratio: the root of the mean of (error / disagreement)^2 over images, without the largest of them."""
    squares = np.sort((np.asarray(found) / np.asarray(disagreement)) ** 2)
    kept = max(1, len(squares) - round(TRIMMED * len(squares)))
    return float(np.sqrt(squares[:kept].mean()))
