"""`bayescade pack`: the model gives what its run gives, and nothing else is lost for it."""

from pathlib import Path

import pytest
import torch

from bayescade import models
from bayescade.models import load_model
from bayescade.storage.packing import pack
from bayescade.storage.runs import read_blocks, read_manifest
from tests.pipeline.tiny import command, said


def test_packing_leaves_other_folders_alone(geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run", "other"):
        said(capsys, command("dgd", geometry, tmp_path / name))
    for target in ("run", "other"):
        error = said(capsys, ["pack", str(tmp_path / "run"), "--out", str(tmp_path / target)], code=2)
        assert "expected an empty folder or a packed model" in error
    said(capsys, ["pack", str(tmp_path / "run"), "--out", str(tmp_path / "model")])
    said(capsys, ["pack", str(tmp_path / "run"), "--out", str(tmp_path / "model")])  # the same again is fine


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = said(capsys, ["pack", str(tmp_path / "run"), "--out", str(tmp_path / "model")], code=2)
    assert f"{tmp_path / 'run'}: expected a run folder, but there is no such folder" in error
    assert not (tmp_path / "model").exists()


def test_a_packed_run_gives_the_same_images(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said(capsys, command("bdgd-plus", geometry, tmp_path / "run"))
    monkeypatch.setattr(models, "ZOO", tmp_path / "zoo")
    (tmp_path / "zoo" / "bdgd-plus").mkdir(parents=True)
    pack(tmp_path / "run", tmp_path / "zoo" / "bdgd-plus" / "tiny", half=True)
    sinogram = torch.rand(2, 1, 6, 15)
    whole = load_model(str(tmp_path / "run"))(sinogram, samples=4)
    packed = load_model("bdgd-plus/tiny")(sinogram, samples=4)
    assert torch.allclose(whole.image, packed.image, atol=5e-3)
    assert torch.allclose(whole.std, packed.std, rtol=0.02, atol=1e-6)
    assert "bdgd-plus/tiny" in said(capsys, ["models"])


def test_a_packed_model_has_the_variance_that_is_asked_for_and_learns_no_more(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, command("bdgd-plus", geometry, tmp_path / "run"))
    pack(tmp_path / "run", tmp_path / "packed")
    before = (tmp_path / "packed" / "manifest.json").read_text()
    inner, last = read_blocks(tmp_path / "packed", read_manifest(tmp_path / "packed"))
    assert not any(key.startswith("variance.") for key in inner)
    assert any(key.startswith("variance.") for key in last)
    sinogram = torch.rand(2, 1, 6, 15)
    whole, packed = (load_model(str(tmp_path / name))(sinogram, samples=4) for name in ("run", "packed"))
    assert torch.equal(whole.image, packed.image)
    assert torch.equal(whole.std, packed.std)
    line = [*command("bdgd-plus", geometry, tmp_path / "packed"), "--set", "greedy.blocks=3"]
    assert "a packed model has no more to learn from" in said(capsys, line, code=2)
    assert (tmp_path / "packed" / "manifest.json").read_text() == before
