"""Time and memory of projection and of sampling against image size, views, blocks, samples and batch.

    python benchmarks/scaling.py --json scaling-cpu.json                 # on a GPU: --device cuda
    python benchmarks/scaling.py --plot docs/images/scaling.png scaling-cpu.json scaling-gpu.json

One quantity is varied over two decades, the others stay at their base values. Projection is one forward and one
adjoint without a stored matrix; sampling is all of it: FBP, samples, blocks, projections, moments. Times are medians.
Memory is the peak of the call above what was there before it: of the process on a CPU, of torch's allocator on a GPU.
The slope is that of a straight line through the points of the upper decade, both axes logarithmic: 1 means
proportional."""

import argparse
import ctypes
import gc
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import median_ms

from bayescade.blocks import heteroscedastic
from bayescade.blocks.convolution import channels_last
from bayescade.blocks.settings import BlockSettings
from bayescade.inference.monte_carlo import InferenceSettings, Sampler
from bayescade.networks.cascade import Cascade
from bayescade.physics.geometry import ParallelBeam
from bayescade.physics.problem import InverseProblem
from bayescade.projectors import ray_transform

BASE = {
    "cpu": {"pixels": 128**2, "views": 32, "blocks": 2, "samples": 4, "images": 1},
    "cuda": {"pixels": 256**2, "views": 256, "blocks": 4, "samples": 20, "images": 8},
}
SIDES = {"cpu": (32, 64, 128, 256, 512), "cuda": (64, 128, 256, 512, 1024)}
VALUES = {
    "pixels": [],  # the squares of the sides
    "views": [10, 30, 100, 300, 1000],
    "blocks": [1, 3, 10, 30, 100],
    "samples": [2, 6, 20, 60, 200],
    "images": [1, 3, 10, 30, 100],
}
PROJECTED = ("pixels", "views", "images")  # what a projection depends on
Row = dict[str, Any]


def problem_of(values: dict[str, int], device: str) -> InverseProblem:
    """A parallel scan with bins of a pixel, without a stored matrix."""
    size, views = math.isqrt(values["pixels"]), values["views"]
    angles = (np.arange(views) + 0.5) * math.pi / views
    geometry = ParallelBeam(angles, 2 * math.ceil(size / math.sqrt(2)) + 1, image_shape=(size, size))
    return InverseProblem(ray_transform(geometry, device, projector="matrix-free"), norm=1.4 * math.sqrt(size * views))


def projection(values: dict[str, int], device: str) -> Callable[[], object]:
    """One forward and one adjoint."""
    operator = problem_of(values, device).operator
    images = torch.rand((values["images"], *operator.domain_shape), device=device)
    return lambda: operator.adjoint(operator(images))


def sampling(values: dict[str, int], device: str) -> Callable[[], object]:
    """A reconstruction with samples."""
    blocks = []
    for seed in range(values["blocks"]):
        block = heteroscedastic.build(BlockSettings(), torch.Generator().manual_seed(seed))
        channels_last(block)
        blocks.append(block)
    sampler = Sampler(Cascade(blocks).requires_grad_(False).to(device), InferenceSettings())
    problem = problem_of(values, device)
    sinogram = problem.operator(torch.rand((values["images"], *problem.operator.domain_shape), device=device))
    return lambda: sampler.estimate(problem, sinogram, samples=values["samples"], seed=0)


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Peak memory of a call above what was there before it."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # gives free memory back
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status_bytes("VmRSS")
    call()
    return max(0, status_bytes("VmHWM") - before)


def status_bytes(name: str) -> int:
    """A figure of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(name)


def slope(x: list[int], y: list[float]) -> float:
    """Slope of log y against log x over the upper decade."""
    upper = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if a * 10.5 >= max(x) and b > 0]
    return statistics.linear_regression(*zip(*upper, strict=True)).slope if len(upper) > 1 else math.nan


def measure(device: str, seconds: float) -> list[Row]:
    """A row for every task and every varied quantity; points that would take too long are left out."""
    rows = []
    for task, make in (("projection", projection), ("sampling", sampling)):
        for name, values in {**VALUES, "pixels": [side * side for side in SIDES[device]]}.items():
            if task == "projection" and name not in PROJECTED:
                continue
            row: Row = {"task": task, "varied": name, "values": [], "milliseconds": [], "bytes": []}
            for value in values:
                call = make({**BASE[device], name: value}, device)
                first = median_ms(call, 1, 1, device == "cuda")
                repeat = 5 if first < 2000 else 1
                row["values"].append(value)
                row["milliseconds"].append(median_ms(call, repeat, 0, device == "cuda") if repeat > 1 else first)
                row["bytes"].append(peak_bytes(call, device))
                if row["milliseconds"][-1] > 1000 * seconds:
                    break
            row["time slope"] = slope(row["values"], row["milliseconds"])
            row["memory slope"] = slope(row["values"], row["bytes"])
            rows.append(row)
            print(line_of(row), flush=True)
    return rows


def line_of(row: Row) -> str:
    """A row of a Markdown table."""
    ends = [f"{row['milliseconds'][i]:.3g}" for i in (0, -1)]
    memory = [f"{row['bytes'][i] / 2**20:.3g}" for i in (0, -1)]
    return (
        f"| {row['task']} | {row['varied']} {row['values'][0]} to {row['values'][-1]} | {ends[0]} to {ends[1]} | "
        f"{row['time slope']:.2f} | {memory[0]} to {memory[1]} | {row['memory slope']:.2f} |"
    )


def plot(files: list[Path], out: Path) -> None:
    """Time and memory against each quantity; a column per quantity, one scale per row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(VALUES), figsize=(15, 6), sharey="row", sharex="col", layout="constrained")
    for file in files:
        found = json.loads(file.read_text())
        for row in found["rows"]:
            column = list(VALUES).index(row["varied"])
            style = "o-" if row["task"] == "sampling" else "s--"
            label = f"{row['task']}, {found['device']}"
            colour = "C0" if found["device"].endswith("cores") else "C1"
            for axis, key, unit in ((axes[0, column], "milliseconds", 1.0), (axes[1, column], "bytes", 2.0**20)):
                y = [max(value / unit, 1e-2) for value in row[key]]
                axis.loglog(row["values"], y, style, color=colour, label=label, markersize=4)
            axes[1, column].set_xlabel(row["varied"])
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("time of a call in ms")
    axes[1, 0].set_ylabel("peak memory of a call in MiB")
    axes[0, 0].legend(fontsize=8)
    figure.savefig(out, dpi=110)


def main() -> None:
    """Prints the table, or makes the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=20.0, help="a longer call ends its row")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--plot", type=Path, help="draw this figure from the files of earlier runs")
    parser.add_argument("files", type=Path, nargs="*")
    options = parser.parse_args()
    if options.plot:
        plot(options.files, options.plot)
        return
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU cores"
    print(f"{name}; base values {BASE[options.device]}\n")
    print("| task | varied | milliseconds | slope | peak MiB | slope |\n|---|---|---|---|---|---|")
    rows = measure(options.device, options.seconds)
    if options.json:
        options.json.write_text(json.dumps({"device": name, "base": BASE[options.device], "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
