"""Projectors against each other and against their peers, in one run: set-up, forward, adjoint and FBP, as ratios.

For every size the same parallel-beam scan (angles evenly over 180 degrees, bins of one pixel, enough to see the whole
image) is done by bayescade without and with a stored matrix, ASTRA (CPU, line and linear kernels), scikit-image
(which chooses its own bins) and, where it can be imported, deepinv. A peer takes one image at a time if that is how
it works. `ready` is the time until the operator can be called, kernels compiled before; `first image` the time from
nothing to one FBP image. The figure that counts is the ratio of images per second to the matrix-free projector in
this run; milliseconds depend on the machine.

    python benchmarks/projectors.py                     # peers that are not installed are named and left out
    python benchmarks/projectors.py --device cuda       # only bayescade
    pip install -e ".[peers]"                           # in an environment of its own: ASTRA is GPL-3 and large
"""

import argparse
import datetime
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from timing import median_ms

from bayescade import ParallelBeam, ray_transform
from bayescade.phantoms import ellipses
from bayescade.projectors.matrix import entry_count
from bayescade.storage.files import write_text

# (image size, views, batch sizes)
CPU_SIZES = [(128, 32, (1, 16, 100)), (128, 128, (1, 16)), (512, 720, (1, 4))]
GPU_SIZES = [(128, 32, (1, 16, 128)), (512, 720, (1, 16)), (1024, 1024, (1, 4))]
FREE, MATRIX = "bayescade matrix-free", "bayescade matrix"
MOST_TIMED = 5e8  # entries of a stored matrix
CACHE_RATE = 128 * 1.98e9  # bytes per second and multiprocessor of an H100 or H200
SECONDS = 2.0  # of repetitions per figure, and at least three of them; a call of over 5 seconds is done once
Calls = dict[str, Callable[[], Any]]  # "forward", "adjoint", "fbp" -> one call on the whole batch


def ours(projector: str, device: str = "cpu") -> Callable[[ParallelBeam, torch.Tensor], Calls]:
    """bayescade: the whole batch in one call."""

    def build(geometry: ParallelBeam, images: torch.Tensor) -> Calls:
        operator = ray_transform(geometry, device, projector=projector)
        sinogram = operator(images)
        return {
            "forward": lambda: operator(images),
            "adjoint": lambda: operator.adjoint(sinogram),
            "fbp": lambda: operator.fbp(sinogram),
        }

    return build


def setup_seconds(projector: str, geometry: ParallelBeam, device: str) -> dict[str, float]:
    """Until the operator is ready, and until there is one FBP image; compiled before for another size."""
    other = ParallelBeam([0.1, 0.7], 9, image_shape=(6, 6))
    ray_transform(other, device, projector=projector).fbp(torch.rand(1, 1, 2, 9, device=device))
    sinogram = torch.rand(1, 1, *geometry.sinogram_shape, device=device)
    start = time.perf_counter()
    operator = ray_transform(geometry, device, projector=projector)
    ready = time.perf_counter() - start
    operator.fbp(sinogram)
    if device != "cpu":
        torch.cuda.synchronize()
    return {"ready": ready, "first image": time.perf_counter() - start}


def plain_torch(geometry: ParallelBeam, images: torch.Tensor) -> Calls:
    """The same weights by tensor operations of PyTorch, view by view: what numba has to beat."""
    size, bins = geometry.image_shape[0], geometry.bins
    line = torch.arange(size) - (size - 1) / 2
    position = torch.as_tensor(geometry.bin_positions(), dtype=torch.float32)

    def forward() -> torch.Tensor:
        padded = torch.nn.functional.pad(images[:, 0], (1, 1, 1, 1))
        sinogram = images.new_empty((len(images), geometry.views, bins))
        for view, angle in enumerate(geometry.angles):
            c, s = math.cos(angle), math.sin(angle)
            along_y = abs(c) >= abs(s)
            major, minor = (c, s) if along_y else (s, c)
            source = padded if along_y else padded.mT
            pixel = ((position[:, None] - line * minor) / major + (size + 1) / 2).clamp(
                0, size + 0.999
            )  # (bins, steps)
            below = pixel.floor()
            index = below.to(torch.int64) * (size + 2) + torch.arange(1, size + 1)
            flat = source.reshape(len(images), -1)
            left, right = flat[:, index], flat[:, index + size + 2]
            sinogram[:, view] = torch.lerp(left, right, pixel - below).sum(-1) / abs(major)
        return sinogram

    data = forward()

    def adjoint() -> torch.Tensor:
        image = images.new_zeros((len(images), size, size))
        for view, angle in enumerate(geometry.angles):
            c, s = math.cos(angle), math.sin(angle)
            m = max(abs(c), abs(s))
            exact = line[:, None] * c + line * s + (bins - 1) / 2
            below = exact.floor()
            for tap in (below, below + 1):
                weight = (1 - (exact - tap).abs() / m).clamp_min(0) / m
                image += weight * data[:, view, tap.clamp(0, bins - 1).to(torch.int64)]
        return image

    return {"forward": forward, "adjoint": adjoint}


