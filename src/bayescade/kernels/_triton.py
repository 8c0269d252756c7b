"""Triton where it is installed; without it the kernels are names that nobody calls (`available` says which)."""

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

__all__ = ["KERNELS", "Launch", "available", "cdiv", "check_kernels", "interpreted", "is_fused", "jit", "tl"]

KERNELS = ("auto", "fused", "plain")


def available() -> bool:
    """Whether kernels can be called."""
    return triton is not None


def interpreted() -> bool:
    """Whether kernels run on the CPU, one program after the other, as tests have it."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def check_kernels(kernels: str, *others: str) -> None:
    """Raises for a setting that is not one of `KERNELS`, or of the others."""
    known = (*KERNELS, *others)
    if kernels not in known:
        raise UserError(f"setting kernels: expected {', '.join(known)}, got '{kernels}'")


def is_fused(kernels: str, device: torch.device) -> bool:
    """Whether the fused kernels are used: `auto` takes them on a GPU where Triton is installed."""
    possible = available() and device.type == "cuda"
    if kernels == "fused" and not (possible or (available() and interpreted())):
        raise UserError("setting kernels: fused needs a GPU and Triton; use kernels=auto or kernels=plain")
    return kernels == "fused" or (kernels == "auto" and possible)


def jit(function: Any) -> Any:
    """The function as a kernel."""
    return function if triton is None else triton.jit(function)


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a kernel is spread over the GPU."""

    block: int  # pixels of a tile
    warps: int
    stages: int  # loads on their way while others are worked on
    runs: int = 1  # of pixels, each summed by one program

    def fitted(self, tensor: torch.Tensor) -> "Launch":
        """The same for numbers of this type: wide ones need smaller tiles to fit the memory that a program shares."""
        return self if tensor.element_size() <= 2 else dataclasses.replace(self, block=32, stages=2)

    def options(self) -> dict[str, int]:
        """What a call is told."""
        return {"BLOCK": self.block, "num_warps": self.warps, "num_stages": self.stages}

    def cover(self, pixels: int) -> tuple[int, int]:
        """How many runs of how many tiles each cover the pixels."""
        tiles = cdiv(cdiv(pixels, self.block), self.runs)
        return cdiv(pixels, tiles * self.block), tiles
