"""Compiles every kernel for a GPU that need not be there; prints registers and spilled bytes as JSON."""

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bayescade.kernels import convolution, frame, last_layer, projection
from bayescade.kernels._triton import Launch
from bayescade.projectors import _gpu

GRADIENT = last_layer.LAST_LAYER_GRADIENT
TARGET = GPUTarget("cuda", 90, 32)
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TYPES = {
    "*bf16": (torch.bfloat16, {"PRECISION": "ieee", "SUM": tl.float32}),
    "*fp16": (torch.float16, {"PRECISION": "ieee", "SUM": tl.float32}),
    "*fp32": (torch.float32, {"PRECISION": "tf32x3", "SUM": tl.float32}),
    "*fp64": (torch.float64, {"PRECISION": "ieee", "SUM": tl.float64}),
}
COMMON = {"HEIGHT": 128, "WIDTH": 128, "TILES": 31}
LAST = ("weights", "variances", "pixel_weights")
SINGLE = ("bias", "partial", "partial_bias", "before", "scale", "mean_out", "variance_out", "image")
WHOLE = (
    "first",
    "image_stride",
    "channel_stride",
    "pixel_stride",
    "plane_size",
    "in_group",
    "out_group",
    "stop",
    "positions",
    "sample_positions",
    "sample_pixels",
)


def usage(kernel: Any, launch: Launch, constants: dict[str, Any], kind: str = "*bf16") -> dict[str, int]:
    """Registers of a thread, bytes it spills and bytes that a program shares, of the kernel with features of that type."""
    dtype, numbers = TYPES[kind]
    launch = launch.fitted(torch.empty(0, dtype=dtype))
    sums = "*fp64" if kind == "*fp64" else "*fp32"
    known = {**COMMON, **numbers, **constants, "BLOCK": launch.block}
    known = {name: value for name, value in known.items() if name in kernel.arg_names}
    single = (
        (*SINGLE, "weights", "variances", "pixel_weights")
        if kernel in (last_layer._last_layer, last_layer._curvature)
        else SINGLE
    )
    types = {name: "i32" if name in WHOLE else sums if name in single else kind for name in kernel.arg_names}
    return compiled_usage(kernel, types, known, {"num_warps": launch.warps, "num_stages": launch.stages})


