"""How blocks are computed in a training. It is decided once, from the settings and the device."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.bayes.layers import LastConv
from bayescade.blocks.block import Block, State
from bayescade.blocks.fused import FusedRunner, fused_prediction, fused_steps
from bayescade.blocks.runner import PlainRunner, StepRunner, plain_prediction
from bayescade.kernels._triton import is_fused
from bayescade.training.distributed import ALONE, ProcessGroup
from bayescade.training.optimiser import precision_on

RUNNERS = ("auto", "plain", "fused")
Predict = Callable[[Block, State, Tensor, Mapping[LastConv, Tensor], torch.dtype], Gaussian]


@dataclasses.dataclass(frozen=True)
class TrainingRunner:
    """Plain layers or fused kernels, for training steps and for passes without gradients."""

    fused: bool
    step_type: torch.dtype  # of the features in a training step
    pass_type: torch.dtype  # of the features in a pass without gradients, if the fused kernels are used
    processes: ProcessGroup = ALONE

    @property
    def predict(self) -> Predict:
        """The function that computes the prediction of a block, differentiable in the parameters of the block."""
        return fused_prediction if self.fused else plain_prediction

    def step_runners(self, blocks: Sequence[Block]) -> list[StepRunner]:
        """Runners of all blocks for one step of training through the whole cascade, with mean weights."""
        return fused_steps(blocks, self.step_type) if self.fused else [PlainRunner(block) for block in blocks]

    @property
    def autocast(self) -> bool:
        """Whether torch layers are to compute in bfloat16; the fused kernels do so by themselves."""
        return self.step_type == torch.bfloat16 and not self.fused

    def block_runner(self, block: Block, sampling: str = "mean") -> PlainRunner | FusedRunner:
        """A runner of the block with its present weights, for passes without gradients.

        It is the plain runner if `sampling` is activations, which the fused runner cannot sample.
        """
        fused = self.fused and sampling != "activations"
        return FusedRunner(block, self.pass_type) if fused else PlainRunner(block)


def training_runner(
    requested: str,  # one of RUNNERS; auto: fused on a GPU, else plain
    precision: str,  # as in `RateSettings`
    like: Tensor,  # an image of the training, from which device and type are read
    processes: ProcessGroup = ALONE,
) -> TrainingRunner:
    """The runner of a training.

    With bf16 on a GPU, passes without gradients use float16 instead of bfloat16: float16 has more digits.
    """
    mixed = precision_on(like.device, precision) == "bf16"
    passes = torch.float16 if mixed and like.device.type == "cuda" else like.dtype
    steps = torch.bfloat16 if mixed else like.dtype
    return TrainingRunner(is_fused(requested, like.device), steps, passes, processes)
