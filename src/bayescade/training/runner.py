"""How blocks are computed in a training: decided once, by the settings and the device."""

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.bayes.layers import LastConv
from bayescade.blocks.block import Block, State
from bayescade.blocks.fused import FusedRunner, fused_prediction
from bayescade.blocks.runner import PlainRunner, plain_prediction
from bayescade.kernels._triton import is_fused
from bayescade.training.distributed import ALONE, ProcessGroup
from bayescade.training.optimiser import precision_on

RUNNERS = ("auto", "plain", "fused")
Predict = Callable[[Block, State, Tensor, Mapping[LastConv, Tensor], torch.dtype], Gaussian]


@dataclasses.dataclass(frozen=True)
class TrainingRunner:
    """Plain layers or fused kernels, for steps with gradients and for passes without."""

    fused: bool
    step_type: torch.dtype  # of features in a step
    pass_type: torch.dtype  # of features in a pass without gradients, by the fused kernels
    processes: ProcessGroup = ALONE

    @property
    def predict(self) -> Predict:
        """A block's prediction, differentiable in its parameters."""
        return fused_prediction if self.fused else plain_prediction

    def block_runner(self, block: Block, sampling: str = "mean") -> PlainRunner | FusedRunner:
        """A runner of the block with its present weights, for passes without gradients."""
        fused = self.fused and sampling != "activations"
        return FusedRunner(block, self.pass_type) if fused else PlainRunner(block)


def training_runner(
    requested: str,  # one of RUNNERS; auto = fused on a GPU
    precision: str,  # of `RateSettings`
    like: Tensor,  # images of the training
    processes: ProcessGroup = ALONE,
) -> TrainingRunner:
    """The runner of a training. Passes without gradients use float16 instead of bfloat16: it has more digits."""
    mixed = precision_on(like.device, precision) == "bf16"
    passes = torch.float16 if mixed and like.device.type == "cuda" else like.dtype
    steps = torch.bfloat16 if mixed else like.dtype
    return TrainingRunner(is_fused(requested, like.device), steps, passes, processes)
