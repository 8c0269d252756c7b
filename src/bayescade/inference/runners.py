"""Which runner computes the blocks of a cascade, and in which precision: decided once, when a model is loaded."""

from collections.abc import Callable

import torch

from bayescade.blocks.block import Block
from bayescade.blocks.fused import FusedRunner
from bayescade.blocks.perturbation import PerturbationRunner
from bayescade.blocks.runner import BlockRunner, PlainRunner
from bayescade.devices import has_bfloat16
from bayescade.errors import UserError
from bayescade.kernels._triton import is_fused

RUNNERS = ("auto", "plain", "fused", "perturbation")
MakeRunner = Callable[[Block], BlockRunner]


def choose_runner(
    requested: str,  # one of RUNNERS
    sampling: str,  # what is sampled
    random: bool,  # whether any weights are random
    device: torch.device,
    dtype: torch.dtype,
) -> str:
    """The runner that `auto` means here; raises where the requested one cannot work.

    A cascade without sampling uses the plain layers: one pass is fast enough in full precision.
    """
    fused = is_fused(requested, device)
    if requested == "perturbation" and (device.type != "cpu" or sampling == "activations"):
        raise UserError("setting runner: perturbation is for samples of weights on a CPU; use runner=auto")
    if sampling == "activations":
        return "plain"
    if not random and requested != "fused":
        return "plain"
    if requested != "auto":
        return requested
    if fused:
        return "fused"
    return "perturbation" if device.type == "cpu" and dtype == torch.float32 and has_bfloat16() else "plain"


def runner_factory(
    name: str,  # by `choose_runner`
    device: torch.device,
    dtype: torch.dtype,  # of images
    half: bool,  # whether the fused kernels have features in half precision on a GPU
) -> MakeRunner:
    """A function that makes the runner of a block."""
    if name == "fused":
        features = torch.float16 if half and device.type == "cuda" else dtype
        return lambda block: FusedRunner(block, features)
    return PerturbationRunner if name == "perturbation" else PlainRunner
