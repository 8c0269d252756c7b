"""Triton, if it is installed; without it the kernels are plain functions that are never called (see `available`)."""

import dataclasses
import os
from typing import Any

import torch

from bayescade.errors import UserError

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU build of torch comes without
    triton = None
    tl = None

__all__ = ["Launch", "available", "cdiv", "interpreted", "is_fused", "jit", "tl"]


def available() -> bool:
    """Whether kernels can be called."""
    return triton is not None


def interpreted() -> bool:
    """Whether kernels are interpreted on the CPU, one program after the other, as in tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def is_fused(runner: str, device: torch.device) -> bool:
    """Whether the fused kernels are used: `auto` uses them on a GPU if Triton is installed."""
    possible = available() and device.type == "cuda"
    if runner == "fused" and not (possible or (available() and interpreted())):
        raise UserError("setting runner: fused needs a GPU and Triton; use runner=auto or runner=plain")
    return runner == "fused" or (runner == "auto" and possible)


def jit(function: Any) -> Any:
    """The function as a kernel."""
    return function if triton is None else triton.jit(function)


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a kernel is launched on the GPU."""

    block: int  # pixels of a tile
    warps: int
    stages: int  # memory loads during the computation
    runs: int = 1  # segments of pixels, each summed by one program

    def fitted(self, tensor: torch.Tensor) -> "Launch":
        """The launch for numbers of this type: wide types need smaller tiles to fit shared memory."""
        return self if tensor.element_size() <= 2 else dataclasses.replace(self, block=32, stages=2)

    def options(self) -> dict[str, int]:
        """The keyword arguments of a kernel call."""
        return {"BLOCK": self.block, "num_warps": self.warps, "num_stages": self.stages}

    def cover(self, pixels: int) -> tuple[int, int]:
        """(runs, tiles per run) that cover the pixels: a run is a segment of pixels."""
        tiles = cdiv(cdiv(pixels, self.block), self.runs)
        return cdiv(pixels, tiles * self.block), tiles
