"""The commands with good input: what they print, what they write, and that they say the same twice."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import bayescade
from bayescade import Reconstruction
from bayescade.cli import run

COMMANDS = [
    "demo",
    "simulate",
    "train",
    "reconstruct",
    "evaluate",
    "pack",
    "benchmark paper",
    "benchmark any",
    "models",
]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def answer(line: str, capsys: pytest.CaptureFixture[str]) -> dict:
    """Runs a command with --json; standard output is one JSON object without NaN."""
    assert run([*line.split(), "--json"]) == 0

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in JSON")

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_the_common_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Example: bayescade {command}" in " ".join(text.split())
    assert "--json" in text
    assert "--device" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == bayescade.__version__ + "\n"


@pytest.mark.slow
def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    said = answer("demo --out here", capsys)
    assert said["psnr"] > 39
    assert said["psnr"] > said["psnr_fbp"] + 15
    assert 0.9 < said["coverage_calibrated"] <= 1
    assert said["warnings"] == []
    (note,) = said["notes"]
    assert note.startswith("centre of rotation: +0.50 +- 0.0")  # the stated centre is wrong by half a bin
    assert said["seconds"] < 120, "the demo has a shipped calibration"
    result = Reconstruction.load("here/reconstruction.h5")
    assert result.lower is not None
    assert result.calibration == said["calibration"]
    assert 0.03 < float(result.image.max()) < 0.05  # per millimetre
    assert result.scores is not None
    assert result.scores["psnr"] == [said["psnr"]]
    assert Path("here/figure.png").read_bytes().startswith(b"\x89PNG")
    assert run(["demo", "--out", "here"]) == 0
    assert "PSNR" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["h5", "npz"])
def test_simulate_then_reconstruct(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = answer(f"simulate --phantom ellipses --case sparse-16 --images 3 --seed 4 -o scan.{suffix}", capsys)
    assert said["images"] == 3
    said = answer(f"reconstruct scan.{suffix} --model fbp -o out.{suffix}", capsys)
    result = Reconstruction.load(f"out.{suffix}")
    assert result.image.shape == (3, 1, 128, 128)
    assert result.truth is not None
    assert result.scores is not None
    assert np.mean(result.scores["psnr"]) == pytest.approx(said["psnr"])
    assert said["psnr"] == pytest.approx(20.3, abs=4)


def test_the_same_seed_gives_the_same_files(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        answer(f"simulate --phantom ellipses --case sparse-8 --images 2 --seed 4 -o {name}.npz", capsys)
    answer("simulate --phantom ellipses --case sparse-8 --images 2 --seed 5 -o c.npz", capsys)
    a, b, c = (np.load(f"{name}.npz") for name in "abc")
    np.testing.assert_array_equal(a["sinogram"], b["sinogram"])
    assert not np.array_equal(a["sinogram"], c["sinogram"])
    assert not np.array_equal(a["truth"], c["truth"])


@pytest.mark.parametrize(
    ("options", "attribute"),
    [("--noise 0.05", ("noise", 0.05)), ("--photons 1e4", ("photons", 1e4)), ("--split train", ("seed", 0))],
)
def test_simulate_options(options: str, attribute: tuple[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    answer("simulate --phantom ellipses --case sparse-8 -o plain.h5", capsys)
    answer(f"simulate --phantom ellipses --case sparse-8 {options} -o scan.h5", capsys)
    with h5py.File("scan.h5") as scan, h5py.File("plain.h5") as plain:
        assert scan.attrs[attribute[0]] == attribute[1]
        assert not np.array_equal(scan["sinogram"], plain["sinogram"])


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("", "--noise-model gaussian"),
        ("--noise 0.05", "--noise-model gaussian --noise-set relative=0.05"),
        (
            "--photons 1e4 --attenuation 0.1",
            "--noise-model poisson --noise-set photons=1e4 --noise-set attenuation=0.1",
        ),
    ],
)
def test_short_options_of_noise_stand_for_a_model(short: str, long: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, options in (("short", short), ("long", long)):
        answer(f"simulate --phantom ellipses --case sparse-8 {options} -o {name}.npz", capsys)
    a, b = (np.load(f"{name}.npz") for name in ("short", "long"))
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize(
    "text",
    [
        "bins = 91\nviews = 10\nimage_shape = [40, 64]\n",
        "bins = 91\nangles_degrees = [0, 30.5, 100]\nimage_shape = [40, 64]\noffset = 1.5\nbin_width = 0.9\n",
        "kind = 'fan'\nbins = 91\nviews = 40\narc_degrees = 360\nimage_shape = [40, 64]\nsource_origin = 90\n"
        "source_detector = 120\n",
        "kind = 'parallel'\nbins = 91\nangles = [0.0, 1.0]\nimage_shape = [40, 64]\npixel_size = 0.5\n",
    ],
)
def test_geometry_files_and_own_images(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("geo.toml").write_text(text)
    np.save("images.npy", np.random.default_rng(0).random((3, 40, 64)))
    said = answer("simulate --phantom images.npy --geometry geo.toml --grid-factor 2 -o scan.h5", capsys)
    assert said["images"] == 3
    said = answer("reconstruct scan.h5 --model fbp --set window=hann -o out.h5", capsys)
    assert Reconstruction.load("out.h5").image.shape == (3, 1, 40, 64)
    with h5py.File("scan.h5") as scan:
        Path("geo.json").write_text(scan.attrs["geometry"])
    rows = answer("evaluate fbp --geometry geo.json --truth images.npy", capsys)["rows"]
    assert rows[0]["case"] == "geo"
    assert rows[0]["images"] == 3
    assert rows[0]["psnr_shepp_logan"] is None


def test_evaluate_with_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    said = answer("evaluate fbp --case sparse-32 --images 5 --report report", capsys)
    (row,) = said["rows"]
    assert set(row) >= {"method", "case", "images", "status", "psnr", "psnr_shepp_logan", "ssim", "uncertainty"}
    assert row["status"] == "ok"
    assert row["uncertainty"] is None
    page = Path("report/report.html").read_text()
    assert f"{row['psnr']:.4g}" in page
    assert json.loads(Path("report/scores.json").read_text())["row"] == row
    assert Path("report/figure.png").exists()
    assert run(["evaluate", "fbp", "--case", "sparse-32", "--images", "5"]) == 0
    assert f"{row['psnr']:.2f}" in capsys.readouterr().out


def test_models_lists_what_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer("models", capsys)["models"]
    assert "fbp" in [row["name"] for row in rows]


def test_an_unexpected_failure_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the\ndisk is full")

    monkeypatch.setattr("bayescade.pipeline.demo.demo", fail)
    assert run(["demo"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "bayescade: failed: RuntimeError: the disk is full (BAYESCADE_DEBUG=1 shows where)\n"
    monkeypatch.setenv("BAYESCADE_DEBUG", "1")
    with pytest.raises(RuntimeError):
        run(["demo"])


def test_an_interruption_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bayescade.pipeline.demo.demo", interrupt)
    assert run(["demo"]) == 1
    assert "interrupted" in capsys.readouterr().err


def test_python_in_a_few_lines() -> None:
    from bayescade import case_geometry, load_model, ray_transform

    geometry = case_geometry("sparse-16")
    sinogram = ray_transform(geometry)(torch.rand(1, 1, 128, 128))
    result = load_model("fbp", geometry)(sinogram)
    assert result.image.shape == (1, 1, 128, 128)
    smooth = [load_model("fbp", geometry, settings=form)(sinogram) for form in (["window=hann"], {"window": "hann"})]
    assert torch.equal(smooth[0].image, smooth[1].image)
    assert not torch.equal(smooth[0].image, result.image)
    with pytest.raises(ValueError, match="give a geometry"):
        load_model("fbp")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bayescade.nothing


def test_public_names_are_there() -> None:
    assert {"LinearOperator", "Reconstructor", "load_model"} <= set(dir(bayescade))
    for name in dir(bayescade):
        assert getattr(bayescade, name) is not None
