"""`bayescade train` from the command line: methods, presets, resuming, killing, and the models that come out."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayescade.data.noise import Noise
from bayescade.errors import Failure, UserError
from bayescade.models import load_model
from bayescade.pipeline.scan_geometry import read_geometry
from bayescade.pipeline.train import train
from bayescade.storage.identity import Identity
from bayescade.storage.manifest import read_manifest
from bayescade.storage.runs import Run
from bayescade.testing import check_method
from bayescade.training import greedy
from tests.pipeline.tiny import TINY, command, said

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("method", ["dgd", "bdgd", "bdgd-plus"])
def test_train_reconstruct_evaluate(
    method: str, geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    answer = json.loads(said(capsys, [*command(method, geometry, folder), "--json"]))
    assert answer["blocks"] == 2
    assert answer["validation_psnr"] > 5
    assert "Training time" in (folder / "card.md").read_text()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["block"], line["epoch"]) for line in lines] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert all(np.isfinite(line["loss"]) and np.isfinite(line["validation_psnr"]) for line in lines)

    model = load_model(str(folder))
    result = check_method(model, read_geometry(geometry))
    assert (result.aleatoric is None) == (result.epistemic is None) == (method == "dgd")
    scan, out = str(tmp_path / "scan.h5"), str(tmp_path / "result.h5")
    said(capsys, ["simulate", "--phantom", "ellipses", "--geometry", geometry, "--images", "2", "-o", scan])
    answer = json.loads(
        said(capsys, ["reconstruct", scan, "--model", str(folder), "-o", out, "--samples", "4", "--json"])
    )
    assert answer["psnr"] > 5
    assert (answer["uncertainty"] is None) == (method == "dgd")
    row = json.loads(said(capsys, ["evaluate", str(folder), "--images", "2", "--samples", "4", "--json"]))["rows"][0]
    assert row["case"] == "geo"
    if method != "dgd":
        assert set(row["uncertainty"]["coverage"]) == {"0.5", "0.68", "0.9", "0.95"}
        assert 0 <= row["uncertainty"]["epistemic_share"] <= 1


@pytest.mark.parametrize("preset", ["paper", "as-released"])
def test_the_paper_presets_train(
    preset: str, geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method in ("bdgd", "bdgd-plus"):
        folder = tmp_path / method
        said(capsys, command(method, geometry, folder, "--preset", preset, "--set", "data.paper_set=false"))
        settings = json.loads((folder / "manifest.json").read_text())["settings"]
        assert settings["inference"] == {
            "sampling": "activations",
            "runner": "auto",
            "precision": "half",
            "schedule": "auto",
            "tolerance": 0.0,
        }
        model = load_model(str(folder))
        jitters = {layer.jitter for block in model.cascade.all_blocks() for layer in block.layers}  # type: ignore[attr-defined]
        assert jitters == {1e-6 if preset == "as-released" else 0.0}


def test_other_ways_to_train(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for index, more in enumerate(
        [
            ["greedy.loss=elbo", "fit.epochs=3", "greedy.refit=full", "greedy.temperature=10"],
            ["greedy.start=warm", "greedy.resample=1", "block.variance=inputs", "block.memory_channels=2"],
            ["greedy.restarts=1"],
        ]
    ):
        if index == 2:
            monkeypatch.setattr(greedy, "LEAST_GAIN", 50.0)
        settings = [part for text in more for part in ("--set", text)]
        line = command("bdgd-plus", geometry, tmp_path / str(index), "--json", *settings)
        if index == 2:
            error = said(capsys, line, code=1)
            assert "block 1 gained nothing on the validation images in 2 tries" in error
        else:
            assert json.loads(said(capsys, line))["blocks"] == 2


def test_a_finished_run_is_not_trained_again(geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    first = json.loads(said(capsys, [*command("dgd", geometry, folder), "--json"]))
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("block-*")}
    assert json.loads(said(capsys, [*command("dgd", geometry, folder), "--json"])) == first
    assert before == {path.name: path.stat().st_mtime_ns for path in folder.glob("block-*")}
    error = said(capsys, command("dgd", geometry, folder, "--set", "fit.epochs=5"), code=2)
    assert "fit.epochs = 2 (now 5)" in error


def test_training_on_images_of_a_file(geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "images.npy", np.random.default_rng(0).random((10, 12, 12), dtype=np.float32))
    said(capsys, command("dgd", geometry, tmp_path / "run", "--images", str(tmp_path / "images.npy")))
    np.save(tmp_path / "few.npy", np.zeros((3, 12, 12), dtype=np.float32))
    error = said(capsys, command("dgd", geometry, tmp_path / "other", "--images", str(tmp_path / "few.npy")), code=2)
    assert "expected 8 training and 2 validation images, got 3" in error


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--preset", "best"], "unknown preset 'best'"),
        (["--set", "epochs=3"], "unknown setting 'epochs'"),
        (["--set", "fit.epoch=3"], "unknown setting 'fit.epoch'; did you mean 'fit.epochs'?"),
        (["--set", "fit=3"], "setting fit: expected a table"),
        (["--set", "fit.epochs=many"], "setting fit.epochs: expected a whole number, got 'many'"),
        (["--set", "greedy.loss=l1"], "setting greedy.loss: expected side-by-side, elbo"),
        (["--set", "data.paper_set=true"], "images of 128 x 128"),
        (["--config", "nowhere.toml"], "nowhere.toml: there is no such file"),
        (["--case", "sparse-32"], "got both"),
    ],
)
def test_wrong_training_is_one_line(
    more: list[str], expected: str, geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = said(capsys, command("bdgd-plus", geometry, tmp_path / "run", *more), code=2)
    assert expected in error
    assert error.count("\n") == 1
    assert not list((tmp_path / "run").glob("block*"))


def test_a_method_without_weights_is_not_trained(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "There are: bdgd, bdgd-plus, dgd" in said(capsys, command("tv", geometry, tmp_path / "run"), code=2)


def test_nan_stops_and_keeps_the_last_good_state(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    error = said(capsys, command("dgd", geometry, folder, "--set", "fit.learning_rate=1e20"), code=1)
    assert "block 1, epoch" in error
    assert (
        "the blocks before it are saved. Try a smaller learning rate in another folder: --set fit.learning_rate="
        in error
    )
    assert json.loads((folder / "manifest.json").read_text())["blocks"] == []


def test_what_was_trained_cannot_be_set_any_more(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    said(capsys, command("bdgd-plus", geometry, tmp_path / "run"))
    error = said(capsys, ["evaluate", folder, "--images", "2", "--set", "fit.epochs=3"], code=2)
    assert "settings of the training cannot change after the training; you can set: inference.sampling" in error
    plain = load_model(folder, settings={"inference.sampling": "activations"})
    assert plain(torch.zeros(1, 1, 6, 15), samples=3).samples == 3
    error = said(capsys, ["evaluate", folder, "--case", "sparse-8", "--images", "2"], code=2)
    assert "is for geo: angles: expected 6 of them, the scan has 8" in error


def test_a_cascade_that_ends_early_says_so(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second block finds nothing to gain."""
    gains = iter([10.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0])
    monkeypatch.setattr("bayescade.training.stage.Stage.psnr", lambda stage: next(gains, 20.0))
    folder = tmp_path / "run"
    line = command("dgd", geometry, folder, "--set", "greedy.restarts=1", "--json")
    answer = json.loads(said(capsys, line))
    assert answer["blocks"] == 1
    assert "block 2 gained nothing on the validation images in 2 tries" in answer["warning"]
    assert "block 2 gained nothing" in (folder / "card.md").read_text()
    lines = (folder / "metrics.jsonl").read_text()
    assert json.loads(said(capsys, line))["blocks"] == 1
    assert (folder / "metrics.jsonl").read_text() == lines