def astra_toolbox(kernel: str) -> Callable[[ParallelBeam, torch.Tensor], Calls]:
    """ASTRA's CPU projectors, one image after the other; FBP with its Ram-Lak filter."""
    import astra

    def build(geometry: ParallelBeam, images: torch.Tensor) -> Calls:
        size = geometry.image_shape[0]
        volume = astra.create_vol_geom(size, size)
        scan = astra.create_proj_geom("parallel", geometry.bin_width, geometry.bins, np.asarray(geometry.angles))
        projector = astra.create_projector(kernel, scan, volume)
        batch = [image[0].numpy() for image in images]
        data = [forward_one(astra, projector, image) for image in batch]
        return {
            "forward": lambda: [forward_one(astra, projector, image) for image in batch],
            "adjoint": lambda: [adjoint_one(astra, projector, sinogram) for sinogram in data],
            "fbp": lambda: [fbp_one(astra, projector, scan, volume, sinogram) for sinogram in data],
        }

    return build


def forward_one(astra: Any, projector: int, image: np.ndarray) -> np.ndarray:
    """One image through ASTRA."""
    number, sinogram = astra.create_sino(image, projector)
    astra.data2d.delete(number)
    return sinogram


def adjoint_one(astra: Any, projector: int, sinogram: np.ndarray) -> np.ndarray:
    """One sinogram back through ASTRA."""
    number, image = astra.create_backprojection(sinogram, projector)
    astra.data2d.delete(number)
    return image


def fbp_one(astra: Any, projector: int, scan: Any, volume: Any, sinogram: np.ndarray) -> np.ndarray:
    """One FBP by ASTRA."""
    data, image = astra.data2d.create("-sino", scan, sinogram), astra.data2d.create("-vol", volume)
    settings = astra.astra_dict("FBP") | {
        "ProjectorId": projector,
        "ProjectionDataId": data,
        "ReconstructionDataId": image,
    }
    algorithm = astra.algorithm.create(settings)
    astra.algorithm.run(algorithm)
    result = astra.data2d.get(image)
    astra.algorithm.delete(algorithm)
    astra.data2d.delete([data, image])
    return result


def scikit_image(geometry: ParallelBeam, images: torch.Tensor) -> Calls:
    """scikit-image: rotates the image; its unfiltered iradon is not an exact adjoint."""
    from skimage.transform import iradon, radon

    degrees = np.rad2deg(np.asarray(geometry.angles))
    batch = [image[0].numpy() for image in images]
    data = [radon(image, theta=degrees, circle=False) for image in batch]
    size = geometry.image_shape[0]

    def back(name: str | None) -> list[np.ndarray]:
        return [iradon(one, theta=degrees, circle=False, filter_name=name, output_size=size) for one in data]

    return {
        "forward": lambda: [radon(image, theta=degrees, circle=False) for image in batch],
        "adjoint": lambda: back(None),
        "fbp": lambda: back("ramp"),
    }


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules instead of torchvision, which deepinv imports, which its tomography does not use, and which does
    not go with every build of torch."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = empty_class  # type: ignore[method-assign]


def empty_class(name: str) -> type:
    """Whatever is asked of a stand-in."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def deep_inverse(geometry: ParallelBeam, images: torch.Tensor) -> Calls:
    """deepinv's tomography operator, with its exact adjoint; up to 128 x 128, beyond that a call takes minutes."""
    import deepinv

    degrees = torch.rad2deg(torch.tensor(geometry.angles, dtype=torch.float32))
    physics = deepinv.physics.Tomography(
        degrees, geometry.image_shape[0], circle=False, adjoint_via_backprop=True, normalize=False
    )
    sinogram = physics.A(images)
    return {"forward": lambda: physics.A(images), "adjoint": lambda: physics.A_adjoint(sinogram)}


def peers() -> tuple[dict[str, Callable[[ParallelBeam, torch.Tensor], Calls]], list[str]]:
    """The peers that can be imported, and a line for each that cannot."""
    found: dict[str, Callable[[ParallelBeam, torch.Tensor], Calls]] = {}
    missing = []
    for module, make in {
        "astra": lambda: {"astra linear": astra_toolbox("linear"), "astra line": astra_toolbox("line")},
        "skimage": lambda: {"scikit-image": scikit_image},
        "deepinv": lambda: {"deepinv": deep_inverse},
    }.items():
        if module == "deepinv" and importlib.util.find_spec("torchvision") is None:
            sys.meta_path.append(StandIn())
        try:
            __import__(module)
            found |= make()
        except Exception as error:  # whatever keeps a peer from being imported
            missing.append(f"{module}: {type(error).__name__}: {error}".split("\n")[0])
    return found, missing