def compiled_usage(
    kernel: Any, types: dict[str, str], known: dict[str, Any], options: dict[str, int]
) -> dict[str, int]:
    """The same of a kernel with arguments of these types, where some are known."""
    types |= dict.fromkeys(known, "constexpr")
    indices = {(kernel.arg_names.index(name),): value for name, value in known.items()}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if types[name].startswith("*")
    }
    source = ASTSource(fn=kernel, signature=types, constexprs=indices, attrs=aligned)
    compiled = triton.compile(source, TARGET, options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run([str(TOOL), "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+)\s+STACK:(\d+)", text)
    assert found is not None, text
    return {"registers": int(found[1]), "spilled": int(found[2]), "shared": compiled.metadata.shared}


def convolve(
    planes: int, into: int, out: int, groups: int, mask: bool, kind: str = "*bf16", relu: bool = True
) -> dict[str, int]:
    """A convolution forward, or with a mask that of a gradient."""
    launch = convolution.CONVOLVE if out <= convolution.WIDE else convolution.CONVOLVE_WIDE
    sizes = {"PLANES": planes, "IN": into, "OUT": out, "IN_STRIDE": into, "OUT_STRIDE": out * groups}
    return usage(convolution._convolve, launch, {**sizes, "MASK": mask, "RELU": relu and not mask}, kind)


def weights(into: int, out: int, groups: int, kind: str = "*bf16") -> dict[str, int]:
    """The gradient of weights."""
    join = convolution.JOINED if into <= convolution.MOST_JOINED else 1
    sizes = {"IN": into, "OUT": out, "JOIN": join, "IN_STRIDE": into, "OUT_STRIDE": out * groups, "GROUPS": groups}
    launch = convolution.weight_launch(max(3, join) * into * out)
    return usage(convolution._weight_gradient, launch, sizes, kind)


def projected(kernel: Any, tile: Any, names: tuple[str, str], **constants: Any) -> dict[str, int]:
    """A projection of single-precision images."""
    known = {names[0]: tile.outer, names[1]: tile.inner, "IMAGES": tile.images, "ALIGNED": 16, **constants}
    return compiled_usage(kernel, projection_types(kernel), known, {"num_warps": tile.warps, "num_stages": 3})


def projection_types(kernel: Any) -> dict[str, str]:
    """Types of the arguments of a projection of single-precision images."""
    double = ("cosine", "sine", "numbers", "reach")
    pointers = {name: "*fp64" if name in double else "*i32" if name == "counts" else "*fp32" for name in POINTERS}
    return {name: pointers.get(name, "i32") for name in kernel.arg_names}


RAYS, PIXELS = ("VIEWS", "BINS"), ("TILE_HEIGHT", "TILE_WIDTH")
POINTERS = (
    "rows columns sinograms by_angle by_offset images_out cosine sine numbers reach counts".split()  # noqa: SIM905
)
back = {"TAPS": 3, "UNROLLED": 3, "PARALLEL": False, "INTERPOLATE": False}
last = {"IN": 16, "SHARED": True}
planes = {"PLANES": 2, "PLANE_GROUP": 1, "OUT": 16, "OUT_STRIDE": 16}
print(
    json.dumps(
        {
            "projection": projected(projection.project, _gpu.ray_tile(16), RAYS),
            "projection of one image": projected(projection.project, _gpu.ray_tile(1), RAYS, images=1, ALIGNED=1),
            "back-projection of one": projected(
                projection.back_project, _gpu.pixel_tile(1), PIXELS, **back, images=1, ALIGNED=1
            ),
            "derivatives of a projection": projected(projection.project_derivatives, _gpu.ray_tile(16), RAYS),
            "back-projection": projected(projection.back_project, _gpu.pixel_tile(16), PIXELS, **back),
            "transposed interpolation": projected(projection.transpose_interpolation, _gpu.ray_tile(16), RAYS),
            "transposed interpolation of one": projected(
                projection.transpose_interpolation, _gpu.ray_tile(1), RAYS, images=1, ALIGNED=1
            ),
            "layout": usage(frame._lay_out, frame.LAY_OUT, {"SCALE": True}),
            "first": convolve(1, 0, 16, 2, False),
            "branches": convolve(0, 16, 32, 2, False),
            "common": convolve(0, 64, 32, 1, False),
            "end of common": convolve(0, 32, 16, 1, False),
            "gradient of common": convolve(0, 32, 64, 1, True),
            "gradient of branches": convolve(0, 32, 16, 2, True),
            "gradient of planes": convolve(0, 32, 16, 2, False, relu=False),
            "variance": convolve(2, 16, 16, 1, False),
            "weights of branches": weights(16, 32, 2),
            "weights of common": weights(64, 32, 1),
            "weights of the end of common": weights(32, 16, 1),
            "wide: common": convolve(0, 128, 64, 1, False),
            "wide: gradient of common": convolve(0, 64, 128, 1, True),
            "wide: weights of branches": weights(32, 64, 2),
            "wide: weights of common": weights(128, 64, 1),
            "weights of planes": usage(convolution._plane_weight_gradient, convolution.PLANE_GRADIENT, planes),
            "float32: common": convolve(0, 64, 32, 1, False, "*fp32"),
            "float32: weights of common": weights(64, 32, 1, "*fp32"),
            "float32: gradient of last layer": usage(last_layer._last_layer_gradient, GRADIENT, {"IN": 16}, "*fp32"),
            "float64: common": convolve(0, 64, 32, 1, False, "*fp64"),
            "last layer": usage(
                last_layer._last_layer, last_layer.LAST_LAYER, {**last, "VARIANCE": True, "IMAGE": False}
            ),
            "image of last layer": usage(
                last_layer._last_layer, last_layer.LAST_LAYER, {**last, "VARIANCE": False, "IMAGE": True}
            ),
            "gradient of last layer": usage(last_layer._last_layer_gradient, GRADIENT, {"IN": 16}),
            "curvature": usage(last_layer._curvature, GRADIENT, {"IN": 16, "PRECISION": "tf32x3"}, "*fp16"),
            "wide: curvature": usage(last_layer._curvature, GRADIENT, {"IN": 32, "PRECISION": "tf32x3"}, "*fp16"),
        }
    )
)
