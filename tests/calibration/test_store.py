"""Calibrations are found again for the same scan, and only for it; damaged files are made again."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bayescade.calibration.examine import Examiner
from bayescade.calibration.simulated import ScanKind, simulated_scans
from bayescade.calibration.store import calibration_for, data_key, digest, find, key_of, save
from bayescade.data.noise import common_noise, noise_model
from tests.calibration.common import GEOMETRY, KIND, SCANS, examiner, small_calibration


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The key of the small calibration, in a cache of its own."""
    monkeypatch.setenv("BAYESCADE_CACHE", str(tmp_path / "cache"))
    return key_of(examiner(), KIND)


def test_a_stored_calibration_is_found(key: dict[str, Any]) -> None:
    assert find(key) is None
    save(key, small_calibration())
    found = find(key, SCANS)
    assert found is not None
    assert found.to_json() == small_calibration().to_json()
    assert find(key, SCANS + 1) is None


def test_a_damaged_calibration_is_not_used(key: dict[str, Any]) -> None:
    path = save(key, small_calibration())
    whole = path.read_text()
    values = json.loads(whole)
    values["calibration"]["intervals"]["scales"][0] *= 0.5
    for damaged in (json.dumps(values), whole[: len(whole) // 2], "[]", ""):
        path.write_text(damaged)
        assert find(key) is None
    path.write_text(whole)
    assert find(key) is not None


def test_what_changes_the_calibration_changes_the_key(key: dict[str, Any]) -> None:
    narrower = dataclasses.replace(GEOMETRY, bins=35)
    others = [
        key_of(examiner(), ScanKind(GEOMETRY, common_noise(0.02))),
        key_of(Examiner("any", narrower, samples=2), ScanKind(narrower, common_noise())),
        key_of(Examiner("any", GEOMETRY, samples=4), KIND),
        key_of(Examiner("any", GEOMETRY, samples=2, settings=["variance=network"]), KIND),
        key_of(Examiner("any", GEOMETRY, samples=2, stated_std=0), KIND),
        key_of(examiner(), KIND, delta=0.1),
        key_of(examiner(), KIND, level=0.5),
    ]
    assert len({digest(each) for each in [key, *others]}) == len(others) + 1


def test_what_does_not_change_it_does_not_change_the_key(key: dict[str, Any]) -> None:
    rounded = dataclasses.replace(GEOMETRY, angles=tuple(angle + 1e-12 for angle in GEOMETRY.angles))
    assert key_of(Examiner("any", rounded, samples=2), ScanKind(rounded, common_noise())) == key
    eight, hundred = (Examiner("any", GEOMETRY, samples=samples) for samples in (8, 100))
    assert key_of(eight, KIND) == key_of(hundred, KIND)
    assert data_key(examiner(), KIND) == data_key(examiner("fbp"), KIND)


@pytest.mark.usefixtures("key")
def test_the_second_time_nothing_is_computed() -> None:
    said: list[str] = []
    scan = next(simulated_scans(KIND, 1, seed=5, split="test"))
    fresh = Examiner("any", GEOMETRY, samples=2)
    first = calibration_for(fresh, KIND, scan.sinogram, images=20, say=said.append)
    assert len(said) == 1
    assert "20 simulated scans" in said[0]
    again = Examiner("any", GEOMETRY, samples=2)
    second = calibration_for(again, KIND, scan.sinogram, images=20, say=said.append)
    assert len(said) == 1
    assert second.to_json() == first.to_json()
    assert again.errors == fresh.errors


@pytest.mark.usefixtures("key")
def test_a_calibration_that_takes_too_long_is_left_out_and_said_so() -> None:
    said: list[str] = []
    scan = next(simulated_scans(KIND, 1, seed=5, split="test"))
    calibration = calibration_for(examiner(), KIND, scan.sinogram, images=500, at_most=1.0, say=said.append)
    assert calibration.intervals is None
    assert "--calibrate 500" in said[0]
    assert "simulating good scans" in said[1]


def test_without_a_cache_a_calibration_is_used_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BAYESCADE_CACHE", str(tmp_path / "file" / "cache"))
    said: list[str] = []
    fresh = Examiner("fbp", GEOMETRY, samples=1)
    scan = next(simulated_scans(KIND, 1, seed=5, split="test"))
    calibration = calibration_for(fresh, KIND, scan.sinogram, images=20, say=said.append)
    assert calibration.intervals is None
    assert "could not be stored" in said[-1]


def test_kinds_that_share_a_calibration_have_the_same_scans() -> None:
    noise = noise_model("poisson", ["photons=1e4", "attenuation=0.1"])
    kinds = [ScanKind(GEOMETRY, noise, largest) for largest in (30.0, 30.6, 60.0)]
    keys = [data_key(examiner("fbp"), kind) for kind in kinds]
    one, other, larger = (next(simulated_scans(kind, 1, seed=0, split="test")).sinogram for kind in kinds)
    assert keys[0] == keys[1] != keys[2]
    assert torch.equal(one, other)
    assert float(larger.max()) == pytest.approx(2 * float(one.max()), rel=0.1)
