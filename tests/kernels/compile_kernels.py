"""Compiles every kernel for a GPU that need not be there; prints registers and spilled bytes as JSON."""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bayescade.kernels import convolution, head

TARGET = GPUTarget("cuda", 90, 32)
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
COMMON = {"PRECISION": "ieee", "SUM": tl.float32, "BLOCK": convolution.BLOCK}
SINGLE = ("bias", "partial", "partial_bias", "mean_out", "variance_out", "mean_slopes", "variance_slopes")
WHOLE = ("pixels", "height", "width")


def usage(kernel: Any, constants: dict[str, Any]) -> dict[str, int]:
    """Registers of a thread and bytes it spills, of the kernel with features in bfloat16."""
    known = {name: value for name, value in {**COMMON, **constants}.items() if name in kernel.arg_names}
    single = (*SINGLE, "weights", "variances") if kernel is head._head else SINGLE
    types = {name: "i32" if name in WHOLE else "*fp32" if name in single else "*bf16" for name in kernel.arg_names}
    types |= dict.fromkeys(known, "constexpr")
    places = {(kernel.arg_names.index(name),): value for name, value in known.items()}
    compiled = triton.compile(ASTSource(fn=kernel, signature=types, constexprs=places), target=TARGET)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run([str(TOOL), "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+)\s+STACK:(\d+)", text)
    assert found is not None, text
    return {"registers": int(found[1]), "spilled": int(found[2])}


def convolve(planes: int, into: int, out: int, groups: int, mask: bool) -> dict[str, int]:
    """A convolution forward, or with a mask that of a gradient."""
    sizes = {"PLANES": planes, "IN": into, "OUT": out, "IN_STRIDE": into * groups, "OUT_STRIDE": out * groups}
    return usage(convolution._convolve, {**sizes, "RELU": not mask, "MASK": mask})


def weights(into: int, out: int, groups: int) -> dict[str, int]:
    """The gradient of weights."""
    sizes = {"IN": into, "OUT": out, "IN_STRIDE": into * groups, "OUT_STRIDE": out * groups}
    return usage(convolution._weight_gradient, {**sizes, "GROUPS": groups, "TILES": 125})


planes = {"PLANES": 2, "PLANE_GROUP": 1, "OUT": 16, "OUT_STRIDE": 32, "TILES": 125}
print(
    json.dumps(
        {
            "first": convolve(1, 0, 16, 2, False),
            "branches": convolve(0, 16, 32, 2, False),
            "common": convolve(0, 64, 32, 1, False),
            "gradient of common": convolve(0, 32, 64, 1, True),
            "variance": convolve(2, 16, 16, 1, False),
            "weights of branches": weights(16, 32, 2),
            "weights of common": weights(64, 32, 1),
            "weights of planes": usage(convolution._plane_weight_gradient, planes),
            "head": usage(head._head, {"IN": 16, "SHARED": True, "VARIANCE": True}),
            "gradient of head": usage(head._head_gradient, {"IN": 16, "TILES": 31}),
        }
    )
)
