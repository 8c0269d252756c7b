"""Total variation with the constant of its weight that is best for validation scans.

The weight of an image is c times the noise of its data (`physics/tv_weight`). The best c is searched on a geometric grid,
which is extended while the best c is at one of its ends; then the two values around the best c are tried.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bayescade.methods import tv
from bayescade.metrics.psnr import psnr
from bayescade.physics.fidelity import LeastSquares
from bayescade.physics.ray_transform import RayTransform
from bayescade.physics.total_variation import batch_last
from bayescade.physics.tv_weight import default_weight

LEAST, MOST = 0.02, 5.0  # ends of the first grid
FACTOR, FINE_FACTOR = 1.6, 1.26  # between neighbouring values: of the grid, around its best value
EXTENSION, MOST_EXTENSIONS = 3, 6  # values by which the grid is extended at once; how often
PART_NUMBERS = 2**25  # pixels and rays that are computed at once, at most

Score = Callable[[Sequence[float]], Sequence[float]]  # constants -> the mean PSNR of each


@dataclasses.dataclass(frozen=True)
class Choice:
    """The best constant and all constants that were tried."""

    constant: float
    tried: list[tuple[float, float]]  # (constant, mean PSNR), in the order of the constants
    at_end: bool  # whether the best constant is the least or the largest of those tried


def choose_constant(score: Score) -> Choice:
    """The constant with the highest score."""
    count = math.ceil(math.log(MOST / LEAST, FACTOR)) + 1
    scores = scored(score, [LEAST * FACTOR**step for step in range(count)])
    for _ in range(MOST_EXTENSIONS):
        least, best, most = min(scores), best_of(scores), max(scores)
        if least < best < most:
            break
        start, factor = (least, 1 / FACTOR) if best == least else (most, FACTOR)
        scores |= scored(score, [start * factor**step for step in range(1, EXTENSION + 1)])
    at_end = best_of(scores) in (min(scores), max(scores))
    best = best_of(scores)
    scores |= scored(score, [best / FINE_FACTOR, best * FINE_FACTOR])
    return Choice(best_of(scores), sorted(scores.items()), at_end)


def scored(score: Score, constants: Sequence[float]) -> dict[float, float]:
    """The constants and their scores."""
    return dict(zip(constants, score(constants), strict=True))


def best_of(scores: dict[float, float]) -> float:
    """The constant with the highest score."""
    return max(scores, key=scores.__getitem__)


def validation_score(
    operator: RayTransform,
    sinogram: Tensor,  # (batch, 1, views, bins): validation scans
    truth: Tensor,  # (batch, 1, height, width)
) -> Score:
    """A function that gives the mean PSNR of the scans for each of several constants, all computed together."""

    def score(constants: Sequence[float]) -> list[float]:
        times = len(constants)
        repeated = torch.tensor(constants, dtype=sinogram.dtype).repeat_interleave(len(sinogram))
        images, _ = tv_images(operator, sinogram.repeat(times, 1, 1, 1), repeated)
        psnrs = psnr(images, truth.repeat(times, 1, 1, 1), 1.0)
        return psnrs.reshape(times, -1).mean(1).tolist()

    return score


def tv_images(
    operator: RayTransform,
    sinogram: Tensor,  # (batch, 1, views, bins)
    constants: Tensor,  # (batch,)
) -> tuple[Tensor, Tensor]:
    """The images (batch, 1, height, width) of `tv` with these constants, and which of them converged, (batch,), bool."""
    settings, fidelity, norm = tv.Settings(), LeastSquares(), operator.norm
    numbers = math.prod(operator.domain_shape) + math.prod(operator.range_shape)
    size = max(1, PART_NUMBERS // numbers)
    images, converged = [], []
    for data, factors in zip(sinogram.split(size), constants.split(size), strict=True):
        data = batch_last(data)
        weights = factors.to(data) * default_weight(operator, norm, fidelity, data, 1.0)
        image, gap = tv.solve(
            operator,
            norm,
            fidelity,
            data,
            weights.reshape(-1, 1, 1, 1),
            tolerance=settings.tolerance,
            iterations=settings.iterations,
        )
        images.append(image.contiguous())
        converged.append(gap <= settings.tolerance)
    return torch.cat(images), torch.cat(converged)
