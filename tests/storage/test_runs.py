"""Run folders: what is there survives, what is damaged or foreign is named."""

import dataclasses
import errno
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bayescade.errors import Failure, UserError
from bayescade.storage.packing import pack
from bayescade.storage.runs import Identity, Run, alone, read_blocks, read_manifest

IDENTITY = Identity("dgd", "sparse-8", "{}", {"fit": {"epochs": 3}, "noise": {}, "images": None}, 0)
RECORD = {"seconds": 1.0, "validation_psnr": 20.0, "warnings": []}
ABOUT = {"preset": "recommended", "device": "CPU", "versions": {}}


def block(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((2, 3), value), "scale": torch.tensor(value)}


def filled(folder: Path, blocks: int = 2) -> Run:
    run = Run.open(folder, IDENTITY, ABOUT)
    for place in range(blocks):
        run.keep(place, block(float(place)), RECORD)
    return run


def test_a_run_is_taken_up_where_it_was(tmp_path: Path) -> None:
    filled(tmp_path / "run")
    again = Run.open(tmp_path / "run", IDENTITY, {})
    assert [float(tensors["scale"]) for tensors in again.blocks()] == [0.0, 1.0]
    assert again.manifest["preset"] == "recommended"
    again.keep(2, block(2.0), RECORD)
    assert len(Run.open(tmp_path / "run", IDENTITY, {}).blocks()) == 3
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "block-01.safetensors",
        "block-02.safetensors",
        "block-03.safetensors",
        "manifest.json",
    ]


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        (Identity("bdgd", "sparse-8", "{}", IDENTITY.settings, 0), "method = 'dgd' \\(now 'bdgd'\\)"),
        (Identity("dgd", "sparse-8", '{"bins": 3}', IDENTITY.settings, 0), "another geometry"),
        (
            Identity("dgd", "sparse-8", "{}", {"fit": {"epochs": 4}, "noise": {}, "images": None}, 0),
            "fit.epochs = 3 \\(now 4\\)",
        ),
        (Identity("dgd", "sparse-8", "{}", IDENTITY.settings, 1), "seed = 0 \\(now 1\\)"),
    ],
)
def test_another_run_is_not_taken_up(tmp_path: Path, identity: Identity, said: str) -> None:
    filled(tmp_path)
    with pytest.raises(UserError, match=f"holds another run: {said}; choose another --out"):
        Run.open(tmp_path, identity, {})


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"found 'thesis.tex' and no manifest.json"):
        Run.open(tmp_path, IDENTITY, {})
    with pytest.raises(UserError, match="it is a file"):
        Run.open(tmp_path / "thesis.tex", IDENTITY, {})


@pytest.mark.parametrize("damage", ["flipped", "cut", "foreign", "gone"])
def test_a_bad_block_is_named(tmp_path: Path, damage: str) -> None:
    filled(tmp_path)
    path = tmp_path / "block-02.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[-3] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[:-10])
    elif damage == "foreign":
        save_file({"02.weight": torch.zeros(2, 3)}, path)
    else:
        path.unlink()
    with pytest.raises(UserError, match=r"block-02.safetensors: .*; restore it, or train again in another folder"):
        Run.open(tmp_path, IDENTITY, {}).blocks()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 9}', '{"format": 1, "blocks": [{}]}', '{"format": 1, "method": "dgd"}', "null"]
)
def test_a_bad_manifest_is_named(tmp_path: Path, text: str) -> None:
    filled(tmp_path)
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest.json: not a manifest of ours, or damaged"):
        Run.open(tmp_path, IDENTITY, {})


def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    run = filled(tmp_path)
    run.manifest["blocks"][0]["file"] = "../other/block-01.safetensors"
    (tmp_path / "manifest.json").write_text(json.dumps(run.manifest))
    with pytest.raises(UserError, match="not a manifest of ours"):
        read_manifest(tmp_path)


def test_a_full_disk_stops_and_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = filled(tmp_path)
    before = (tmp_path / "manifest.json").read_text()

    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(Failure, match=r"block-03.safetensors: cannot write \(No space left on device\)"):
            run.keep(2, block(2.0), RECORD)
    assert (tmp_path / "manifest.json").read_text() == before
    assert len(Run.open(tmp_path, IDENTITY, {}).blocks()) == 2
    assert not list(tmp_path.glob(".bayescade-*"))


