"""Stages and runners that the tests of training share."""

import torch
from torch import Tensor

from bayescade.blocks.block import State
from bayescade.physics.problem import InverseProblem
from bayescade.projectors import ray_transform
from bayescade.training.runner import TrainingRunner, training_runner
from bayescade.training.stage import ImageGroup, Stage, first_stage
from tests.geometries import small_parallel


def stage_of(images: int = 4, size: int = 6, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Stage:
    """Random images, scanned without noise."""
    operator = ray_transform(small_parallel(size), device, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand((images, 1, size, size), generator=generator, dtype=torch.float64).to(device, dtype)
    return first_stage([(InverseProblem(operator, norm=10.0), operator(truth), truth)], batch=128)


def group_of(stage: Stage) -> ImageGroup:
    """The one group of a stage."""
    (group,) = stage.groups
    return group


def tensors_of(stage: Stage) -> tuple[State, Tensor, Tensor]:
    """States, inputs and truths of all images."""
    group = group_of(stage)
    return State.unstacked(group.state[:]), group.inputs[:], group.truth[:]


def runner_of(stage: Stage, asked: str = "plain", precision: str = "auto") -> TrainingRunner:
    """How blocks are computed for the stage."""
    return training_runner(asked, precision, stage.example)
