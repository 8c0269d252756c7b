"""Devices: their choice, free memory, and global switches of torch and Python."""

import contextlib
import functools
import gc
from collections.abc import Iterator

import torch

from bayescade.errors import UserError


def choose_device(name: str | torch.device) -> torch.device:
    """The device of a name: `cpu`, `cuda`, `cuda:1`, or `auto`, which is the GPU if there is one, otherwise the CPU."""
    kind, _, number = str(name).partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and not number.isdigit()):
        raise UserError(f"--device: expected auto, cpu or cuda, got '{name}'")
    if kind == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: torch finds no such GPU on this machine; use cpu or auto")
    return torch.device(str(name))


def available_bytes(device: torch.device) -> int:
    """Memory that is free on the device; on a CPU four fifths of the system's available memory, or 8 GiB if that is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024 * 4 // 5
    except OSError:
        pass
    return 8 * 1024**3


@functools.lru_cache(maxsize=1)
def has_bfloat16() -> bool:
    """Whether this CPU has instructions for products in bfloat16; without them bfloat16 is far slower than float32."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disables garbage collection while a CUDA graph is captured: then the memory of other graphs must not be freed."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Convolutions in full float32 precision, instead of TF32, on a GPU."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
