"""Joint training: all blocks of a cascade at once, by the error of its last image, behind the greedy training.

Greedy blocks each make the best of their own image; where much is missing (few views) the last image is better when the blocks
before it are free to prepare it. What learns is what makes the image: trunks, and the means of the last layers. The posteriors
stand still, and are set anew behind it (`settle`), block by block, with the variance that belongs to the new images.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescade.blocks._block import Block, MeanDraw
from bayescade.errors import UserError
from bayescade.networks.cascade import Data
from bayescade.physics.operator import LinearOperator
from bayescade.progress import progress
from bayescade.runs import WORK
from bayescade.seeds import derived_seed
from bayescade.training import losses
from bayescade.training.distributed import ALONE, Team
from bayescade.training.end_to_end import EndToEndSettings, Examples, Report, train_network, validation_psnr
from bayescade.training.fit import FitSettings, fit
from bayescade.training.greedy import GreedySettings, describe, next_stage, pushed
from bayescade.training.posterior import refit, spread_of
from bayescade.training.stage import Stage

# (blocks, Adam's memory, a record of each block or none, record): called behind every round, and at the end
Keep = Callable[[Sequence[Block], Mapping[str, Tensor], Sequence[Mapping[str, Any]], dict[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class JointSettings(EndToEndSettings):
    """How all blocks are trained together, once each has been trained alone."""

    epochs: int = 0  # 0 = not at all
    learning_rate: float = 1e-4
    rounds: int = 4
    settle: int = 1  # epochs for the variance of each block afterwards

    def __post_init__(self) -> None:
        if self.epochs == 0:
            dataclasses.replace(self, epochs=1)  # checks the rest
            return
        super().__post_init__()
        if not 0 <= self.settle <= 1000:
            raise UserError(f"setting settle: expected a whole number from 0 to 1000, got {self.settle}")


@final
class Chain(nn.Module):
    """A cascade with mean weights as one network: (first image, sinogram) -> image."""

    def __init__(self, blocks: Sequence[Block], operator: LinearOperator, norm: float):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.operator = operator
        self.norm = norm

    def forward(self, image: Tensor, sinogram: Tensor) -> Tensor:
        data = Data(self.operator, self.norm, sinogram)
        for block in self.blocks:
            with torch.autocast(image.device.type, enabled=False):
                gradient = data.gradient(image)
            image = block.image(image, gradient, MeanDraw())  # type: ignore[operator]
        return image

    def clipped(self, image: Tensor, sinogram: Tensor) -> Tensor:
        """The image as it is given out: nothing is below 0 in it anyway."""
        return self(image, sinogram)


def train_jointly(
    blocks: Sequence[Block],
    train: Stage,  # of the first images
    validation: Stage,
    joint: JointSettings,
    greedy: GreedySettings,
    fitting: FitSettings,
    *,
    seed: int,
    kept: tuple[Mapping[str, Tensor], Mapping[str, Any]]
    | None = None,  # Adam's memory and the record of an earlier run
    keep: Keep = lambda blocks, memory, records, record: None,
    report: Report = lambda line: None,
    team: Team = ALONE,
) -> None:
    """Trains the blocks in place; behind the last round the record is `settled`."""
    for block in blocks:
        learning = {*block.trunk.parameters(), block.last.weight, block.last.bias}
        for parameter in block.parameters():
            parameter.requires_grad_(parameter in learning)
    chain = Chain(blocks, train.data.operator, train.data.norm)
    scans, watched = (Examples(stage.image, stage.data.sinogram, stage.truth) for stage in (train, validation))
    before = kept[1]["before"] if kept is not None else validation_psnr(chain, watched, fitting.batch)
    record: dict[str, Any] = dict(kept[1]) if kept is not None else {}

    def keep_round(tensors: Mapping[str, Tensor], found: dict[str, Any]) -> None:
        nonlocal record
        record = {**found, "before": before, "settled": False}
        keep(blocks, {key: value for key, value in tensors.items() if key.startswith(WORK)}, [], record)

    train_network(
        chain,
        scans,
        watched,
        joint,
        seed=derived_seed(seed, "joint"),
        kept=({**chain.state_dict(), **kept[0]}, kept[1]) if kept is not None else None,
        keep=keep_round,
        report=lambda line: report({**line, "block": len(blocks) + line["block"]}),
        team=team,
    )
    chain.zero_grad(set_to_none=True)
    start = time.perf_counter()
    records = settle(blocks, train, validation, joint, greedy, fitting, seed=seed, team=team)
    after = records[-1]["validation_psnr"]
    warnings = (
        [] if after > before else [f"joint training gained nothing: {before:.2f} dB before, {after:.2f} dB behind it"]
    )
    seconds = record["seconds"] + time.perf_counter() - start
    keep(blocks, {}, records, {**record, "seconds": seconds, "settled": True, "warnings": warnings})


def settle(
    blocks: Sequence[Block],
    train: Stage,
    validation: Stage,
    joint: JointSettings,
    greedy: GreedySettings,
    fitting: FitSettings,
    *,
    seed: int,
    team: Team = ALONE,
) -> list[dict[str, Any]]:
    """Fits the variances to blocks whose images have changed, and sets their posteriors: what is to be said of each block."""
    records = []
    with progress("variances", len(blocks)) as advance:
        for place, block in enumerate(blocks):
            block.requires_grad_(True)
            device, stage = train.image.device, train
            baseline = team.agree(validation.psnr(), device)
            start = spread_of(block)
            if block.variance is not None and joint.settle:
                fit(
                    block,
                    lambda epoch, stage=stage: stage,  # type: ignore[misc]
                    losses.variance_nll(len(stage), greedy.temperature),
                    dataclasses.replace(fitting, epochs=joint.settle),
                    seed=derived_seed(seed, "settle", place),
                    parameters=list(block.variance.parameters()),
                    team=team,
                )
            trained = spread_of(block)
            if greedy.refit != "none":
                refit(block, stage, greedy.temperature, move=False)
            refitted = greedy.refit != "none"
            record = describe(block, validation, fitting, start, trained, place, refitted=refitted)
            record["validation_psnr"] = team.agree(record["validation_psnr"], device)
            records.append({**record, "gain": record["validation_psnr"] - baseline})
            train = next_stage(block, place, train, greedy, fitting, seed=seed)
            validation = pushed(block, validation, "mean", fitting, 0)
            advance(1)
    return records
