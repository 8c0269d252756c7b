"""Strata of pixels, from the prediction alone: intervals are calibrated in each, so that none pays for another.

A stratum is a class of the predicted standard deviation, and one of the step to a neighbouring pixel in the predicted image,
both relative to the level of the image. All limits are fixed beforehand. `merged` joins strata that too few calibration images
have.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from bayescade.physics.level import levels

STD_LIMITS = (0.003, 0.01, 0.03)  # of the level
STEP_LIMITS = (0.01, 0.05)  # of the level: largest difference of a pixel of the predicted image to its neighbours
LEAST_PIXELS = 10  # an image has a stratum if it has so many pixels of it
NAMES = tuple(
    f"{where}, std {size}"
    for where in ("flat", "weak edge", "edge")
    for size in ("below 0.3 %", "0.3 to 1 %", "1 to 3 %", "above 3 %")
)


def strata(
    image: Tensor,  # (batch, 1, height, width)
    std: Tensor,  # (batch, 1, height, width)
) -> Tensor:
    """The stratum of every pixel, an index of NAMES, (batch, 1, height, width)."""
    unit = levels(image).reshape(-1, 1, 1, 1).to(image)
    stds, edges = (torch.tensor(limits, dtype=image.dtype, device=image.device) for limits in (STD_LIMITS, STEP_LIMITS))
    size, step = (
        torch.bucketize((std / unit).contiguous(), stds),
        torch.bucketize((steps(image) / unit).contiguous(), edges),
    )
    return size + (len(STD_LIMITS) + 1) * step


def steps(
    image: Tensor,  # (..., height, width)
) -> Tensor:
    """The largest difference of a pixel to its four neighbours, of the shape of the image."""
    largest = torch.zeros_like(image)
    down, right = image.diff(dim=-2).abs(), image.diff(dim=-1).abs()
    for part, step in (
        (largest[..., 1:, :], down),
        (largest[..., :-1, :], down),
        (largest[..., 1:], right),
        (largest[..., :-1], right),
    ):
        torch.maximum(part, step, out=part)
    return largest


def merged(
    counts: Mapping[int, int],  # stratum -> number of calibration images that have it
    least: int,  # images that a stratum needs
) -> dict[int, tuple[int, ...]]:
    """Groups of strata with enough images each: stratum -> its group; strata that no image has belong to a group too.

    Neighbouring classes of the standard deviation are joined, for each class of steps apart. A class of steps that is too rare
    joins the last group of the class before it.
    """
    classes = len(STD_LIMITS) + 1
    groups: list[list[int]] = []
    for first in range(0, len(NAMES), classes):
        own = joined(list(range(first, first + classes)), counts, least)
        if groups and any(most(counts, group) < least for group in (own[0], groups[-1])):
            groups[-1] += [index for group in own for index in group]
        else:
            groups += own
    return {index: tuple(group) for group in groups for index in group}


def joined(order: list[int], counts: Mapping[int, int], least: int) -> list[list[int]]:
    """The strata in their order, cut into groups: a group ends as soon as it has enough images, and the rest joins the last."""
    groups: list[list[int]] = []
    current: list[int] = []
    for index in order:
        current.append(index)
        if most(counts, current) >= least:
            groups.append(current)
            current = []
    if current and groups:
        groups[-1] += current
    elif current:
        groups.append(current)
    return groups


def most(counts: Mapping[int, int], group: list[int]) -> int:
    """How many images have the most frequent stratum of a group: so many images have the group, at least."""
    return max(counts.get(index, 0) for index in group)
