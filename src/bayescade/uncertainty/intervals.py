"""Calibrated intervals: multipliers of the predicted standard deviation, fitted to the outcomes of simulated scans.

An interval is image -+ m std. The multiplier m depends on the level of the interval, on the stratum of the pixel
(`strata`), and for means over regions on their size. It is the least one with which at most a share alpha = 1 - level of
the pixels of an image is missed, on average over images (`conformal.mean_control`) or with probability 1 - delta
(`conformal.probable_control`). Levels that need more images than there are get the multiplier of a fitted tail
(`conformal.tail_multiplier`), which guarantees nothing.

The variance itself is multiplied by the ratio of squared errors to variances of the stratum (`scales`), so that on average
over the calibration the claimed error is the found one.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.errors import UserError
from bayescade.results import Reconstruction
from bayescade.uncertainty.conformal import (
    MULTIPLIERS,
    loss_at,
    mean_control,
    probable_control,
    tail_multiplier,
    upper_bound,
)
from bayescade.uncertainty.outcomes import REGION_SIZES, Outcome, StratumOutcome
from bayescade.uncertainty.strata import NAMES, merged, strata

LEVELS = (0.5, 0.68, 0.8, 0.9, 0.95, 0.99, 0.999)
LEVEL = 0.9  # of `lower` and `upper`
LEAST_IMAGES = 100  # that a stratum needs, or half of all, if these are fewer
FEWEST = 20  # calibration images, at least
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Intervals:
    """The result of a calibration; numbers and names only, so that it can be stored as JSON."""

    groups: tuple[tuple[int, ...], ...]  # strata that share their multipliers
    multipliers: tuple[tuple[float, ...], ...]  # of every group, for LEVELS
    scales: tuple[float, ...]  # of every group: factor of the standard deviation
    # Size of a region -> multipliers for LEVELS, of the root of the mean calibrated variance over the region.
    regions: dict[int, tuple[float, ...]]
    images: int  # of the calibration
    families: tuple[str, ...]  # of objects
    delta: float | None  # None: on average; otherwise with probability 1 - delta
    guaranteed: bool  # whether there are enough images for the promise at `level`
    left_out: dict[str, float | None]  # family -> coverage of its intervals by a calibration without it
    level: float = LEVEL  # of `lower` and `upper`, one of LEVELS

    def group_of(self, labels: Tensor) -> Tensor:
        """The index of the group of every stratum."""
        table = torch.zeros(len(NAMES), dtype=torch.long)
        for number, group in enumerate(self.groups):
            table[list(group)] = number
        return table.to(labels.device)[labels]

    def calibrated(self, result: Reconstruction) -> Reconstruction:
        """The result with calibrated variances, and with its interval."""
        std = result.std
        group = self.group_of(strata(result.image, std))
        scale = torch.tensor(self.scales, dtype=std.dtype).to(std.device)[group]
        half = self.multiplier_map(group, self.level).to(std) * std
        parts = {
            name: getattr(result, name) * scale**2
            for name in ("aleatoric", "epistemic", "epistemic_symmetries", "geometry_variance", "noise")
            if getattr(result, name) is not None
        }
        errors = {
            name: getattr(result, name) * scale**power
            for name, power in (("mc_standard_error", 1), ("aleatoric_standard_error", 2))
            if getattr(result, name) is not None
        }
        least = result.image.clamp_max(0)  # attenuation is not negative; an image that is has its own lower end
        lower = torch.maximum(result.image - half, least)
        return dataclasses.replace(result, **parts, **errors, lower=lower, upper=result.image + half)

    def multiplier_map(self, group: Tensor, level: float) -> Tensor:
        """The multiplier of every pixel for a level of LEVELS."""
        return torch.tensor([row[LEVELS.index(level)] for row in self.multipliers], dtype=torch.float64)[group.cpu()]

    def region_multiplier(self, pixels: int, level: float = LEVEL) -> float:
        """The multiplier for the mean over so many pixels: interpolated between sizes, on logarithmic scales."""
        check_level(level)
        sizes = sorted(self.regions)
        logs = [math.log(self.regions[size][LEVELS.index(level)]) for size in sizes]
        return math.exp(float(np.interp(0.5 * math.log(pixels), np.log(sizes), logs)))

    def guarantee(self) -> str:
        """What the intervals promise, and what they do not."""
        families = ", ".join(self.families)
        how = (
            "on average"
            if self.delta is None
            else f"with probability {1 - self.delta:g} over the calibration, on average"
        )
        if not self.guaranteed:
            return (
                f"{100 * self.level:g} % intervals were fitted to {self.images} simulated scans of these object families "
                f"({families}) with this geometry and noise; that is too few for a guarantee."
            )
        worst = [value for value in self.left_out.values() if value is not None]
        left_out = f" A family left out of the calibration is covered to at least {min(worst):.0%}." if worst else ""
        return (
            f"{100 * self.level:g} % intervals hold {how} over simulated scans of these object families ({families}) with this "
            f"geometry and noise: at least {100 * self.level:g} % of the pixels of an image ({self.images} calibration "
            f"scans).{left_out} They do not hold for this one scan alone, nor if a warning fired."
        )

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {**dataclasses.asdict(self), "regions": {str(size): list(row) for size, row in self.regions.items()}}

    @classmethod
    def from_json(cls, values: Any) -> "Intervals":
        """The intervals of `to_json`."""
        return cls(
            groups=tuple(tuple(int(index) for index in group) for group in values["groups"]),
            multipliers=tuple(tuple(float(m) for m in row) for row in values["multipliers"]),
            scales=tuple(float(scale) for scale in values["scales"]),
            regions={int(size): tuple(float(m) for m in row) for size, row in values["regions"].items()},
            images=int(values["images"]),
            families=tuple(str(name) for name in values["families"]),
            guaranteed=bool(values["guaranteed"]),
            delta=None if values["delta"] is None else float(values["delta"]),
            level=float(values["level"]),
            left_out={str(k): None if v is None else float(v) for k, v in values["left_out"].items()},
        )


def check_level(level: float) -> None:
    """Raises unless the level is one of LEVELS."""
    if level not in LEVELS:
        raise UserError(f"level: expected one of {', '.join(f'{value:g}' for value in LEVELS)}, got {level}")


def fit_intervals(outcomes: Sequence[Outcome], delta: float | None = None, level: float = LEVEL) -> Intervals:
    """The intervals of a calibration."""
    check_level(level)
    least_images = min(LEAST_IMAGES, len(outcomes) // 2)
    if len(outcomes) < FEWEST:
        raise UserError(f"calibration: expected at least {FEWEST} images, got {len(outcomes)}")
    families = tuple(sorted({outcome.family for outcome in outcomes}))
    groups, multipliers, scales = fit_strata(outcomes, delta, least_images)
    of_strata = scales_of_strata(groups, scales)
    regions = {}
    for size in REGION_SIZES:
        losses = [outcome.maps.region_losses(size, of_strata) for outcome in outcomes if size in outcome.maps.sizes]
        if len(losses) >= FEWEST:
            regions[size] = fit_levels(np.stack(losses), delta)
    left_out: dict[str, float | None] = {}
    for family in families if len(families) > 1 else ():
        others = [outcome for outcome in outcomes if outcome.family != family]
        held = [outcome for outcome in outcomes if outcome.family == family]
        left_out[family] = None
        if len(others) >= FEWEST:
            other_groups, other_multipliers, _ = fit_strata(others, delta, least_images)
            left_out[family] = coverage(held, other_groups, [row[LEVELS.index(level)] for row in other_multipliers])
    at = [row[LEVELS.index(level)] for row in multipliers]
    return Intervals(
        groups=groups,
        multipliers=multipliers,
        scales=scales,
        regions=regions,
        images=len(outcomes),
        families=families,
        delta=delta,
        guaranteed=is_guaranteed(outcomes, groups, at, delta, level),
        left_out=left_out,
        level=level,
    )


def is_guaranteed(
    outcomes: Sequence[Outcome],
    groups: "Groups",
    multipliers: Sequence[float],  # of the groups
    delta: float | None,
    level: float,
) -> bool:
    """Whether the risk of images and of every group of strata is controlled, with the number of images that there are."""
    kinds = [(groups, multipliers), *(((group,), [m]) for group, m in zip(groups, multipliers, strict=True))]
    for some, of_some in kinds:
        losses = np.array(
            [image_loss(item, some, of_some) for item in outcomes if any(i in item.strata for g in some for i in g)]
        )
        if len(losses) == 0:
            continue
        risk = (losses.sum() + 1) / (len(losses) + 1) if delta is None else upper_bound(losses, delta)
        if risk > 1 - level + ROUNDING:
            return False
    return True


Groups = tuple[tuple[int, ...], ...]


def scales_of_strata(groups: Groups, scales: Sequence[float]) -> list[float]:
    """The factor of the standard deviation in every stratum."""
    by_stratum = {index: scale for group, scale in zip(groups, scales, strict=True) for index in group}
    return [by_stratum.get(index, 1.0) for index in range(len(NAMES))]


def fit_strata(
    outcomes: Sequence[Outcome], delta: float | None, least_images: int
) -> tuple[Groups, tuple[tuple[float, ...], ...], tuple[float, ...]]:
    """Groups of strata, their multipliers and their scales."""
    counts: dict[int, int] = {}
    for outcome in outcomes:
        for index in outcome.strata:
            counts[index] = counts.get(index, 0) + 1
    groups = tuple(dict.fromkeys(merged(counts, least_images).values()))
    multipliers, scales = [], []
    for group in groups:
        losses = [found for outcome in outcomes if (found := group_losses(outcome, group)) is not None]
        parts = [outcome.strata[index] for outcome in outcomes for index in group if index in outcome.strata]
        error, variance = sum(part.squared_error for part in parts), sum(part.variance for part in parts)
        scales.append(math.sqrt(error / variance) if variance > 0 else 1.0)
        multipliers.append(fit_levels(np.stack(losses), delta) if losses else ())
    filled = next(row for row in multipliers if row)
    widened = widen(outcomes, groups, [row or filled for row in multipliers], delta)
    return groups, widened, tuple(scales)


def group_losses(outcome: Outcome, group: tuple[int, ...]) -> NDArray[np.float64] | None:
    """The losses of an image in a group of strata; None if it has no pixel of them."""
    parts = [outcome.strata[index] for index in group if index in outcome.strata]
    pixels = sum(part.pixels for part in parts)
    if not pixels:
        return None
    return np.asarray(sum(part.losses * part.pixels for part in parts) / pixels)


def fit_levels(losses: NDArray[np.float64], delta: float | None) -> tuple[float, ...]:
    """The multipliers for LEVELS; they grow with the level."""
    found: list[float] = []
    for level in LEVELS:
        alpha = round(1 - level, 9)
        multiplier = mean_control(losses, alpha) if delta is None else probable_control(losses, alpha, delta)
        multiplier = multiplier if math.isfinite(multiplier) else tail_multiplier(losses, 1 - level)
        multiplier = multiplier if math.isfinite(multiplier) else float(MULTIPLIERS[-1])
        found.append(max(multiplier, found[-1] if found else 0.0))
    return tuple(found)


def widen(
    outcomes: Sequence[Outcome], groups: Groups, multipliers: Sequence[tuple[float, ...]], delta: float | None
) -> tuple[tuple[float, ...], ...]:
    """The multipliers times one factor for each level, at least 1: so that images as a whole are controlled too.

    Each stratum alone is controlled already; images in which strata with large losses are large could still lose more.
    """
    factors = np.geomspace(1.0, 4.0, 60)
    columns = []
    for number, level in enumerate(LEVELS):
        losses = np.stack(
            [
                [image_loss(outcome, groups, [factor * row[number] for row in multipliers]) for factor in factors]
                for outcome in outcomes
            ]
        )
        if delta is None:
            holds = (losses.sum(0) + 1) / (len(losses) + 1) <= 1 - level
        else:
            holds = np.array([upper_bound(column, delta) <= 1 - level for column in losses.T])
        columns.append(float(factors[int(np.argmax(holds))]) if bool(holds.any()) else float(factors[-1]))
    return tuple(tuple(m * factor for m, factor in zip(row, columns, strict=True)) for row in multipliers)


def parts_of(outcome: Outcome, groups: Groups, multipliers: Sequence[float]) -> Iterator[tuple[StratumOutcome, float]]:
    """The strata of an image, each with the multiplier of its group."""
    for group, multiplier in zip(groups, multipliers, strict=True):
        for index in group:
            if index in outcome.strata:
                yield outcome.strata[index], multiplier


def image_loss(outcome: Outcome, groups: Groups, multipliers: Sequence[float]) -> float:
    """The share of the pixels of an image that are missed, with a multiplier for every group."""
    parts = list(parts_of(outcome, groups, multipliers))
    missed = sum(float(loss_at(part.losses, multiplier)) * part.pixels for part, multiplier in parts)
    return missed / max(sum(part.pixels for part, _ in parts), 1)


def mean_width(outcome: Outcome, groups: Groups, multipliers: Sequence[float]) -> float:
    """The mean width of the intervals of an image."""
    parts = list(parts_of(outcome, groups, multipliers))
    return sum(2 * multiplier * part.std for part, multiplier in parts) / max(sum(part.pixels for part, _ in parts), 1)


def coverage(outcomes: Sequence[Outcome], groups: Groups, multipliers: Sequence[float]) -> float:
    """The mean over images of the share of covered pixels."""
    return 1 - float(np.mean([image_loss(outcome, groups, multipliers) for outcome in outcomes]))
