"""p-values of symptoms: uniform for clean scans, ever smaller for larger values, and one test over all of them."""

import itertools
import json
import math

import numpy as np
import pytest

from bayescade.consistency.p_values import ALARMS, MOST_VALUES, Null, UnusualScans

Scans = list[dict[str, float]]


def scans(count: int, seed: int) -> Scans:
    """Clean scans: a normal symptom, a heavy-tailed one, one that depends on the first, and a constant."""
    rng = np.random.default_rng(seed)
    normal, heavy = rng.standard_normal(count), rng.exponential(size=count) ** 2
    return [
        {"angles": float(a), "gain": float(b), "rings": float(a + 0.1 * c), "dead": 0.0}
        for a, b, c in zip(normal, heavy, rng.standard_normal(count), strict=True)
    ]


def test_p_values_of_the_same_kind_of_scan_are_uniform() -> None:
    rng = np.random.default_rng(0)
    null = Null.of("angles", rng.standard_normal(2000).tolist())
    values = np.sort([null.p_value(value) for value in rng.standard_normal(2000)])
    assert np.abs(values - (np.arange(2000) + 0.5) / 2000).max() < 0.04  # the 99.9 % point of two samples is 0.06


def test_p_values_fall_beyond_all_clean_scans() -> None:
    null = Null.of("angles", np.random.default_rng(0).standard_normal(200).tolist())
    p = [null.p_value(value) for value in (0.0, 2.0, 4.0, 8.0, 1e6)]
    assert all(a > b for a, b in itertools.pairwise(p))
    assert p[-1] > 0
    assert Null.of("dead", [0.0] * 50).p_value(1.0) < 1e-4
    assert null.p_value(math.nan) == Null((), 1.0).p_value(3.0) == 1.0


def test_many_values_are_stored_as_quantiles() -> None:
    values = np.random.default_rng(0).standard_normal(20_000)
    null = Null.of("angles", values.tolist())
    assert len(null.values) == MOST_VALUES
    assert null.p_value(0.0) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("count", [100, 300])
def test_false_alarms_are_as_many_as_stated(count: int) -> None:
    """Mean over calibrations; symptoms depend on each other."""
    shares = []
    for seed in range(20):
        test = UnusualScans.fit(scans(count, seed))
        shares.append(np.mean([test.test(scan).unusual for scan in scans(300, 1000 + seed)]))
    assert 0.3 * ALARMS < np.mean(shares) < 1.4 * ALARMS


def test_one_extreme_symptom_is_enough_and_is_the_smallest() -> None:
    test = UnusualScans.fit(scans(200, 0))
    finding = test.test({"angles": 9.0, "gain": 0.1, "rings": 0.0, "dead": 0.0})
    assert finding.unusual
    assert min(finding.symptoms, key=lambda name: finding.symptoms[name]) == "angles"
    assert finding.p_value < 1e-3
    assert test.test({"dead": 3.0}).unusual
    assert not test.test({}).unusual
    assert not test.test({"unknown": 1e9}).unusual


def test_it_survives_json() -> None:
    test = UnusualScans.fit(scans(120, 0))
    again = UnusualScans.from_json(json.loads(json.dumps(test.to_json())))
    assert again == test
