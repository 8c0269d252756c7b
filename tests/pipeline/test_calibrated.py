"""`calibrate` and `reconstruct` as commands: centre, calibration, warnings."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from bayescade import Reconstruction
from bayescade.calibration.simulated import simulated_scans
from bayescade.cli import run
from bayescade.data.noise import add_noise, common_noise
from bayescade.data.scan import Scans, ScanWriter
from bayescade.data.sources import image_source
from bayescade.physics.cases import case_geometry
from bayescade.pipeline.reconstruct import Request, Worker
from bayescade.projectors import ray_transform
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


@pytest.mark.slow
def test_a_dedicated_model_sees_the_data_moved_to_the_given_centre(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a bin of error makes a dedicated model far worse; the right --center, or the automatic one, mends it."""
    geometry = case_geometry("sparse-32")
    true = dataclasses.replace(geometry, offset=0.5 * geometry.bin_width)
    phantom = image_source("ellipses", geometry.image_shape, seed=0, split="validation").images(0, 1, 1)
    with ScanWriter("scan.h5", geometry, common_noise(), seed=0) as writer:
        writer.append(Scans(add_noise(ray_transform(true)(phantom), common_noise(), seed=0), phantom))
    middle = (geometry.bins - 1) / 2
    scores = {}
    for center in ("stated", str(middle - 0.5), str(middle + 0.5)):
        line = ["reconstruct", "scan.h5", "-o", "out.h5", "--model", "bdgd-plus/sparse-32", "--center", center]
        assert run([*line, "--calibrate", "off", "--json", *SHORT]) == 0
        scores[center] = json.loads(capsys.readouterr().out)["psnr"]
    stated, *given = scores.values()
    assert max(given) > stated + 6 > min(given) + 6


@pytest.mark.slow
def test_scans_of_other_kinds_get_calibrations_of_their_own() -> None:
    """Without a stated noise it is estimated for every scan."""
    scan = next(simulated_scans(KIND, 1, seed=5, split="test")).sinogram
    noisy = scan + 0.1 * scan.abs().mean() * torch.randn(scan.shape, generator=torch.Generator().manual_seed(0))
    worker = Worker(Request(model="fbp", device="cpu"), GEOMETRY, None)
    for index, sinogram in enumerate((scan, noisy, scan, 0 * scan)):
        worker(sinogram, index)
    assert len(worker.calibrations) == 2


def test_intervals_that_cannot_be_had_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["reconstruct", scan_file("scan.h5"), "-o", "out.h5", "--calibrate", "20", "--model", "fbp"]
    assert run(line) == 2
    assert "--uncertainty bootstrap" in capsys.readouterr().err


@pytest.mark.slow
def test_error_bars_by_a_bootstrap_are_calibrated(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["reconstruct", scan_file("scan.h5"), "-o", "out.h5", "--calibrate", "20", "--model", "fbp"]
    assert run([*line, "--uncertainty", "bootstrap", *SHORT]) == 0
    result = Reconstruction.load("out.h5")
    assert result.lower is not None
    assert result.noise is not None
    assert "20 calibration scans" in str(result.calibration)
    assert run([*line, "--uncertainty", "guess", *SHORT]) == 2
    assert "expected own or bootstrap, got 'guess'" in capsys.readouterr().err
