"""Triton, if it is installed; without it the kernels are plain functions that are never called (see `available`)."""

import contextlib
import dataclasses
import inspect
import os
from typing import Any

import torch

from bayescade.errors import UserError

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU build of torch does not install Triton
    triton = None
    tl = None

# Arguments of a kernel by which Triton does not specialise: a new scan would be compiled if its number of views is a
# multiple of 16 and that of the scans before was not.
SIZES = ("height", "width", "views", "bins")

__all__ = ["Launch", "available", "cdiv", "device_of", "interpreted", "is_fused", "jit", "tl"]


def available() -> bool:
    """Whether kernels can be called."""
    return triton is not None


def interpreted() -> bool:
    """Whether kernels are interpreted on the CPU, one program after the other, as in tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def is_fused(runner: str, device: torch.device) -> bool:
    """Whether the fused kernels are used: `auto` uses them on a GPU with Triton. Raises an error if `fused` is impossible."""
    possible = available() and device.type == "cuda"
    if runner == "fused" and not (possible or (available() and interpreted())):
        raise UserError("setting runner: fused needs a GPU and Triton; use runner=auto or runner=plain")
    return runner == "fused" or (runner == "auto" and possible)


def device_of(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Within it kernels are launched on the device of the tensor: Triton launches on the current device."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def jit(function: Any) -> Any:
    """The function as a Triton kernel, if Triton is installed; it is not compiled again for other `SIZES`."""
    if triton is None:
        return function
    sizes = [name for name in inspect.signature(function).parameters if name in SIZES]
    return triton.jit(function, do_not_specialize=sizes)


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a kernel is launched on the GPU. A position is a pixel or a zero between pixels (`frame`)."""

    block: int  # positions of a tile
    warps: int
    stages: int  # depth of the pipeline: while a tile is computed, the data of later tiles are loaded
    segments: int = 1  # into how many segments the positions are divided; one program sums over one segment

    def fitted(self, tensor: torch.Tensor) -> "Launch":
        """The launch for a tensor of this type: types of more than two bytes need smaller tiles, to fit shared memory."""
        return self if tensor.element_size() <= 2 else dataclasses.replace(self, block=32, stages=2)

    def options(self) -> dict[str, int]:
        """The keyword arguments of a kernel call."""
        return {"BLOCK": self.block, "num_warps": self.warps, "num_stages": self.stages}

    def cover(self, positions: int) -> tuple[int, int]:
        """The number of segments and of tiles per segment that cover this many positions."""
        tiles = cdiv(cdiv(positions, self.block), self.segments)
        return cdiv(positions, tiles * self.block), tiles
