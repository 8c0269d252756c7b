"""Triton where it is installed; without it the kernels are names that nobody calls (`available` says which)."""

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

__all__ = ["KERNELS", "available", "cdiv", "check_kernels", "interpreted", "jit", "tl"]

KERNELS = ("fused", "plain")


def available() -> bool:
    """Whether kernels can be called."""
    return triton is not None


def interpreted() -> bool:
    """Whether kernels run on the CPU, one program after the other, as tests have it."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def check_kernels(kernels: str, device: torch.device) -> None:
    """Raises when fused kernels are wanted where they cannot run."""
    if kernels == "fused" and not (available() and (device.type == "cuda" or interpreted())):
        raise UserError("setting kernels: fused needs a GPU and Triton; use kernels=plain")


def jit(function: Any) -> Any:
    """The function as a kernel."""
    return function if triton is None else triton.jit(function)


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