def test_metrics_of_a_block_that_was_cut_off_come_again(tmp_path: Path) -> None:
    run = filled(tmp_path, blocks=1)
    run.report({"block": 1, "epoch": 1})
    run.report({"block": 2, "epoch": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"block": 2, "ep')  # killed in the middle of a line
    Run.open(tmp_path, IDENTITY, {})
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"block": 1, "epoch": 1}
    ]


def test_a_run_without_a_block_gives_way_to_another(tmp_path: Path) -> None:
    first = Run.open(tmp_path, IDENTITY, ABOUT)
    first.report({"block": 1, "epoch": 1})
    other = Run.open(tmp_path, Identity("bdgd", "sparse-8", "{}", IDENTITY.settings, 0), ABOUT)
    assert other.manifest["method"] == "bdgd"
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_how_a_model_is_sampled_does_not_make_another_run(tmp_path: Path) -> None:
    """While it is trained it takes what it is told last; a finished model is left as it is."""
    first, last, late = (
        dataclasses.replace(IDENTITY, settings={**IDENTITY.settings, "inference": {"draws": draws}}) for draws in "abc"
    )
    filled(tmp_path)
    for identity in (first, last):
        run = Run.open(tmp_path, identity, ABOUT)
        assert len(run.blocks()) == 2
    run.keep(2, block(2.0), RECORD)
    assert read_manifest(tmp_path)["settings"]["inference"] == {"draws": "b"}
    run.finish({"training_seconds": 3.0}, "card")
    assert Run.open(tmp_path, late, ABOUT).manifest["settings"]["inference"] == {"draws": "b"}


@pytest.mark.parametrize("text", ["[1]\n", "3\n", '{"block": "x"}\n', '{"block": null}\n', "[" * 100_000, "\udcff"])
def test_metrics_that_are_not_ours_are_no_harm(tmp_path: Path, text: str) -> None:
    run = filled(tmp_path, blocks=1)
    run.report({"block": 1})
    with (tmp_path / "metrics.jsonl").open("a", errors="surrogateescape") as file:
        file.write(text)
    Run.open(tmp_path, IDENTITY, ABOUT)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"block": 1}\n'


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        alone(tmp_path),
        pytest.raises(UserError, match="another process is training into this folder"),
        alone(tmp_path),
    ):
        pass
    with alone(tmp_path):
        pass


def test_a_failing_pack_leaves_a_packed_model_alone(tmp_path: Path) -> None:
    run = filled(tmp_path / "run")
    run.finish({"training_seconds": 2.0}, "# card\n")
    pack(tmp_path / "run", tmp_path / "model")
    (tmp_path / "run" / "card.md").unlink()
    with pytest.raises(UserError, match=r"card\.md"):
        pack(tmp_path / "run", tmp_path / "model", half=True)
    assert len(read_blocks(tmp_path / "model", read_manifest(tmp_path / "model"))) == 2
    assert not (tmp_path / "fresh").exists()


def test_a_packed_model_is_one_file_of_weights(tmp_path: Path) -> None:
    run = filled(tmp_path / "run")
    with pytest.raises(UserError, match="not finished"):
        pack(tmp_path / "run", tmp_path / "model")
    run.finish({"training_seconds": 2.0}, "# card\n")
    for half in (False, True):
        packed = pack(tmp_path / "run", tmp_path / f"model-{half}", half=half)
        found = read_blocks(tmp_path / f"model-{half}", packed)
        assert [float(tensors["scale"]) for tensors in found] == [0.0, 1.0]
        assert found[1]["weight"].dtype == (torch.float16 if half else torch.float32)
        assert found[1]["scale"].dtype == torch.float32
        assert sorted(path.name for path in (tmp_path / f"model-{half}").iterdir()) == [
            "card.md",
            "manifest.json",
            packed["blocks"][0]["file"],
        ]
    weights = tmp_path / "model-True" / packed["blocks"][0]["file"]
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"weights-.*safetensors: damaged or foreign"):
        read_blocks(tmp_path / "model-True", read_manifest(tmp_path / "model-True"))
