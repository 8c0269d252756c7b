"""`calibrate` and `reconstruct` as commands: centre, calibration, warnings."""

import json
from pathlib import Path

import pytest
import torch

from bayescade import Reconstruction
from bayescade.calibration.simulated import simulated_scans
from bayescade.cli import run
from bayescade.data.noise import common_noise
from bayescade.data.scan import Scans, ScanWriter
from tests.calibration.common import GEOMETRY, KIND

GEO = "bins = 37\nviews = 12\nimage_shape = [24, 24]\n"
SHORT = ["--samples", "2", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESCADE_CACHE", str(tmp_path / "cache"))
    Path("geo.toml").write_text(GEO)


def scan_file(path: str, counts: bool = False) -> str:
    """A file with two good scans, or with their counts."""
    with ScanWriter(path, GEOMETRY, common_noise(), seed=0) as writer:
        for scan in simulated_scans(KIND, 2, seed=5, split="test"):
            y = scan.sinogram
            writer.append(Scans(3e4 * torch.exp(-3 * y / y.amax()) if counts else y, scan.truth))
    return path


@pytest.mark.slow
def test_a_calibration_is_made_by_a_command_and_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "any", "--geometry", "geo.toml", "--images", "20", *SHORT]) == 0
    out = capsys.readouterr().out
    assert "90 % intervals hold on average" in out
    scan = scan_file("scan.h5")
    assert run(["reconstruct", scan, "-o", "out.h5", "--calibrate", "20", *SHORT]) == 0
    said = capsys.readouterr()
    assert "calibrating for this geometry" not in said.err
    result = Reconstruction.load("out.h5")
    assert result.lower is not None
    assert result.calibration is not None
    assert "20 calibration scans" in result.calibration
    assert result.warnings == [[], []]


@pytest.mark.slow
def test_counts_are_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reconstruct", scan_file("counts.h5", counts=True), "-o", "out.h5", "--calibrate", "off", *SHORT]) == 0
    said = capsys.readouterr().err
    assert "counts" in said
    assert "minus_log" in said
    result = Reconstruction.load("out.h5")
    assert result.warnings is not None
    assert [item["cause"] for scan in result.warnings for item in scan] == ["counts", "counts"]
    assert result.lower is None


@pytest.mark.slow
def test_the_centre_can_be_given_or_left_as_stated() -> None:
    scan = scan_file("scan.h5")
    for center, offset in (("stated", 0.0), ("19.5", None)):
        assert run(["reconstruct", scan, "-o", "out.h5", "--center", center, "--calibrate", "off", *SHORT]) == 0
        geometry = json.loads(str(Reconstruction.load("out.h5").geometry))
        found = Reconstruction.load("out.h5")
        assert found.notes == [[], []], "nothing is corrected"
        if offset is None:
            assert found.warnings is not None
            for items in found.warnings:
                (item,) = items
                assert item["cause"] == "centre"
                assert "--center auto" in item["command"]
            assert abs(geometry["offset"]) == pytest.approx(1.5, abs=0.51)
        else:
            assert geometry["offset"] == offset


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--center", "middle"], "--center"),
        (["--center", "nan"], "--center"),
        (["--calibrate", "yes"], "--calibrate"),
        (["--calibrate", "5"], "at least 20"),
    ],
)
def test_wrong_requests_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reconstruct", scan_file("scan.h5"), "-o", "out.h5", *arguments, *SHORT]) != 0
    assert message in capsys.readouterr().err
    assert not Path("out.h5").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["any", "--images", "5"], "at least 20"),
        (["any", "--alpha", "0.3"], "--alpha"),
        (["any", "--delta", "2"], "--delta"),
        (["fbp", "--images", "20"], "no error bars"),
    ],
)
def test_wrong_calibrations_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", *arguments, "--geometry", "geo.toml", *SHORT]) != 0
    assert message in capsys.readouterr().err


def test_a_scan_that_is_too_small_to_calibrate_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("geo.toml").write_text("bins = 23\nviews = 3\nimage_shape = [16, 16]\n")
    assert run(["calibrate", "any", "--geometry", "geo.toml", *SHORT]) != 0
    assert "at least 4 views and 24 bins" in capsys.readouterr().err


@pytest.mark.slow
def test_evaluate_with_calibrated_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "evaluate",
        "any",
        "--geometry",
        "geo.toml",
        "--images",
        "2",
        "--calibrate",
        "20",
        "--report",
        "page",
        "--json",
    ]
    assert run([*line, *SHORT]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    found = row["uncertainty"]
    assert 0 <= found["coverage_calibrated"] <= 1
    assert sum(share or 0 for share in found["shares"].values()) == pytest.approx(1)
    assert sum(found["causes"].values()) >= 2 * found["warned"]
    page = Path("page/report.html").read_text()
    assert "Calibrated 90% intervals cover" in page
    assert "20 calibration scans" in page
