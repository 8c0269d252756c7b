"""Run folders: what is there survives, what is damaged or foreign is named."""

import dataclasses
import errno
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bayescade.errors import Failure, UserError
from bayescade.storage import _format_1
from bayescade.storage.identity import Identity
from bayescade.storage.lock import locked
from bayescade.storage.manifest import JointRecord, read_manifest
from bayescade.storage.packing import pack
from bayescade.storage.runs import Run
from bayescade.storage.weights import read_blocks

IDENTITY = Identity("dgd", "sparse-8", "{}", {"fit": {"epochs": 3}, "noise": {}, "images": None}, 0)
RECORD = {"seconds": 1.0, "validation_psnr": 20.0, "warnings": []}


def block(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((2, 3), value), "scale": torch.tensor(value)}


def opened(folder: Path, identity: Identity = IDENTITY) -> Run:
    return Run.open(folder, identity, preset="recommended", device="CPU", versions={})


def filled(folder: Path, blocks: int = 2) -> Run:
    run = opened(folder)
    for index in range(blocks):
        run.save_block(index, block(float(index)), RECORD)
    return run


def finish(run: Run) -> None:
    run.finish(dataclasses.replace(run.manifest, training_seconds=run.seconds), "# card\n")


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    filled(tmp_path / "run")
    again = opened(tmp_path / "run")
    assert [float(tensors["scale"]) for tensors in again.blocks()] == [0.0, 1.0]
    assert again.manifest.preset == "recommended"
    again.save_block(2, block(2.0), RECORD)
    assert len(opened(tmp_path / "run").blocks()) == 3
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "block-01.safetensors",
        "block-02.safetensors",
        "block-03.safetensors",
        "manifest.json",
    ]


@pytest.mark.parametrize(
    ("identity", "message"),
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
def test_another_run_does_not_go_on(tmp_path: Path, identity: Identity, message: str) -> None:
    filled(tmp_path)
    with pytest.raises(UserError, match=f"holds another run: {message}; choose another --out"):
        opened(tmp_path, identity)


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"got 'thesis.tex' and no manifest.json"):
        opened(tmp_path)
    with pytest.raises(UserError, match="it is a file"):
        opened(tmp_path / "thesis.tex")


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
        opened(tmp_path).blocks()


def test_a_full_disk_stops_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = filled(tmp_path)
    before = (tmp_path / "manifest.json").read_text()

    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(Failure, match=r"block-03.safetensors: cannot write \(No space left on device\)"):
            run.save_block(2, block(2.0), RECORD)
    assert (tmp_path / "manifest.json").read_text() == before
    assert len(opened(tmp_path).blocks()) == 2
    assert not list(tmp_path.glob(".bayescade-*"))


