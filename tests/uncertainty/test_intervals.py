"""Calibrated intervals of synthetic results whose errors are known in closed form."""

import json
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import avg_pool2d

from bayescade.errors import UserError
from bayescade.physics.level import levels
from bayescade.results import Reconstruction
from bayescade.uncertainty.conformal import loss_at
from bayescade.uncertainty.intervals import LEVELS, Intervals, coverage, fit_intervals, scales_of_strata
from bayescade.uncertainty.outcomes import REGION_SIZES, Outcome, outcome
from bayescade.uncertainty.strata import NAMES, merged, steps, strata

SIZE = 32


def result_and_truth(rng: np.random.Generator, blur: int = 1) -> tuple[Reconstruction, torch.Tensor]:
    """A square of value 1 with an error twice as large as claimed inside, half as large outside; images differ in scale."""
    image = torch.zeros(1, 1, SIZE, SIZE)
    image[..., 8:24, 8:24] = 1
    claimed = torch.where(image > 0, 0.02, 0.002)
    found = torch.where(image > 0, 0.04, 0.001) * math.exp(0.3 * rng.standard_normal())
    noise = torch.from_numpy(rng.standard_normal((1, 1, SIZE + blur - 1, SIZE + blur - 1))).float()
    noise = avg_pool2d(noise, blur, stride=1) * blur
    result = Reconstruction(image, "test", aleatoric=0.9 * claimed**2, epistemic=0.1 * claimed**2)
    return result, image + found * noise


def outcomes(count: int, seed: int = 0, blur: int = 1) -> list[Outcome]:
    rng = np.random.default_rng(seed)
    return [outcome(*result_and_truth(rng, blur), family="ab"[i % 2]) for i in range(count)]


def test_levels_and_strata_follow_the_units() -> None:
    result, _ = result_and_truth(np.random.default_rng(0))
    assert float(levels(7 * result.image)) == pytest.approx(7)
    assert float(levels(torch.zeros(1, 1, 4, 4))) == 1
    labels = strata(result.image, result.std)
    assert torch.equal(labels, strata(50 * result.image, 50 * result.std))
    assert {NAMES[k] for k in labels.unique().tolist()} == {
        "flat, std below 0.3 %", "flat, std 1 to 3 %", "edge, std below 0.3 %", "edge, std 1 to 3 %",
    }  # fmt: skip
    assert steps(result.image).sum() == 2 * 4 * 16 - 4  # both sides of the edge; an inner corner pixel has two


def test_strata_with_few_images_are_merged_with_their_neighbours() -> None:
    groups = merged({0: 200, 1: 150, 2: 30, 3: 10, 4: 200, 5: 0, 6: 120, 7: 5}, 100)
    assert groups[0] == (0,)
    assert groups[1] == (1, 2, 3)
    assert groups[2] == groups[1]
    assert groups[4] == (4,)
    assert groups[5] == groups[9] == (5, 6, 7, 8, 9, 10, 11)  # no image has strong edges
    assert set(merged({0: 50, 4: 20}, 100).values()) == {tuple(range(12))}
    assert merged({0: 200, 4: 20, 8: 150}, 100)[8] == (8, 9, 10, 11)
    assert merged({0: 50, 4: 200, 8: 150}, 100)[0] == tuple(range(8))


def test_every_stratum_is_covered_as_promised() -> None:
    intervals = fit_intervals(outcomes(400))
    tests = outcomes(400, seed=1)
    at = LEVELS.index(0.9)
    assert coverage(tests, intervals.groups, [row[at] for row in intervals.multipliers]) == pytest.approx(
        0.9, abs=0.012
    )
    for group, row in zip(intervals.groups, intervals.multipliers, strict=True):
        held = [o for o in tests if any(index in o.strata for index in group)]
        if held:
            assert coverage(held, (group,), [row[at]]) == pytest.approx(0.9, abs=0.015)
    assert [intervals.left_out[name] for name in "ab"] == pytest.approx([0.9, 0.9], abs=0.02)


