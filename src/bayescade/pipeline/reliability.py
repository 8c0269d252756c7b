"""How far the error bars of many images can be relied on: curves and tables for the page of `evaluate`, and words for them."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from bayescade.figures.reliability import Curve
from bayescade.pipeline.scores import bootstrap_interval
from bayescade.results import Reconstruction
from bayescade.uncertainty.conformal import loss_at
from bayescade.uncertainty.intervals import LEVEL, LEVELS, Intervals, image_loss, scales_of_strata
from bayescade.uncertainty.outcomes import Outcome, outcome
from bayescade.uncertainty.scores import quantile
from bayescade.uncertainty.strata import NAMES

RAW_LEVELS = (*(round(0.05 * step, 2) for step in range(1, 20)), 0.99)
RIGHT = (0.8, 1.25)  # claimed / found
CLOSE = 0.03  # coverage this near to the level is right


@dataclasses.dataclass(frozen=True)
class Reliability:
    """What the page shows; None for intervals that are not calibrated."""

    curves: list[Curve]
    regions: list[dict[str, Any]]  # size, images, raw and calibrated coverage of 90 % intervals
    strata: list[dict[str, Any]]  # name, images, raw and calibrated coverage of 90 % intervals
    calibrated: bool


def outcomes_of(result: Reconstruction, truth: Tensor) -> list[Outcome]:
    """The outcome of every image of a result with variances."""
    parts = []
    for index in range(len(result.image)):
        one = slice(index, index + 1)
        assert result.aleatoric is not None
        single = Reconstruction(
            result.image[one], result.model, aleatoric=result.variance[one], epistemic=0 * result.variance[one]
        )
        parts.append(outcome(single, truth[one], ""))
    return parts


def reliability(outcomes: Sequence[Outcome], intervals: Intervals | None) -> Reliability:
    """Coverage by level, by stratum and by size of a region, means over the images that have them."""
    everything = tuple((index,) for index in range(len(NAMES)))

    def raw(level: float) -> list[float]:
        return [1 - image_loss(item, everything, [quantile(level)] * len(NAMES)) for item in outcomes]

    def calibrated(level: float) -> list[float]:
        assert intervals is not None
        multipliers = [row[LEVELS.index(level)] for row in intervals.multipliers]
        return [1 - image_loss(item, intervals.groups, multipliers) for item in outcomes]

    curves = [curve("as the model says", RAW_LEVELS, raw)]
    if intervals is not None:
        curves.append(curve("calibrated", LEVELS, calibrated))
    return Reliability(
        curves, region_table(outcomes, intervals), stratum_table(outcomes, intervals), intervals is not None
    )


def curve(name: str, levels: Sequence[float], covered: Callable[[float], list[float]]) -> Curve:
    """The mean coverage at every level, with a 95 % interval by resampling images."""
    means, low, high = [], [], []
    for level in levels:
        values = covered(level)
        ends = bootstrap_interval(list(values))
        assert ends is not None
        means.append(float(np.mean(values)))
        low.append(ends[0])
        high.append(ends[1])
    return Curve(name, list(levels), means, low, high)


def region_table(outcomes: Sequence[Outcome], intervals: Intervals | None) -> list[dict[str, Any]]:
    """Coverage of 90 % intervals for means over squares, by their size."""
    rows = []
    scales = scales_of_strata(intervals.groups, intervals.scales) if intervals is not None else None
    for size in sorted({size for item in outcomes for size in item.maps.sizes}):
        maps = [item.maps for item in outcomes if size in item.maps.sizes]
        losses = np.stack([image.region_losses(size) for image in maps])
        calibrated = None
        if intervals is not None and size in intervals.regions:
            after = np.stack([image.region_losses(size, scales) for image in maps])
            calibrated = 1 - float(loss_at(after, intervals.region_multiplier(size**2, LEVEL)).mean())
        rows.append(
            {
                "name": f"{size} x {size} pixels",
                "size": size,
                "images": len(losses),
                "raw": 1 - float(loss_at(losses, quantile(LEVEL)).mean()),
                "calibrated": calibrated,
            }
        )
    return rows


def stratum_table(outcomes: Sequence[Outcome], intervals: Intervals | None) -> list[dict[str, Any]]:
    """Coverage of 90 % intervals by stratum of pixels."""
    rows = []
    for index, name in enumerate(NAMES):
        losses = [item.strata[index].losses for item in outcomes if index in item.strata]
        if not losses:
            continue
        found = np.stack(losses)
        multiplier = None
        if intervals is not None:
            group = next(number for number, members in enumerate(intervals.groups) if index in members)
            multiplier = intervals.multipliers[group][LEVELS.index(LEVEL)]
        rows.append(
            {
                "name": name,
                "images": len(found),
                "raw": 1 - float(loss_at(found, quantile(LEVEL)).mean()),
                "calibrated": None if multiplier is None else 1 - float(loss_at(found, multiplier).mean()),
            }
        )
    return rows


def verdict(uncertainty: Mapping[str, Any] | None, found: Reliability | None) -> list[str]:
    """The result of an evaluation in words, the most important first."""
    if uncertainty is None or found is None:
        return ["This method gives no error bars."]
    ratio = uncertainty["claimed_over_found"]
    lines = []
    if ratio is None or not math.isfinite(ratio):
        lines.append("The claimed error could not be compared with the found one.")
    elif ratio < RIGHT[0]:
        lines.append(f"The error bars are too small: on average the claimed error is {ratio:.2f} times the found one.")
    elif ratio > RIGHT[1]:
        lines.append(f"The error bars are too large: on average the claimed error is {ratio:.2f} times the found one.")
    else:
        lines.append(
            f"The error bars have the right size: on average the claimed error is {ratio:.2f} times the found one."
        )
    best = found.curves[-1]
    at = best.levels.index(LEVEL)
    covered = best.coverage[at]
    word = "as they should" if abs(covered - LEVEL) <= CLOSE else "too few" if covered < LEVEL else "too many"
    kind = "Calibrated" if found.calibrated else "Uncalibrated"
    lines.append(
        f"{kind} {LEVEL:.0%} intervals cover {covered:.1%} of the pixels ({best.low[at]:.1%} to {best.high[at]:.1%}), {word}."
    )
    wrong = uncertainty["silently_wrong"]
    lines.append(
        f"{wrong:.1%} of the images are silently wrong: claimed error under half of the found one, no warning."
    )
    rank = uncertainty["spearman"]
    if rank is not None:
        where = "well" if rank > 0.5 else "somewhat" if rank > 0.2 else "hardly"
        lines.append(f"The error bars tell {where} where errors are large: rank correlation {rank:.2f}.")
    if not found.calibrated:
        lines.append("For calibrated intervals: bayescade evaluate ... --calibrate auto.")
    return lines
