"""Packed models: one file of weights, with or without what further training needs."""

from pathlib import Path

import pytest
import torch

from bayescade.errors import UserError
from bayescade.storage.manifest import read_manifest
from bayescade.storage.packing import pack
from bayescade.storage.runs import Run
from bayescade.storage.weights import read_blocks
from tests.storage.test_runs import RECORD, filled, finish, opened


def with_state(folder: Path) -> Run:
    """A finished run whose blocks have a variance and an optimiser's state."""
    run = opened(folder)
    for index in range(2):
        names = ("weight", "variance.weight", "optimiser.0.second")
        run.save_block(index, {name: torch.full((2, 3), 1e-9) for name in names}, RECORD)
    finish(run)
    return run


def test_a_failing_pack_leaves_a_packed_model_as_it_is(tmp_path: Path) -> None:
    finish(filled(tmp_path / "run"))
    pack(tmp_path / "run", tmp_path / "model")
    (tmp_path / "run" / "card.md").unlink()
    with pytest.raises(UserError, match=r"card\.md"):
        pack(tmp_path / "run", tmp_path / "model", half=True)
    assert len(read_blocks(tmp_path / "model", read_manifest(tmp_path / "model"))) == 2


def test_a_packed_model_is_one_file_of_weights(tmp_path: Path) -> None:
    run = filled(tmp_path / "run")
    with pytest.raises(UserError, match=r"not finished \(2 blocks are saved"):
        pack(tmp_path / "run", tmp_path / "model")
    finish(run)
    for half in (False, True):
        packed = pack(tmp_path / "run", tmp_path / f"model-{half}", half=half)
        blocks = read_blocks(tmp_path / f"model-{half}", packed)
        assert [float(tensors["scale"]) for tensors in blocks] == [0.0, 1.0]
        assert blocks[1]["weight"].dtype == (torch.float16 if half else torch.float32)
        assert blocks[1]["scale"].dtype == torch.float32
        assert sorted(path.name for path in (tmp_path / f"model-{half}").iterdir()) == [
            "card.md",
            "manifest.json",
            packed.blocks[0].file,
        ]
    weights = tmp_path / "model-True" / packed.blocks[0].file
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"weights-.*safetensors: damaged, or from another run"):
        read_blocks(tmp_path / "model-True", read_manifest(tmp_path / "model-True"))


@pytest.mark.parametrize("half", [False, True])
def test_a_trainable_model_has_all_tensors(tmp_path: Path, half: bool) -> None:
    run = with_state(tmp_path / "run")
    for trainable in (False, True):
        packed = pack(tmp_path / "run", tmp_path / f"{trainable}", half=half, trainable=trainable)
        assert read_manifest(tmp_path / f"{trainable}").trainable == trainable
        blocks = read_blocks(tmp_path / f"{trainable}", packed)
        if trainable:
            assert [block.keys() for block in blocks] == [block.keys() for block in run.blocks()]
            assert (blocks[0]["optimiser.0.second"] == 1e-9).all(), "half precision has no such number"
        else:
            assert [sorted(block) for block in blocks] == [["weight"], ["variance.weight", "weight"]]


def test_what_was_left_out_does_not_come_back(tmp_path: Path) -> None:
    with_state(tmp_path / "run")
    pack(tmp_path / "run", tmp_path / "model")
    with pytest.raises(UserError, match="got a model without the tensors for further training"):
        pack(tmp_path / "model", tmp_path / "trainable", trainable=True)
    assert not (tmp_path / "trainable").exists()
