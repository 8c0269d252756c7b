"""A calibration for one geometry: what it gives, and what it says of other scans of the same kind."""

import dataclasses
import json
import math

import pytest
import torch

from bayescade.calibration.assess import assessed
from bayescade.calibration.calibrate import Calibration, calibrate, calibrate_data
from bayescade.calibration.examine import can_examine
from bayescade.calibration.simulated import ScanKind, simulated_scans
from bayescade.data.noise import common_noise
from bayescade.data.scanner import Scanner
from bayescade.errors import UserError
from bayescade.physics.geometry import ParallelBeam
from bayescade.results import Reconstruction
from tests.calibration.common import GEOMETRY, KIND, SCANS, examiner, small_calibration


@pytest.fixture
def result() -> Reconstruction:
    """The result of a scan that the calibration has not seen."""
    scan = next(simulated_scans(KIND, 1, seed=5, split="test"))
    examined = examiner()(scan.sinogram, noise=KIND.noise)
    return assessed(examined, scan.sinogram, small_calibration())


def test_a_calibration_gives_intervals_and_a_sentence(result: Reconstruction) -> None:
    assert result.lower is not None
    assert result.upper is not None
    assert bool((result.lower <= result.image).all())
    assert bool((result.image < result.upper).all())
    assert result.calibration is not None
    assert f"({SCANS} calibration scans)" in result.calibration
    assert "They do not hold for this one scan alone" in result.calibration
    assert result.region_calibration is not None
    assert set(json.loads(result.region_calibration)) == {"levels", "sizes"}


def test_intervals_hold_on_average_over_other_scans() -> None:
    """With 24 scans on either side the mean coverage has a standard error of about 2 %."""
    calibration = small_calibration()
    coverages = []
    for scan in simulated_scans(KIND, 24, seed=6, split="test"):
        result = assessed(examiner()(scan.sinogram, noise=KIND.noise, index=scan.index), scan.sinogram, calibration)
        assert result.lower is not None
        assert result.upper is not None
        inside = (scan.truth >= result.lower) & (scan.truth <= result.upper)
        coverages.append(float(inside.double().mean()))
    assert 0.84 <= sum(coverages) / len(coverages) <= 0.97


def test_the_same_seed_gives_the_same_calibration_and_json_keeps_it() -> None:
    first = small_calibration()
    again = calibrate(examiner(), KIND, images=SCANS, seed=3)
    values = first.to_json()
    assert {**again.to_json(), "seconds": values["seconds"]} == values
    assert Calibration.from_json(json.loads(json.dumps(values))).to_json() == values


def test_too_few_scans_are_refused() -> None:
    with pytest.raises(UserError, match="at least 20 scans"):
        calibrate(examiner(), KIND, images=5)


def test_tests_of_the_data_alone_need_no_variance() -> None:
    fbp = examiner("fbp")
    assert not fbp.has_variance
    calibration = calibrate_data(fbp, KIND)
    assert calibration.intervals is None
    scan = next(simulated_scans(KIND, 1, seed=5, split="test"))
    result = assessed(fbp(scan.sinogram, noise=KIND.noise), scan.sinogram, calibration)
    assert result.calibration is None
    assert result.warnings == [[]]
    counts = assessed(fbp(1e4 * torch.exp(-scan.sinogram / scan.sinogram.amax())), scan.sinogram, calibration)
    assert counts.lower is None
    assert "residual" not in calibration.unusual.nulls


def test_a_scan_without_calibration_is_told_so() -> None:
    scan = next(simulated_scans(KIND, 1, seed=5, split="test"))
    result = assessed(examiner()(scan.sinogram), scan.sinogram, None)
    assert result.calibration is not None
    assert "not calibrated" in result.calibration
    assert "bayescade calibrate any" in result.calibration


def test_counts_are_told_from_line_integrals() -> None:
    scan = next(simulated_scans(KIND, 1, seed=5, split="test"))
    counts = 3e4 * torch.exp(-3 * scan.sinogram / scan.sinogram.amax())
    result = assessed(examiner()(counts, noise=KIND.noise), counts, small_calibration())
    assert result.warnings is not None
    assert [item["cause"] for item in result.warnings[0]] == ["counts"]
    assert result.warning is not None
    assert "minus_log" in result.warning


def test_a_wrong_centre_is_corrected_and_noted() -> None:
    scan = next(simulated_scans(KIND, 1, seed=5, split="test"))
    stated = dataclasses.replace(examiner().geometry, offset=1.5)
    moved = type(examiner())("any", stated, samples=2)
    moved.errors = small_calibration().errors
    result = assessed(moved(scan.sinogram, noise=KIND.noise), scan.sinogram, None)
    assert result.notes is not None
    assert any("corrected" in note for note in result.notes[0])
    geometry = json.loads(str(result.geometry))
    assert abs(float(geometry["offset"]) - scan.shift) < 0.5


def test_only_scans_that_are_large_enough_are_examined() -> None:
    assert can_examine(GEOMETRY)
    assert not can_examine(ParallelBeam([0.0, 1.0, 2.0], 37, 1.0, image_shape=(24, 24)))


def test_counted_photons_keep_the_largest_line_integral() -> None:
    kind = ScanKind(GEOMETRY, common_noise(0.0, 1e6, 0.1), largest=30.0, scanner=Scanner(grid_factor=1))
    largest = [float(scan.sinogram.amax()) for scan in simulated_scans(kind, 4, seed=0, split="calibration")]
    assert largest == pytest.approx([32.0] * 4, rel=0.01)  # rounded to a fourth of an octave


def test_simulated_scans_depend_on_seed_split_and_index_only() -> None:
    first = list(simulated_scans(KIND, 3, seed=1, split="calibration"))
    longer = list(simulated_scans(KIND, 13, seed=1, split="calibration"))
    other = list(simulated_scans(KIND, 3, seed=1, split="test"))
    for one, same, different in zip(first, longer, other, strict=False):
        assert torch.equal(one.sinogram, same.sinogram)
        assert one.shift == same.shift
        assert not torch.equal(one.sinogram, different.sinogram)
    assert math.isfinite(sum(scan.shift for scan in longer))
