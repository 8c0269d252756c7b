"""Manifests: every shipped one reads, what is written reads again, every kind of damage is named."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bayescade.errors import UserError
from bayescade.models import ZOO
from bayescade.storage import _format_1
from bayescade.storage._format_1 import current_settings, current_tensors
from bayescade.storage.manifest import (
    BlockRecord,
    EndRecord,
    JointRecord,
    Manifest,
    from_json,
    model_hash,
    parts_done,
    read_manifest,
    seconds_of,
    to_json,
    warnings_of,
)

SHIPPED = sorted(path.parent for path in ZOO.glob("*/*/manifest.json"))

# The cells of the paper's table are stored under these names.
HASHES = {
    "bdgd/sparse-32": "a904ffd15b95a5fe",
    "bdgd-plus/limited-90": "04fefb013836f8b6",
    "bdgd-plus/sparse-32": "17ddf76a32fa9b6d",
    "dgd/sparse-64": "2b9338b952382462",
    "lpd/sparse-32": "bdaa4400e1f8d927",
    "unet/limited-90": "db29283ba7536e1b",
}

BLOCK = BlockRecord(
    file="block-01.safetensors",
    sha256="ab",
    seconds=1.5,
    validation_psnr=30.0,
    warnings=("block 1: slow",),
    gain=2.0,
    tries=1,
    log_std={"start": [-9.0], "trained": [-8.5], "final": [-8.0]},
)
MANIFEST = Manifest(
    method="bdgd",
    case="sparse-8",
    settings={"fit": {"epochs": 3}, "inference": {"draws": "weights"}, "noise": {}, "images": None},
    seed=0,
    preset="recommended",
    device="CPU",
    versions={"torch": "2.11.0"},
    status="done",
    geometry="{}",
    geometry_hash="cd",
    blocks=(BLOCK,),
    ended=EndRecord(block=2, tries=2, seconds=0.5, warnings=("block 2 gained nothing",)),
    training_seconds=2.0,
)


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_every_shipped_manifest_reads(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert (manifest.method, manifest.case) == (folder.parent.name, folder.name)
    if manifest.case != "any":
        assert manifest.settings["data"]["ramp"] == "shifted"
        assert manifest.settings["noise"] == {"model": "gaussian", "relative": 0.01}
    assert manifest.half
    assert not manifest.trainable
    assert {block.format for block in manifest.blocks} == ({1} if manifest.case != "any" else {2})
    assert from_json(json.loads(json.dumps(to_json(manifest)))) == manifest


def test_hashes_of_shipped_models_stay_as_they_were() -> None:
    """Also where settings of sampling have other names now."""
    for name, expected in HASHES.items():
        manifest = read_manifest(ZOO / name)
        assert "analytic" not in manifest.settings.get("inference", {})
        assert model_hash(manifest) == expected


def test_a_manifest_reads_as_it_was_written() -> None:
    values = json.loads(json.dumps(to_json(MANIFEST)))
    assert values["format"] == 2
    assert "scores" not in values
    assert "rounds" not in values["blocks"][0]
    assert values["settings"]["images"] is None
    assert from_json(values) == MANIFEST


JOINT = dataclasses.replace(MANIFEST, joint=JointRecord(rounds=3, seconds=4.0, done=False))


def test_joint_training_reads_as_it_was_written() -> None:
    values = json.loads(json.dumps(to_json(JOINT)))
    assert values["joint"] == {"rounds": 3, "seconds": 4.0, "done": False}
    assert from_json(values) == JOINT
    assert "joint" not in to_json(MANIFEST)


def test_what_a_manifest_adds_up_to() -> None:
    assert seconds_of(MANIFEST) == 2.0
    assert seconds_of(JOINT) == 6.0
    assert parts_done(MANIFEST) == 1
    assert parts_done(JOINT) == 4
    assert warnings_of(MANIFEST) == ["block 1: slow", "block 2 gained nothing"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", "9" * 5000, "[" * 100_000, '{"format": 1, "blocks": [{}]}', '{"format": true}']
)
def test_what_is_not_a_manifest_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest.json: not a manifest of bayescade, or damaged \("):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": None}, "unexpected: 'method' = None"),
        ({"seed": True}, "unexpected: 'seed' = True"),
        ({"settings": {"fit": {}}}, "missing: 'noise' or 'images' in 'settings'"),
        ({"status": "lost"}, "unexpected: 'status' = 'lost'"),
        ({"training_seconds": None}, "missing: 'training_seconds'"),
        ({"colour": "red"}, "unknown: 'colour'"),
        ({"blocks": 3}, "expected a list of 'blocks'"),
        ({"blocks": [3]}, "expected a table in 'blocks', got 3"),
        ({"blocks": [{"file": "a"}]}, "missing: 'sha256' in 'blocks'"),
        ({"blocks": [{**to_json(MANIFEST)["blocks"][0], "gain": "much"}]}, "unexpected: 'gain' = 'much' in 'blocks'"),
        (
            {"blocks": [{**to_json(MANIFEST)["blocks"][0], "warnings": [1]}]},
            "unexpected: 'warnings' = (1,) in 'blocks'",
        ),
        ({"blocks": [{**to_json(MANIFEST)["blocks"][0], "file": "../a"}]}, "unexpected: 'file' = '../a' in 'blocks'"),
        ({"ended": {"block": 2}}, "missing: 'tries' in 'ended'"),
        ({"joint": {"rounds": 2, "done": True}}, "missing: 'seconds' in 'joint'"),
        ({"joint": {"rounds": 2, "seconds": 1.0, "done": 1}}, "unexpected: 'done' = 1 in 'joint'"),
        ({"joint": {"rounds": "2", "seconds": 1.0, "done": True}}, "unexpected: 'rounds' = '2' in 'joint'"),
        ({"joint": [2, 1.0, True]}, "expected a table in 'joint', got [2, 1.0, True]"),
    ],
)
def test_every_kind_of_damage_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({**to_json(MANIFEST), **change}))
    with pytest.raises(UserError) as error:
        read_manifest(tmp_path)
    assert f"not a manifest of bayescade, or damaged ({message}" in str(error.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    values = to_json(MANIFEST)
    del values["seed"]
    (tmp_path / "manifest.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"damaged \(missing: 'seed'\)"):
        read_manifest(tmp_path)


def test_a_newer_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 9}')
    with pytest.raises(UserError, match=r"manifest.json: expected format 1 to 2, got 9: a newer version of bayescade"):
        read_manifest(tmp_path)


def test_settings_of_format_1_have_todays_names() -> None:
    then = {"inference": {"kernels": "differences", "draws": "weights"}, "block": {"depth": 2}, "images": None}
    assert current_settings(then) == {
        "inference": {"runner": "perturbation", "sampling": "weights"},
        "block": {"memory_channels": 0},
        "images": None,
    }
    assert then["block"] == {"depth": 2}


START = {"warm_start": True, "revive": 0.0, "gradient_level": 0.3, "output_level": 20.0}
VARIANCE = {"variance_input": "inputs", "variance_channels": 4, "variance_depth": 1, "variance_floor": 1e-6}


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({"greedy": START}, {"greedy": {"start": "warm"}}),
        ({"greedy": {**START, "revive": 0.005}}, {"greedy": {"start": "revived"}}),
        ({"block": VARIANCE}, {"block": {"variance": "inputs", "memory_channels": 0}}),
        ({"inference": {"draws": "weights", "analytic": False}}, {"inference": {"sampling": "all-weights"}}),
        (
            {"block": {"jitter": 1e-6}, "greedy": {"loss": "elbo-as-released"}},
            {"block": {"memory_channels": 0}, "greedy": {"loss": "elbo-as-released"}},
        ),
        ({"data": {"images": 3}}, {"data": {"images": 3, "ramp": "shifted"}}),
        (
            {"noise": {"relative": 0.01, "photons": 1e4, "attenuation": 0.1}},
            {"noise": {"model": "poisson", "photons": 1e4, "attenuation": 0.1}},
        ),
    ],
)
def test_settings_that_became_one(then: dict[str, Any], now: dict[str, Any]) -> None:
    assert current_settings(then) == now


@pytest.mark.parametrize(
    "then",
    [
        {"greedy": {**START, "revive": 0.3}},
        {"block": {**VARIANCE, "variance_channels": 5}},
        {"inference": {"draws": "activations", "analytic": True}},
        {"block": {"jitter": 1e-6}, "greedy": {"loss": "elbo"}},
        {"greedy": {"weak_gain": 0.2}},
    ],
)
def test_settings_that_are_no_more_are_named(then: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="use the bayescade version that trained it, or train again"):
        current_settings(then)


def test_a_removed_setting_at_another_value_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_format_1.REMOVED_SETTINGS, "fit.epochs", 4)
    (tmp_path / "manifest.json").write_text(json.dumps({**to_json(MANIFEST), "format": 1}))
    with pytest.raises(UserError, match=r"manifest.json: setting fit.epochs = 3: this version supports only 4"):
        read_manifest(tmp_path)


def test_tensors_of_format_1_have_todays_names() -> None:
    then = {"gradient_scale": torch.tensor(2.0), "weight": torch.ones(2, 3)}
    now = current_tensors(then)
    assert now.keys() == {"input_scale", "weight"}
    assert now["input_scale"].tolist() == [2.0]
    assert now["weight"] is then["weight"]