def test_calibrated_variances_are_those_of_the_errors() -> None:
    """Claimed / found is 1 in every stratum, and the parts keep their shares."""
    intervals = fit_intervals(outcomes(400))
    rng = np.random.default_rng(2)
    found, claimed = torch.zeros(SIZE, SIZE).double(), torch.zeros(SIZE, SIZE).double()
    missed = []
    for _ in range(300):
        result, truth = result_and_truth(rng)
        better = intervals.calibrated(result)
        assert better.lower is not None
        assert better.upper is not None
        found += (truth - better.image)[0, 0].double() ** 2
        claimed += better.variance[0, 0].double()
        outside = (truth < better.lower) | (truth > better.upper)
        missed.append(float(outside[..., 10:22, 10:22].double().mean()))
        assert float(better.lower.min()) >= 0  # attenuation is not negative
        assert torch.allclose(better.epistemic, 0.1 * better.variance, rtol=1e-4)
    for part in (slice(10, 22), slice(0, 6)):
        assert float(claimed[part, part].sum() / found[part, part].sum()) == pytest.approx(1, abs=0.1)
    assert np.mean(missed) == pytest.approx(0.1, abs=0.02)


def test_regions_are_covered_with_the_variance_that_users_get() -> None:
    intervals = fit_intervals(outcomes(300))
    rng = np.random.default_rng(7)
    multiplier, covered = intervals.region_multiplier(8 * 8), []
    for _ in range(300):
        result, truth = result_and_truth(rng)
        variance = intervals.calibrated(result).variance
        error = (result.image - truth)[..., 8:16, 8:16].mean()
        covered.append(float(error.abs()) <= multiplier * float(variance[..., 8:16, 8:16].mean().sqrt()))
    assert 0.84 < np.mean(covered) <= 1


@pytest.mark.parametrize(("images", "delta", "level", "enough"), [
    (20, None, 0.9, True), (20, 0.1, 0.9, False), (200, 0.1, 0.9, True), (50, None, 0.99, False), (150, None, 0.99, True),
])  # fmt: skip
def test_too_few_images_promise_nothing(images: int, delta: float | None, level: float, enough: bool) -> None:
    """1 / (n + 1) is the least risk that n images can show; with a probability the bound needs more."""
    intervals = fit_intervals(outcomes(images), delta, level)
    assert intervals.guaranteed == enough
    assert ("too few for a guarantee" in intervals.guarantee()) != enough


@pytest.mark.parametrize("blur", [1, 4])
def test_regions_of_every_size_are_covered(blur: int) -> None:
    """Independent and correlated errors: a mean over a region needs a smaller multiplier where errors are independent."""
    intervals = fit_intervals(outcomes(300, blur=blur))
    tests = outcomes(300, 3, blur)
    scales = scales_of_strata(intervals.groups, intervals.scales)
    for size in REGION_SIZES:
        multiplier = intervals.regions[size][LEVELS.index(0.9)]
        covered = 1 - np.mean([loss_at(o.maps.region_losses(size, scales), multiplier) for o in tests])
        assert 0.87 < covered < 0.95  # the largest region is the whole image: 300 regions
    ratio = intervals.region_multiplier(64) / intervals.region_multiplier(1)
    assert (ratio < 0.35) == (blur == 1)
    between = intervals.region_multiplier(36)
    assert intervals.region_multiplier(64) <= between <= intervals.region_multiplier(16)


def test_high_probability_is_wider_than_on_average() -> None:
    few = outcomes(60)
    average, probable = fit_intervals(few), fit_intervals(few, delta=0.1)
    at = LEVELS.index(0.9)
    assert all(p[at] > a[at] for a, p in zip(average.multipliers, probable.multipliers, strict=True))
    assert "with probability 0.9" in probable.guarantee()


def test_too_few_images_are_refused_and_extreme_levels_get_a_tail() -> None:
    with pytest.raises(UserError, match="at least 20 images"):
        fit_intervals(outcomes(5))
    intervals = fit_intervals(outcomes(50))
    for row in intervals.multipliers:
        assert all(math.isfinite(m) for m in row)
        assert list(row) == sorted(row)


def test_intervals_survive_json_and_say_what_they_promise() -> None:
    intervals = fit_intervals(outcomes(120))
    assert Intervals.from_json(json.loads(json.dumps(intervals.to_json()))) == intervals
    for words in ("at least 90 %", "120 calibration scans", "a, b", "not hold for this one scan", "warning fired"):
        assert words in intervals.guarantee()
    with pytest.raises(UserError, match=r"level: expected one of 0.5"):
        intervals.region_multiplier(4, level=0.42)
