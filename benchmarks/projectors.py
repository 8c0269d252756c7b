"""Projectors against their peers, in one run: forward, adjoint and FBP, as ratios.

For every size the same parallel-beam scan (angles evenly over 180 degrees, bins of one pixel, enough to see the whole image)
is done by bayescade, ASTRA (CPU, line and linear kernels), scikit-image (which chooses its own bins) and, where it can be
imported, deepinv. A peer takes one image at a time if that is how it works. bayescade's stored matrix is built before the
clock starts (0.2 s at 128 x 128 with 32 views, 40 s at 512 x 512 with 720); the peers compute on the fly. The figure that
counts is the ratio of images per second in this run; milliseconds depend on the machine.

    python benchmarks/projectors.py                     # peers that are not installed are named and left out
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

from bayescade import ParallelBeam, ray_transform
from bayescade.phantoms import ellipses
from bayescade.storage.files import write_text

# (image size, views, batch sizes)
SIZES = [(128, 32, (1, 16, 100)), (128, 128, (1, 16, 100)), (512, 720, (1, 4))]
SECONDS = 2.0  # of repetitions per figure, and at least three of them; a call of over 5 seconds is done once
Calls = dict[str, Callable[[], Any]]  # "forward", "adjoint", "fbp" -> one call on the whole batch


def ours(geometry: ParallelBeam, images: torch.Tensor) -> Calls:
    """bayescade: the whole batch in one call."""
    operator = ray_transform(geometry)
    sinogram = operator(images)
    return {
        "forward": lambda: operator(images),
        "adjoint": lambda: operator.adjoint(sinogram),
        "fbp": lambda: operator.fbp(sinogram),
    }


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
    """Empty modules instead of torchvision, which deepinv imports, which its tomography does not use, and which does not go
    with every build of torch."""

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


def median_seconds(call: Callable[[], Any]) -> float:
    """The median over repetitions, after one that is not counted, unless that one takes long enough to speak for itself."""
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
    parser.add_argument("--sizes", default="128,512", help="image sizes, with commas between")
    options = parser.parse_args()
    others, missing = peers()
    rows = []
    wanted = [int(size) for size in options.sizes.split(",")]
    for size, views, batches in [entry for entry in SIZES if entry[0] in wanted]:
        bins = 2 * math.ceil(size / math.sqrt(2)) + 1
        geometry = ParallelBeam((np.arange(views) + 0.5) * math.pi / views, bins, image_shape=(size, size))
        for batch in batches:
            images = ellipses.generate(batch, (size, size), seed=0)
            builders = {
                "bayescade": ours,
                **{name: build for name, build in others.items() if name != "deepinv" or size <= 128},
            }
            timed = {name: time_all(build(geometry, images)) for name, build in builders.items()}
            for name, seconds in timed.items():
                row = {"size": size, "views": views, "batch": batch, "projector": name, "seconds": seconds}
                row["ratio"] = {step: seconds[step] / timed["bayescade"][step] for step in seconds}
                rows.append(row)
                print(json.dumps(row), flush=True)
    text = table(rows, missing)
    print(text)
    if options.out:
        write_text(options.out, text)


def time_all(calls: Calls) -> dict[str, float]:
    """Median seconds of each step."""
    return {name: median_seconds(call) for name, call in calls.items()}


def table(rows: list[dict[str, Any]], missing: list[str]) -> str:
    """Milliseconds per batch, and how many times bayescade is faster."""
    day, cores = datetime.date.today().isoformat(), torch.get_num_threads()
    lines = [
        f"Measured {day} on {cores} CPU cores ({platform.machine()}), torch {torch.__version__}:",
        "milliseconds for the whole batch, and in brackets how many times bayescade is faster in images per second.",
        "",
        "| size | views | batch | projector | forward | adjoint | FBP |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            f"{1e3 * row['seconds'][step]:.3g} ({row['ratio'][step]:.1f})" if step in row["seconds"] else ""
            for step in ("forward", "adjoint", "fbp")
        ]
        lines.append(f"| {row['size']} | {row['views']} | {row['batch']} | {row['projector']} | {' | '.join(cells)} |")
    lines += ["", *(f"Not measured: {line}" for line in missing)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