def test_metrics_of_a_block_that_was_cut_off_come_again(tmp_path: Path) -> None:
    run = filled(tmp_path, blocks=1)
    run.report({"block": 1, "epoch": 1})
    run.report({"block": 2, "epoch": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"block": 2, "ep')  # killed in the middle of a line
    opened(tmp_path)
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        {"block": 1, "epoch": 1}
    ]


def test_a_run_without_a_block_gives_way_to_another(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.report({"block": 1, "epoch": 1})
    other = opened(tmp_path, dataclasses.replace(IDENTITY, method="bdgd"))
    assert other.manifest.method == "bdgd"
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_how_a_model_is_sampled_does_not_make_another_run(tmp_path: Path) -> None:
    """While it is trained the last settings of sampling hold; a finished model stays as it is."""
    first, last, late = (
        dataclasses.replace(IDENTITY, settings={**IDENTITY.settings, "inference": {"sampling": name}}) for name in "abc"
    )
    filled(tmp_path)
    for identity in (first, last):
        run = opened(tmp_path, identity)
        assert len(run.blocks()) == 2
    run.save_block(2, block(2.0), RECORD)
    assert read_manifest(tmp_path).settings["inference"] == {"sampling": "b"}
    finish(run)
    assert opened(tmp_path, late).manifest.settings["inference"] == {"sampling": "b"}


@pytest.mark.parametrize("text", ["[1]\n", "3\n", '{"block": "x"}\n', '{"block": null}\n', "[" * 100_000, "\udcff"])
def test_metrics_that_are_not_ours_are_no_harm(tmp_path: Path, text: str) -> None:
    run = filled(tmp_path, blocks=1)
    run.report({"block": 1})
    with (tmp_path / "metrics.jsonl").open("a", errors="surrogateescape") as file:
        file.write(text)
    opened(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"block": 1}\n'


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(UserError, match="another process is training into this folder"),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


def test_a_manifest_is_replaced_not_changed(tmp_path: Path) -> None:
    run = filled(tmp_path, blocks=1)
    before = run.manifest
    run.save_block(1, block(1.0), RECORD)
    run.end({"block": 3, "tries": 2, "seconds": 4.0, "warnings": ["block 3 gained nothing"]})
    assert len(before.blocks) == 1
    assert before.ended is None
    assert run.seconds == 6.0
    assert read_manifest(tmp_path) == run.manifest


OPTIMISER = {"optimiser.0.step": torch.tensor(7.0)}


def save_round(run: Run, rounds: int, done: bool = False) -> None:
    """Saves two blocks after a round of joint training, with their scores if it is the last."""
    values = [10.0 * rounds + index for index in range(2)]
    scores = [{"validation_psnr": value, "gain": 1.0, "warnings": ["slow"]} for value in values]
    joint = JointRecord(rounds, 2.0 * rounds, done)
    run.save_together([block(value) for value in values], joint, {} if done else OPTIMISER, scores if done else None)


def test_blocks_that_are_trained_together_are_in_one_file(tmp_path: Path) -> None:
    """Earlier files are deleted, the optimiser is saved until the last round, the scores are those of the last round."""
    run = filled(tmp_path)
    assert run.optimiser() == {}
    before = run.manifest
    for rounds, done, name in ((1, False, "joint-01"), (2, False, "joint-02"), (2, True, "joint-02-done")):
        save_round(run, rounds, done)
        assert [path.name for path in tmp_path.glob("*.safetensors")] == [f"{name}.safetensors"]
        again = opened(tmp_path)
        assert again.manifest == run.manifest
        assert [float(tensors["scale"]) for tensors in again.blocks()] == [10.0 * rounds, 10.0 * rounds + 1]
        assert again.blocks()[0].keys() == block(0.0).keys()
        assert again.optimiser() == ({} if done else OPTIMISER)
        assert again.seconds == 2 + 2.0 * rounds
        expected = [20.0, 21.0] if done else [20.0, 20.0]
        assert [record.validation_psnr for record in again.manifest.blocks] == expected
    assert [record.warnings for record in run.manifest.blocks] == [("slow",), ("slow",)]
    assert before.joint is None
    assert before.blocks[0].file == "block-01.safetensors"


def test_a_round_that_was_cut_off_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = filled(tmp_path)
    save_round(run, 1)
    run.report({"block": 3, "epoch": 1})
    run.report({"block": 4, "epoch": 2})

    def killed(run: Run) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_write_manifest", killed)  # the file of the round is written, the manifest is not
        with pytest.raises(KeyboardInterrupt):
            save_round(run, 2)
    again = opened(tmp_path)
    assert again.manifest.joint == JointRecord(1, 2.0, False)
    assert [float(tensors["scale"]) for tensors in again.blocks()] == [10.0, 11.0]
    assert (tmp_path / "metrics.jsonl").read_text() == '{"block": 3, "epoch": 1}\n'


def test_another_process_does_not_write_the_round(tmp_path: Path) -> None:
    filled(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    save_round(Run.open_read_only(tmp_path), 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert read_manifest(tmp_path).joint is None


def test_a_problem_that_is_not_a_scan_has_no_geometry(tmp_path: Path) -> None:
    identity = dataclasses.replace(IDENTITY, case="deblurring", geometry=None)
    opened(tmp_path, identity).save_block(0, block(0.0), RECORD)
    again = opened(tmp_path, identity).manifest
    assert (again.case, again.geometry, again.geometry_hash) == ("deblurring", None, None)
    with pytest.raises(UserError, match="another geometry"):
        opened(tmp_path, dataclasses.replace(identity, geometry="{}"))


def as_format_1(folder: Path) -> None:
    """Writes the manifest as version 0.1.0 did."""
    values = json.loads((folder / "manifest.json").read_text())
    for name in ("processes", "half", "trainable"):
        del values[name]
    for entry in values["blocks"]:
        del entry["format"], entry["slower"]
    (folder / "manifest.json").write_text(json.dumps({**values, "format": 1}))


def test_a_run_of_format_1_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are compared, and its tensors read, under today's names; new blocks have them."""
    filled(tmp_path)
    as_format_1(tmp_path)
    monkeypatch.setitem(_format_1.RENAMED_SETTINGS, "fit.epochs", "fit.passes")
    monkeypatch.setitem(_format_1.RENAMED_TENSORS, "scale", ("input_scale", (1,)))
    with pytest.raises(UserError, match=r"fit.epochs = None \(now 3\)"):
        opened(tmp_path)
    now = dataclasses.replace(IDENTITY, settings={"fit": {"passes": 3}, "noise": {}, "images": None})
    run = opened(tmp_path, now)
    run.save_block(2, {"weight": torch.zeros(2, 3), "input_scale": torch.tensor([2.0])}, RECORD)
    assert [block.format for block in read_manifest(tmp_path).blocks] == [1, 1, 2]
    blocks = opened(tmp_path, now).blocks()
    assert [tensors["input_scale"].tolist() for tensors in blocks] == [[0.0], [1.0], [2.0]]
    finish(run)
    packed = pack(tmp_path, tmp_path / "model")
    assert {block.format for block in packed.blocks} == {2}
    assert [tensors["input_scale"].tolist() for tensors in read_blocks(tmp_path / "model", packed)] == [[0], [1], [2]]
