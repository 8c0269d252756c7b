"""Chooses the runner that computes the blocks of a cascade, and its precision: once, when a `Sampler` is created."""

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
    sampling: str,  # what is sampled: `InferenceSettings.sampling`
    random: bool,  # whether any weights are sampled
    device: torch.device,
    dtype: torch.dtype,
) -> str:
    """The name of the runner to use, never `auto`; raises an error if the requested runner cannot be used here.

    Samples of activations always use the plain layers. So does a cascade in which nothing is sampled, unless `fused` is
    requested: one pass is fast enough in full precision.
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
    name: str,  # the result of `choose_runner`
    device: torch.device,
    dtype: torch.dtype,  # of images
    half: bool,  # whether the fused kernels store features in half precision on a GPU
) -> MakeRunner:
    """A function that makes the runner of a block."""
    if name == "fused":
        feature_dtype = torch.float16 if half and device.type == "cuda" else dtype
        return lambda block: FusedRunner(block, feature_dtype)
    return PerturbationRunner if name == "perturbation" else PlainRunner
