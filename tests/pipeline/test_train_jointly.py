"""`bayescade train` with a joint training behind the blocks: behind a finished run, cut off, packed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bayescade.data.simulate import Noise
from bayescade.errors import UserError
from bayescade.pipeline.models import load_model
from bayescade.pipeline.train import train
from bayescade.runs import Run, pack, read_blocks, read_manifest
from bayescade.testing import check_method
from tests.pipeline.tiny import GEOMETRY, SETTINGS

GREEDY = [*SETTINGS, "greedy.blocks=2", "fit.epochs=2"]
JOINT = [*GREEDY, "joint.epochs=2", "joint.rounds=2"]


@pytest.fixture
def geometry(tmp_path: Path) -> str:
    path = tmp_path / "geo.toml"
    path.write_text(GEOMETRY)
    return str(path)


def go(method: str, geometry: str, out: Path, settings: list[str]) -> dict[str, Any]:
    return train(method, str(out), geometry_file=geometry, noise=Noise(relative=0.01), settings=settings, device="cpu")


def same(one: Path, other: Path) -> bool:
    left, right = (read_blocks(folder, read_manifest(folder)) for folder in (one, other))
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a) for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("method", ["dgd", "bdgd", "bdgd-plus"])
def test_behind_a_finished_run_or_at_once(method: str, geometry: str, tmp_path: Path) -> None:
    at_once, later = tmp_path / "at-once", tmp_path / "later"
    go(method, geometry, at_once, JOINT)
    go(method, geometry, later, GREEDY)
    assert sorted(path.name for path in later.glob("*.safetensors")) == ["block-01.safetensors", "block-02.safetensors"]
    before = read_manifest(later)
    answer = go(method, geometry, later, JOINT)
    manifest = read_manifest(later)
    assert same(at_once, later)
    assert [path.name for path in later.glob("*.safetensors")] == ["joint.safetensors"]
    assert manifest["status"] == "done"
    assert answer["blocks"] == 2
    assert answer["training_seconds"] > before["training_seconds"]
    assert "then 2 epochs of all together" in (later / "card.md").read_text()
    lines = [json.loads(line) for line in (later / "metrics.jsonl").read_text().splitlines()]
    assert [line["block"] for line in lines] == [1, 1, 2, 2, 3, 4]
    model = load_model(str(later))
    check_method(model, model.geometry)  # type: ignore[attr-defined]
    pack(later, tmp_path / "packed")
    *inner, last = read_blocks(tmp_path / "packed", read_manifest(tmp_path / "packed"))
    assert not any(key.startswith("variance.") for block in inner for key in block)
    assert any(key.startswith("variance.") for key in last) == (method != "dgd")
    images = [check_method(load_model(str(path)), model.geometry).image for path in (later, tmp_path / "packed")]  # type: ignore[attr-defined]
    assert torch.equal(*images)


def test_a_training_that_is_cut_off_goes_on(geometry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    go("bdgd-plus", geometry, whole, JOINT)
    keep = Run.keep_joint

    def cut_off(run: Run, *arguments: Any) -> None:
        keep(run, *arguments)
        raise KeyboardInterrupt

    for rounds in (1, 2):
        monkeypatch.setattr(Run, "keep_joint", cut_off)
        with pytest.raises(KeyboardInterrupt):
            go("bdgd-plus", geometry, cut, JOINT)
        monkeypatch.setattr(Run, "keep_joint", keep)
        assert [path.name for path in cut.glob("*.safetensors")] == [f"joint-0{rounds}.safetensors"]
        model = load_model(str(cut))
        assert f"{rounds} of 2 rounds of the joint training" in str(model.warning)  # type: ignore[attr-defined]
    go("bdgd-plus", geometry, cut, JOINT)
    assert same(whole, cut)


def test_behind_a_joint_training_nothing_can_be_added(geometry: str, tmp_path: Path) -> None:
    go("dgd", geometry, tmp_path / "run", JOINT)
    for more in (["greedy.blocks=3"], ["joint.epochs=3"], ["joint.epochs=0"]):
        with pytest.raises(UserError, match="holds another run"):
            go("dgd", geometry, tmp_path / "run", [*JOINT, *more])


def test_how_a_joint_training_nobody_asks_for_would_go_does_not_matter(geometry: str, tmp_path: Path) -> None:
    go("dgd", geometry, tmp_path / "run", GREEDY)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    del manifest["settings"]["joint"]  # as older versions wrote it
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    go("dgd", geometry, tmp_path / "run", [*GREEDY, "joint.rounds=7"])
    load_model(str(tmp_path / "run"))
