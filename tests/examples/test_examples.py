"""The examples run at a tiny size, and the measured scans come out as they should."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bayescade.methods import fbp

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_choosing_the_weight(tmp_path: Path) -> None:
    line = [sys.executable, str(EXAMPLES / "choose_tv_weight.py"), "--cases", "sparse-8", "--images", "1"]
    done = subprocess.run([*line, "--constants", "0.2,0.4", "--iterations", "50"], capture_output=True, text=True)
    rows = [json.loads(row) for row in done.stdout.splitlines()]
    assert [row["constant"] for row in rows] == [0.2, 0.4], done.stderr


@pytest.mark.parametrize("scan", ["tooth", "diamond", "helsinki"])
def test_measured_scans(scan: str, tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("measured_scans")
    arguments = ["measured_scans.py", scan, "--data", str(data_folder), "--out", str(tmp_path), "--coarsen", "8"]
    monkeypatch.setattr(sys, "argv", arguments)
    example.main()
    assert (tmp_path / f"measured_{scan}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize(("scan", "bins"), [("tooth", 640), ("diamond", 160)])
def test_the_stated_centre_is_sharp(scan: str, bins: int, data_folder: Path) -> None:
    """A wrong centre of rotation smears edges into empty pixels: the sum of negative values is smallest at the right one."""
    example = load("measured_scans")
    sinogram, geometry, _ = example.load_scan(scan, data_folder, coarsen=2)
    assert geometry.bins == bins // 2

    def negative(shift: float) -> float:
        moved = type(geometry)(**{**vars(geometry), "offset": geometry.offset + shift})
        image = fbp.build(moved, fbp.Settings("hann"))(sinogram).image
        return float(image.clamp_max(0).sum())

    stated = negative(0.0)
    assert all(abs(negative(shift)) > abs(stated) for shift in (-3.0, 3.0))


def test_coarse_bins_are_where_the_fine_ones_were(data_folder: Path) -> None:
    example = load("measured_scans")
    _, fine, _ = example.load_scan("tooth", data_folder, coarsen=1)
    _, coarse, _ = example.load_scan("tooth", data_folder, coarsen=4)
    assert fine.bin_positions()[296] == pytest.approx(0)
    np.testing.assert_allclose(coarse.bin_positions()[3], fine.bin_positions()[12:16].mean())


@pytest.mark.slow
def test_looking_into_a_cascade(tmp_path: Path) -> None:
    line = [sys.executable, str(EXAMPLES / "look_into_a_cascade.py"), "bdgd-plus/sparse-32", "--images", "1"]
    done = subprocess.run(
        [*line, "--samples", "4", "--json", str(tmp_path / "out.json")], capture_output=True, text=True, check=True
    )
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["psnr"][0][0] < found["psnr"][-1][0]
    assert len(found["psnr"]) == len(found["weight_stds"]) + 1
    variances = {row["sampling"]: row["pixel"] for row in found["epistemic"]}
    assert variances["activations, jitter 1e-6"] > variances["activations"]
    assert "| 0 (FBP) |" in done.stdout


@pytest.mark.slow
def test_cells_are_trained_within_a_limit(tmp_path: Path) -> None:
    small = "[data]\nimages = 4\nvalidation_images = 2\n[greedy]\nblocks = 1\nrestarts = 0\n[block]\nchannels = 1\n"
    (tmp_path / "dgd_sparse-8.toml").write_text(small + "[fit]\nepochs = 1\n")
    (tmp_path / "bdgd_sparse-8.toml").write_text(small + "[fit]\nepochs = 1000000\n")
    (tmp_path / "dgd_sparse-16.toml").write_text(small + "[fit]\nepochs = 1\n")
    line = [
        sys.executable,
        str(EXAMPLES / "train_cells.py"),
        str(tmp_path),
        "--out",
        str(tmp_path / "runs"),
        "--device",
        "cpu",
    ]

    def cells(*more: str) -> dict[str, str]:
        done = subprocess.run([*line, *more], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        return {
            row["cell"]: row["status"] for row in json.loads((tmp_path / "runs" / "cells.json").read_text())["cells"]
        }

    names = "dgd_sparse-8,bdgd_sparse-8,dgd_sparse-16"
    found = cells("--only", names, "--limit", "8")
    assert found == {"dgd_sparse-8": "done", "bdgd_sparse-8": "cut off", "dgd_sparse-16": "not begun"}
    assert cells("--only", "dgd_sparse-16") == {"dgd_sparse-16": "done"}
    assert cells("--order", "slow", "--limit", "3") == {
        "bdgd_sparse-8": "cut off",
        "dgd_sparse-16": "done",
        "dgd_sparse-8": "done",
    }
    (tmp_path / "dgd_sparse-8_again.toml").write_text(small + "[fit]\nepochs = 2\n")
    found = cells("--only", "dgd_sparse-8_again,dgd_sparse-16", "--jobs", "2", "--score", "2")
    assert found == {"dgd_sparse-8_again": "done", "dgd_sparse-16": "done"}
    scored = json.loads((tmp_path / "runs" / "dgd_sparse-8_again" / "validation.json").read_text())
    assert scored["ellipses"]["psnr"] > 5
    assert scored["random-shepp-logan"]["nll"] is None
    runs = [str(tmp_path / "runs" / name) for name in ("dgd_sparse-8_again", "bdgd_sparse-8")]
    subprocess.run([sys.executable, str(EXAMPLES / "experiments.py"), *runs, "--docs", str(tmp_path)], check=True)
    subprocess.run([sys.executable, str(EXAMPLES / "experiments.py"), "--docs", str(tmp_path)], check=True)
    page = (tmp_path / "experiments.md").read_text()
    assert "| dgd_sparse-8_again | channels 1, blocks 1, restarts 0, epochs 2," in page
    assert "| bdgd_sparse-8 |" in page
    assert "cut off |" in page
    wrong = subprocess.run([*line, "--only", "tv_sparse-8"], capture_output=True, text=True)
    assert "no configuration tv_sparse-8" in wrong.stderr


@pytest.mark.slow
def test_an_ablation_of_two_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("any_ablation")
    monkeypatch.setattr(example, "ROWS", ("ellipses-views-16",))
    tiny = [
        "data.images=8",
        "data.validation_images=4",
        "greedy.blocks=1",
        "fit.epochs=1",
        "fit.batch=4",
        "block.channels=4",
        "block.memory_channels=2",
        "joint.epochs=2",
        "joint.rounds=1",
    ]
    arguments = ["any_ablation.py", "--out", str(tmp_path), "--at-once", "2", "--scans", "1", "--device", "cpu"]
    arguments += ["--only", "standard", "--only", "no-memory", *(part for text in tiny for part in ("--set", text))]
    monkeypatch.setattr(
        sys, "argv", [*arguments, "--set", "greedy.restarts=0", "--set", "scans.geometries.most_views=12"]
    )
    example.main()
    lines = [json.loads(line) for line in (tmp_path / "ablation.jsonl").read_text().splitlines()]
    assert [line["variant"] for line in lines] == ["standard", "no-memory"]
    assert all(len(line["blocks"]) == 1 and line["ellipses-views-16"][0] > 5 for line in lines)


@pytest.mark.slow
def test_left_out_views_are_predicted(tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of the views are disjoint and complete; an image that fits the data has less excess error than none."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = load("left_out_views")
    given, chooser, test = example.split_views("diamond", data_folder)
    angles = [angle for views in (given, chooser, test) for angle in views.geometry.angles]
    assert len(angles) == len(set(angles)) == 91
    assert given.geometry.views == 16
    image = example.load_model("fbp", given.geometry)(given.sinogram).image.clamp_min(0)
    noise = example.noise_map(test.sinogram)
    assert float(example.excess(test, image, noise).mean()) < 0.1 * float(example.excess(test, 0 * image, noise).mean())


def test_first_images(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """More iterations of total variation are nearer to the truth than FBP."""
    line = ["first_image.py", "--rows", "ellipses-views-16", "--scans", "1", "--iterations", "0", "40"]
    monkeypatch.setattr(sys, "argv", [*line, "--constants", "0", "1"])
    load("first_image").main()
    rows = [row.split("|")[2:5] for row in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0].strip() for row in rows] == ["own", "1.0"]
    assert all(float(row[2]) > float(row[1]) + 5 for row in rows)


@pytest.mark.slow
def test_the_centre_is_found_within_a_few_hundredths_of_a_bin() -> None:
    example = load("centre_accuracy")
    geometry = example.parallel(views=24, bins=95)
    geometry = type(geometry)(geometry.angles, 95, 1.0, image_shape=(64, 64))
    line = example.measured(example.Row("small", geometry), 10, seed=0)
    name, rmse, std, z, unknown = (cell.strip() for cell in line.strip("|").split("|"))
    assert name == "small"
    assert float(rmse) < 0.1
    assert float(std) < 0.1
    assert 0.4 < float(z) < 2
    assert unknown == "0%"


@pytest.mark.slow
def test_errors_of_limited_arcs_are_less_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shares sum to one, and a full arc sees more of the errors than half of one."""
    line = ["seen_and_unseen.py", "--cases", "limited-90", "sparse-64", "--images", "1", "--samples", "2"]
    monkeypatch.setattr(sys, "argv", line)
    load("seen_and_unseen").main()
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in capsys.readouterr().out.splitlines()[2:]]
    shares = {(row[0], row[1]): [float(cell.rstrip("%")) for cell in row[2:]] for row in rows}
    assert len(shares) == 12
    assert all(sum(values) == pytest.approx(100, abs=1.6) for values in shares.values())
    errors = [values for (name, _), values in shares.items() if name.endswith("errors")]
    assert errors[0][1] > errors[3][1]


@pytest.mark.slow
def test_movements_of_a_bootstrap_are_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without movements a bootstrap of FBP claims far too much: streaks get streaks of their own."""
    example = load("bootstrap_range")
    monkeypatch.setattr(example, "RANGES", ((0.0, 0.0), (20.0, 3.0)))
    line = ["bootstrap_range.py", "--cases", "sparse-8", "--methods", "fbp", "--phantoms", "ellipses", "--images", "1"]
    monkeypatch.setattr(sys, "argv", [*line, "--replicates", "4"])
    example.main()
    rows = [row.split("|") for row in capsys.readouterr().out.splitlines()[2:]]
    without, with_movements = (float(row[6]) for row in rows)
    assert 0.5 < with_movements < 2 < without


@pytest.mark.slow
def test_errors_are_compared_with_disagreements(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["error_ratio.py", "any", "--scans", "3", "--size", "32"])
    load("error_ratio").main()
    out = capsys.readouterr().out
    assert "| all | 3 |" in out
    assert "| fitted |" in out
    assert float(out.split("ratio ")[-1]) > 0
