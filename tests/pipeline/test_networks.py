"""U-Net and learned primal-dual from the command line: trained, cut off, taken up again, packed, used."""

import json
from pathlib import Path

import pytest
import torch

from bayescade.cli import run
from bayescade.data.noise import Noise
from bayescade.models import load_model
from bayescade.pipeline.scan_geometry import read_geometry
from bayescade.pipeline.train import train
from bayescade.storage.manifest import read_manifest
from bayescade.storage.runs import Run
from bayescade.storage.weights import read_blocks
from bayescade.testing import check_method

SETTINGS = [
    "data.images=8",
    "data.validation_images=2",
    "network.channels=4",
    "fit.epochs=4",
    "fit.batch=4",
    "fit.rounds=2",
]
METHODS = pytest.mark.parametrize("method", ["unet", "lpd"])


def trained(method: str, geometry: str, folder: Path) -> dict:
    return train(method, str(folder), geometry_file=geometry, noise=Noise(), settings=SETTINGS, device="cpu")


@METHODS
def test_train_pack_reconstruct(method: str, geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, packed = tmp_path / "run", tmp_path / "packed"
    settings = [part for text in SETTINGS for part in ("--set", text)]
    line = ["train", method, "--geometry", geometry, "--out", str(folder), *settings, "--device", "cpu", "--json"]
    assert run(line) == 0
    assert json.loads(capsys.readouterr().out)["validation_psnr"] > 5
    assert "it gives no uncertainty" in (folder / "card.md").read_text()
    assert len(list(folder.glob("*.safetensors"))) == 1
    assert run(["pack", str(folder), "--out", str(packed), "--half"]) == 0
    (tensors,) = read_blocks(packed, read_manifest(packed))
    assert not [name for name in tensors if name.startswith("optimiser")]
    for path in (folder, packed):
        model = load_model(str(path))
        result = check_method(model, read_geometry(geometry))
        assert result.aleatoric is None
        assert float(result.image.min()) >= 0
    capsys.readouterr()
    assert run(["evaluate", str(folder), "--images", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["uncertainty"] is None


@METHODS
def test_a_run_that_was_cut_off_goes_on(
    method: str, geometry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(method, geometry, tmp_path / "whole")

    class Cut(Exception):
        pass

    def report(self: Run, line: dict) -> None:
        if line["epoch"] == 3:
            raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(Run, "report", report)
        with pytest.raises(Cut):
            trained(method, geometry, tmp_path / "cut")
    model = load_model(str(tmp_path / "cut"))
    assert "is not finished: 1 of 2 rounds are done" in (model.warning or "")  # type: ignore[attr-defined]
    trained(method, geometry, tmp_path / "cut")
    whole, cut = (read_manifest(tmp_path / name).blocks for name in ("whole", "cut"))
    assert whole[0].sha256 == cut[0].sha256
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) == 1


def test_two_processes_of_one_seed_start_alike(geometry: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        trained("unet", geometry, tmp_path / name)
    one, other = (read_manifest(tmp_path / name).blocks for name in ("a", "b"))
    assert one[0].sha256 == other[0].sha256


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--preset", "paper"], "preset"),
        (["--set", "network.scales=0"], "setting network.scales"),
        (["--set", "fit.rounds=0"], "setting fit.rounds"),
    ],
)
def test_what_cannot_be_is_named(
    more: list[str], message: str, geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", "unet", "--geometry", geometry, "--out", str(tmp_path / "run"), *more]) == 2
    assert message in capsys.readouterr().err


def test_nothing_else_can_be_set(geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained("unet", geometry, tmp_path / "run")
    assert run(["evaluate", str(tmp_path / "run"), "--images", "1", "--set", "fit.epochs=2"]) == 2
    assert "settings of the training cannot change after the training" in capsys.readouterr().err


def test_weights_of_another_shape_are_named(geometry: str, tmp_path: Path) -> None:
    trained("unet", geometry, tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    manifest["settings"]["network"]["channels"] = 5
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(Exception, match="do not match their settings"):
        load_model(str(tmp_path / "run"))
    assert torch.get_default_dtype() == torch.float32
