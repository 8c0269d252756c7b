"""Joint training: the chain is the cascade, what learns is the image, and the posteriors are set anew behind it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from bayescade.blocks import heteroscedastic
from bayescade.blocks._block import Block, BlockSettings
from bayescade.errors import UserError
from bayescade.networks.cascade import Data
from bayescade.projectors import ray_transform
from bayescade.training.fit import FitSettings
from bayescade.training.greedy import GreedySettings, next_stage, pushed, train_cascade
from bayescade.training.joint import Chain, JointSettings, train_jointly
from bayescade.training.posterior import refit
from bayescade.training.stage import Stage
from tests.geometries import small_parallel
from tests.training.test_greedy import make, stage_of

GREEDY, FIT = GreedySettings(blocks=2), FitSettings(epochs=2, batch=4)
JOINT = JointSettings(epochs=20, batch=4, rounds=2, learning_rate=2e-3, settle=1)


def trained(stage: Stage) -> list[Block]:
    return train_cascade(make, stage, stage, GREEDY, FIT, seed=3)


class Folder:
    """Keeps what a joint training leaves."""

    def __init__(self) -> None:
        self.kept: list[tuple[list[dict[str, Tensor]], dict[str, Tensor], list[Any], dict[str, Any]]] = []

    def keep(
        self,
        blocks: Sequence[Block],
        memory: Mapping[str, Tensor],
        records: Sequence[Mapping[str, Any]],
        record: dict[str, Any],
    ) -> None:
        states = [{key: value.clone() for key, value in block.state_dict().items()} for block in blocks]
        self.kept.append((states, dict(memory), list(records), record))


def test_the_chain_is_the_cascade_with_mean_weights() -> None:
    stage = stage_of(8)
    blocks = trained(stage)
    behind = stage
    for block in blocks:
        behind = pushed(block, behind, "mean", FIT, 0)
    chain = Chain(blocks, stage.data.operator, stage.data.norm)
    found = chain(stage.image[:], torch.as_tensor(stage.data.sinogram[:]))
    assert torch.allclose(found, behind.image[:], rtol=1e-10, atol=1e-12)


def test_the_last_image_is_better_and_the_rest_is_as_it_says() -> None:
    stage, folder = stage_of(8), Folder()
    blocks = trained(stage)
    before = [{key: value.clone() for key, value in block.state_dict().items()} for block in blocks]
    lines: list[dict[str, Any]] = []
    train_jointly(blocks, stage, stage, JOINT, GREEDY, FIT, seed=3, keep=folder.keep, report=lines.append)
    assert [record["settled"] for *_, record in folder.kept] == [False, False, True]
    assert [line["block"] for line in lines] == [3] * 10 + [4] * 10
    in_round = folder.kept[1][0]
    for place, state in enumerate(in_round):
        moved = {key for key, value in state.items() if not torch.equal(value, before[place][key])}
        assert moved
        assert all(key.startswith("trunk.") or key in ("last.weight", "last.bias") for key in moved)
    *_, records, record = folder.kept[-1]
    assert record["before"] < records[-1]["validation_psnr"]
    assert record["warnings"] == []
    # The image is that of the last round, the posterior the closed form for the new images.
    for place, block in enumerate(blocks):
        assert torch.equal(block.last.weight, in_round[place]["last.weight"])
        spread = block.last.std().detach().clone()
        refit(block, stage, GREEDY.temperature, move=False)
        assert torch.equal(block.last.std(), spread)
        assert all(parameter.requires_grad for parameter in block.parameters())
        stage = next_stage(block, place, stage, GREEDY, FIT, seed=3)


def test_a_resumed_training_is_the_same() -> None:
    stage, whole, cut = stage_of(8), Folder(), Folder()
    blocks = trained(stage)
    train_jointly(blocks, stage, stage, JOINT, GREEDY, FIT, seed=3, keep=whole.keep)
    for rounds in (1, 2):  # 2: cut off while the variances were fitted
        states, memory, _, record = whole.kept[rounds - 1]
        again = trained(stage)
        for block, state in zip(again, states, strict=True):
            block.load_state_dict(state)
        train_jointly(again, stage, stage, JOINT, GREEDY, FIT, seed=3, kept=(memory, record), keep=cut.keep)
        for one, other in zip(whole.kept[-1][0], cut.kept[-1][0], strict=True):
            assert all(torch.equal(one[key], other[key]) for key in one)
        assert cut.kept[-1][3]["before"] == whole.kept[-1][3]["before"]


def test_no_gain_is_told() -> None:
    stage, folder = stage_of(8), Folder()
    blocks = trained(stage)
    bad = JointSettings(epochs=1, batch=4, rounds=1, learning_rate=10.0, warm_up=0.0, clip=0.0)
    train_jointly(blocks, stage, stage, bad, GREEDY, FIT, seed=3, keep=folder.keep)
    assert "joint training gained nothing" in folder.kept[-1][3]["warnings"][0]


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="setting learning_rate"):
        JointSettings(learning_rate=0.0)
    with pytest.raises(UserError, match="setting epochs"):
        JointSettings(epochs=-1)
    with pytest.raises(UserError, match="setting settle"):
        JointSettings(settle=-1)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    """Both trainings are captured as graphs, of the same parameters."""
    geometry = small_parallel(16)
    operator = ray_transform(geometry, torch.device("cuda"))
    truth = torch.rand((32, 1, 16, 16), generator=torch.Generator().manual_seed(0)).cuda()
    sinogram = operator(truth)
    stage, folder = Stage.first(Data(operator, 20.0, sinogram), truth, operator.fbp(sinogram)), Folder()
    blocks = train_cascade(
        lambda generator: heteroscedastic.build(BlockSettings(channels=16, variance_floor=1e-9), generator),
        stage,
        stage,
        GREEDY,
        FIT,
        seed=3,
    )
    train_jointly(blocks, stage, stage, JOINT, GREEDY, FIT, seed=3, keep=folder.keep)
    *_, records, record = folder.kept[-1]
    assert record["settled"]
    assert record["warnings"] == []
    assert records[-1]["validation_psnr"] > record["before"]