def median_seconds(call: Callable[[], Any], device: str = "cpu") -> float:
    """The median over repetitions, after one that is not counted, unless that one takes long enough to speak for
    itself."""
    if device != "cpu":
        return median_ms(call, 11, 2) / 1000
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    if first > 2.5 * SECONDS:
        return first
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < SECONDS and len(seconds) < 200):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a Markdown file for the table")
    parser.add_argument("--sizes", help="image sizes, with commas between; all by default")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    others, missing = peers() if options.device == "cpu" else ({}, [])
    rows = []
    sizes = CPU_SIZES if options.device == "cpu" else GPU_SIZES
    wanted = [int(size) for size in options.sizes.split(",")] if options.sizes else [entry[0] for entry in sizes]
    for size, views, batches in [entry for entry in sizes if entry[0] in wanted]:
        bins = 2 * math.ceil(size / math.sqrt(2)) + 1
        geometry = ParallelBeam((np.arange(views) + 0.5) * math.pi / views, bins, image_shape=(size, size))
        own = [FREE, MATRIX] if entry_count(geometry) < MOST_TIMED else [FREE]
        setup = {name: setup_seconds(name.split()[-1], geometry, options.device) for name in own}
        for batch in batches:
            images = ellipses.generate(batch, (size, size), seed=0).to(options.device)
            builders = {name: ours(name.split()[-1], options.device) for name in own}
            if options.device == "cpu":
                builders["plain PyTorch"] = plain_torch
            builders |= {name: build for name, build in others.items() if name != "deepinv" or size <= 128}
            timed = {name: time_all(build(geometry, images), options.device) for name, build in builders.items()}
            for name, seconds in timed.items():
                row = {"size": size, "views": views, "batch": batch, "projector": name, "seconds": seconds}
                row["ratio"] = {step: seconds[step] / timed[FREE][step] for step in seconds}
                row["setup"] = setup.get(name, {})
                if options.device == "cuda":
                    row |= gpu_figures(name.split()[-1], geometry, images, seconds)
                rows.append(row)
                print(json.dumps(row), flush=True)
    text = table(rows, missing, options.device)
    print(text)
    if options.out:
        write_text(options.out, text)


def gpu_figures(
    projector: str, geometry: ParallelBeam, images: torch.Tensor, seconds: dict[str, float]
) -> dict[str, Any]:
    """Peak memory of forward and of adjoint divided by that of input and output, and the floor divided by the time.

    The floor: every weight reads one number of every image from the nearest cache, 128 bytes per clock and multiprocessor.
    """
    operator = ray_transform(geometry, "cuda", projector=projector)
    sinogram = operator(images)
    both = (images.numel() + sinogram.numel()) * images.element_size()
    peaks = {}
    for step, call in (("forward", lambda: operator(images)), ("adjoint", lambda: operator.adjoint(sinogram))):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        torch.cuda.synchronize()
        peaks[step] = (torch.cuda.max_memory_allocated() - before + both - result.numel() * 4) / both
        del result
    rate = torch.cuda.get_device_properties(0).multi_processor_count * CACHE_RATE
    floor = entry_count(geometry) * len(images) * images.element_size() / rate
    return {"memory": peaks, "floor": {step: floor / seconds[step] for step in peaks}}


def time_all(calls: Calls, device: str) -> dict[str, float]:
    """Median seconds of each step."""
    return {name: median_seconds(call, device) for name, call in calls.items()}


def table(rows: list[dict[str, Any]], missing: list[str], device: str) -> str:
    """Milliseconds per batch, and how many times the matrix-free projector is faster."""
    day, cores = datetime.date.today().isoformat(), torch.get_num_threads()
    name = torch.cuda.get_device_name() if device == "cuda" else f"{cores} CPU cores ({platform.machine()})"
    lines = [
        f"Measured {day} on {name}, torch {torch.__version__}:",
        "milliseconds for the whole batch, and in brackets how many times bayescade without a matrix is faster.",
        "",
        "| size | views | batch | projector | ready | first image | forward | adjoint | FBP |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [f"{row['setup'][step]:.2g} s" if row["setup"] else "" for step in ("ready", "first image")]
        cells += [
            f"{1e3 * row['seconds'][step]:.3g} ({row['ratio'][step]:.1f})" if step in row["seconds"] else ""
            for step in ("forward", "adjoint", "fbp")
        ]
        lines.append(f"| {row['size']} | {row['views']} | {row['batch']} | {row['projector']} | {' | '.join(cells)} |")
    lines += ["", *(f"Not measured: {line}" for line in missing)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
