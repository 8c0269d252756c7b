"""Triton where it is installed; without it the kernels are names that nobody calls (`available` says which)."""

from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU build of torch comes without
    triton = None
    tl = None

__all__ = ["available", "cdiv", "jit", "tl"]


def available() -> bool:
    """Whether kernels can be called."""
    return triton is not None


def jit(function: Any) -> Any:
    """The function as a kernel."""
    return function if triton is None else triton.jit(function)


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