def test_a_try_that_fails_is_followed_by_another(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []
    original = greedy.fit

    def first_fails(*arguments: Any, **named: Any) -> None:
        tries.append(arguments[3].learning_rate)
        if len(tries) == 1:
            raise Failure("epoch 1: the loss is nan")
        original(*arguments, **named)

    monkeypatch.setattr(greedy, "fit", first_fails)
    line = command(
        "dgd", geometry, tmp_path / "run", "--set", "greedy.restarts=2", "--set", "greedy.blocks=1", "--json"
    )
    answer = json.loads(said(capsys, line))
    assert answer["blocks"] == 1
    assert tries == [5e-3, 1.25e-3]
    assert "needed 2 tries" in answer["warning"]


def test_blank_images_are_no_harm(geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = np.random.default_rng(0).random((10, 12, 12), dtype=np.float32)
    images[[0, 9]] = 0
    np.save(tmp_path / "images.npy", images)
    line = command("bdgd-plus", geometry, tmp_path / "run", "--images", str(tmp_path / "images.npy"), "--json")
    assert json.loads(said(capsys, line))["blocks"] == 2
    np.save(tmp_path / "empty.npy", np.zeros((10, 12, 12), dtype=np.float32))
    line = command("bdgd-plus", geometry, tmp_path / "other", "--images", str(tmp_path / "empty.npy"))
    assert "images: expected" in said(capsys, line, code=2)


def test_a_finished_run_goes_on_with_more_blocks(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = command("bdgd-plus", geometry, tmp_path / "run", "--json")
    said(capsys, line)
    answer = json.loads(said(capsys, [*line, "--set", "greedy.blocks=3"]))
    said(capsys, [*command("bdgd-plus", geometry, tmp_path / "whole"), "--set", "greedy.blocks=3"])
    assert answer["blocks"] == 3
    longer, whole = (read_manifest(tmp_path / name) for name in ("run", "whole"))
    assert longer.settings == whole.settings
    assert [block.sha256 for block in longer.blocks] == [block.sha256 for block in whole.blocks]
    assert longer.status == "done"
    assert "3 blocks" in (tmp_path / "run" / "card.md").read_text()
    settings = {**longer.settings, "greedy": {**longer.settings["greedy"], "blocks": 5}}
    identity = Identity(longer.method, longer.case, longer.geometry, settings, longer.seed)
    assert "greedy.blocks = 3 (now 2)" in said(capsys, line, code=2)
    both = said(capsys, [*line, "--set", "greedy.blocks=4", "--set", "fit.batch=2"], code=2)
    assert "fit.batch = 4 (now 2)" in both
    Run.open(tmp_path / "run", identity, preset="", device="", versions={})
    assert read_manifest(tmp_path / "run").status == "training", "the other processes read it there"


def test_a_run_goes_on_with_the_same_images_only(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for name in ("run", "other"):
        np.save(tmp_path / "images.npy", rng.random((10, 12, 12), dtype=np.float32))
        line = command("dgd", geometry, tmp_path / "run", "--images", str(tmp_path / "images.npy"))
        if name == "run":
            said(capsys, line)
        else:
            assert "holds another run: images.sha256" in said(capsys, line, code=2)


def test_a_scan_whose_angles_are_rounded_is_still_the_models(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, command("dgd", geometry, tmp_path / "run"))
    own = read_geometry(geometry)
    rounded = dataclasses.replace(own, angles=np.float32(own.angles).astype(float))
    assert load_model(str(tmp_path / "run"), rounded).data_shape == (1, 6, 15)
    with pytest.raises(UserError, match=r"bin_width: expected 1.0, the scan has 1.5"):
        load_model(str(tmp_path / "run"), dataclasses.replace(own, bin_width=1.5))


def test_a_run_that_is_not_done_is_used_with_a_warning(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, command("dgd", geometry, tmp_path / "run"))
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "status": "training", "blocks": manifest["blocks"][:1]}))
    warning = load_model(str(tmp_path / "run"))(torch.zeros(1, 1, 6, 15)).warning
    assert warning is not None
    assert "is not finished: 1 of 2 blocks are trained" in warning


def test_a_model_is_evaluated_with_its_own_noise(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, command("dgd", geometry, tmp_path / "run", "--noise", "0.2"))
    rows = [
        json.loads(said(capsys, ["evaluate", str(tmp_path / "run"), "--images", "3", *more, "--json"]))["rows"][0][
            "psnr"
        ]
        for more in ([], ["--noise", "0.2"], ["--noise", "0.0"])
    ]
    assert rows[0] == rows[1] != rows[2]


def test_a_run_of_format_1_is_used_and_goes_on(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of version 0.1.0: settings, noise and tensors have other names now."""
    shutil.copytree(Path(__file__).parents[1] / "storage" / "format_1", tmp_path / "run")
    old = read_manifest(tmp_path / "run")
    assert load_model(str(tmp_path / "run"))(torch.rand(1, 6, 15), samples=2).aleatoric is not None
    line = command("bdgd-plus", geometry, tmp_path / "run", "--set", "data.ramp=shifted")
    assert "noise.photons = 10000.0 (now None)" in said(capsys, line, code=2)
    said(capsys, [*line, "--noise-model", "poisson", "--noise-set", "photons=1e4"])
    new = read_manifest(tmp_path / "run")
    assert [block.format for block in new.blocks] == [1, 2]
    assert new.blocks[0] == old.blocks[0]
    assert new.status == "done"
    assert "1e4 photons per bin" in (tmp_path / "run" / "card.md").read_text()
    assert load_model(str(tmp_path / "run"))(torch.rand(1, 6, 15), samples=2).image.shape == (1, 1, 12, 12)


def test_an_unfinished_or_foreign_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = said(capsys, ["evaluate", str(tmp_path), "--images", "2"], code=2)
    assert "expected a run folder, but there is no manifest.json in it" in error
    error = said(capsys, ["evaluate", "bdgd", "--images", "2"], code=2)
    assert "its weights belong to a geometry" in error


@pytest.mark.slow
def test_a_killed_training_ends_as_if_it_had_not_been(geometry: str, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "tests.pipeline.kill_training", str(tmp_path), geometry, "20"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["kills"] >= 20
    assert any(0 < blocks < 12 for blocks in answer["progress"]), answer  # kills came in the middle, too
    killed = sorted(tmp_path.glob("killed-*"))
    whole = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    for folder in killed:
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["status"] == whole["status"] == "done"
        hashes = [[block["sha256"] for block in one["blocks"]] for one in (manifest, whole)]
        assert len(hashes[0]) == 12
        assert hashes[0] == hashes[1]
        assert (folder / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()


def test_training_and_test_scans_share_no_noise(geometry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    original = train.__globals__["scan_batches"]

    def spied(*arguments: object, seed: int, **named: object) -> object:
        seeds.append(seed)
        return original(*arguments, seed=seed, **named)

    monkeypatch.setitem(train.__globals__, "scan_batches", spied)
    train("dgd", str(tmp_path / "run"), geometry_file=geometry, noise=Noise(), settings=TINY, device="cpu")
    assert len(set(seeds)) == 2
    assert 0 not in seeds  # the seed of evaluate's test scans


@pytest.mark.slow
def test_a_training_imports_no_compiler(geometry: str, tmp_path: Path) -> None:
    """Neither torch's compiler nor the computer algebra behind it: they take longer to import than a block to train."""
    heavy = ("torch._dynamo", "torch._inductor", "sympy")
    code = (
        f"import sys; from bayescade.cli import run; run(sys.argv[1:]); print([m for m in {heavy} if m in sys.modules])"
    )
    arguments = command("bdgd-plus", geometry, tmp_path / "run", "--json")
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr[-1000:]
    assert (tmp_path / "run" / "card.md").exists()
