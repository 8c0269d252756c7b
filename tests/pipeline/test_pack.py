"""`bayescade pack`: the model gives what its run gives; a trainable one also goes on as its run does."""

from pathlib import Path

import pytest
import torch

from bayescade import models
from bayescade.models import load_model
from bayescade.storage.manifest import read_manifest
from bayescade.storage.packing import pack
from bayescade.storage.weights import read_blocks
from tests.pipeline.tiny import command, said


def test_packing_does_not_touch_other_folders(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert "got a model without the tensors for further training" in said(capsys, line, code=2)
    assert (tmp_path / "packed" / "manifest.json").read_text() == before


def test_a_trainable_model_goes_on_as_its_run_does(
    geometry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Further blocks are the same, in files beside the packed one; what comes out loads and can be packed again."""
    run, packed, half = (tmp_path / name for name in ("run", "packed", "half"))
    said(capsys, command("bdgd-plus", geometry, run))
    said(capsys, ["pack", str(run), "--out", str(packed), "--trainable"])
    said(capsys, ["pack", str(run), "--out", str(half), "--trainable", "--half"])
    for folder in (run, packed, half):
        said(capsys, [*command("bdgd-plus", geometry, folder), "--set", "greedy.blocks=3"])
    blocks, further, rounded = (read_manifest(folder).blocks for folder in (run, packed, half))
    assert further[0].file == further[1].file != "block-01.safetensors"
    assert further[2].file == rounded[2].file == "block-03.safetensors"
    assert further[2].sha256 == blocks[2].sha256 != rounded[2].sha256
    assert "3 blocks" in (packed / "card.md").read_text()
    sinogram = torch.rand(2, 1, 6, 15)
    whole, longer = (load_model(str(folder))(sinogram, samples=4) for folder in (run, packed))
    assert torch.equal(whole.image, longer.image)
    assert torch.equal(whole.std, longer.std)
    assert load_model(str(half))(sinogram, samples=4).warning is None
    again = pack(packed, tmp_path / "again")
    assert len(read_blocks(tmp_path / "again", again)) == 3
    error = said(capsys, ["pack", str(run), "--out", str(packed)], code=2)
    assert "expected an empty folder or a packed model to replace, got 'block-03.safetensors'" in error
