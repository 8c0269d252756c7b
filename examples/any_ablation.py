"""What helps a model for any scan: trainings that differ in one setting, scored on validation scans.

    python examples/any_ablation.py --images patients.npz --out runs/ablation --set data.images=4000 --set greedy.blocks=8

Several trainings run at once on one GPU. Each is a run folder, so the same command continues after a kill; `--seconds` ends it.
The scores are PSNR and claimed error over found error on scans of the validation split, none of which decides anything in a
table of test scans. `--only NAME` chooses variants.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from bayescade.data.images import read_images
from bayescade.devices import choose_device
from bayescade.metrics.psnr import psnr
from bayescade.models import load_model
from bayescade.pipeline.any_rows import all_rows
from bayescade.pipeline.benchmark_any import VALIDATION, AnyBenchmark, Bench, row_scans
from bayescade.storage.manifest import read_manifest

OTHERS = "filtered-residual, noise, coverage"
VARIANTS: dict[str, list[str]] = {
    "standard": [],
    "rate-5e-4": ["joint.learning_rate=5e-4"],
    "rate-2e-3": ["joint.learning_rate=2e-3"],
    "batch-8": ["joint.batch=8"],
    "batch-32": ["joint.batch=32"],
    "10-blocks-of-3-scales": ["greedy.blocks=10", "block.scales=3"],
    "12-blocks-of-2-scales": ["greedy.blocks=12", "block.scales=2"],
    "12-blocks-of-1-scale": ["greedy.blocks=12", "block.scales=1", "block.channels=32", "block.memory_channels=4"],
    "5-blocks": ["greedy.blocks=5"],
    "width-12": ["block.channels=12"],
    "memory-16": ["block.memory_channels=16"],
    "no-memory": ["block.memory_channels=0"],
    "fbp-start": ["scans.tv_iterations=0"],
    "coarse": [f"scans.planes=level, {OTHERS}, coarse"],
    "no-level": [f"scans.planes={OTHERS}"],
    "no-filtered-residual": ["scans.planes=level, noise, coverage"],
    "no-noise": ["scans.planes=level, filtered-residual, coverage"],
    "no-coverage": ["scans.planes=level, filtered-residual, noise"],
    "greedy-first": ["fit.epochs=1", "fit.learning_rate=1e-3"],
}
ROWS = (
    "ellipses-views-16",
    "ellipses-views-32",
    "ellipses-views-90",
    "ellipses-views-32-noise-4",
    "ellipses-fan-64",
    "ellipses-arc-90",
    "ellipses-arc-120",
    "textured-views-32",
    "lines-views-32",
)


def train_all(options: argparse.Namespace, names: list[str]) -> None:
    """Trains the variants, several at once, until all are done or the time is over."""
    deadline, waiting, running = time.monotonic() + options.seconds, list(names), {}
    threads = max(1, (os.cpu_count() or 1) // options.at_once)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < options.at_once:
                name = waiting.pop(0)
                running[name] = subprocess.Popen(command(options, name), env=environment, stdout=sys.stderr)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                print(f"{name}: exit code {running.pop(name).returncode}", file=sys.stderr, flush=True)
            time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
            process.wait()


def command(options: argparse.Namespace, name: str) -> list[str]:
    """What trains a variant."""
    settings = [*options.set, *VARIANTS[name]]
    line = [
        sys.executable,
        "-m",
        "bayescade",
        "train",
        "bdgd-plus",
        "--preset",
        "any",
        "--out",
        str(options.out / name),
    ]
    line += ["--device", options.device] + (["--images", options.images] if options.images else [])
    return line + [part for text in settings for part in ("--set", text)]


def scores(options: argparse.Namespace, name: str) -> dict[str, object]:
    """Gains of the blocks of a variant, and its scores on validation scans."""
    folder = options.out / name
    manifest = read_manifest(folder)
    stored = read_images(options.images) if options.images else None
    request = AnyBenchmark(str(folder), images=options.scans, validation_images=options.scans)
    bench = Bench(request, choose_device(options.device), stored, None, "")
    found = {
        "variant": name,
        "blocks": [round(block.validation_psnr, 2) for block in manifest.blocks],
        "seconds": round(sum(block.seconds for block in manifest.blocks), 1),
    }
    for row in all_rows():
        if row.name in ROWS:
            scans = row_scans(bench, row, VALIDATION)
            result = load_model(str(folder), row.geometry, device=bench.device)(scans.sinogram, samples=4)
            error = (result.image.to(scans.truth) - scans.truth).square().mean()
            claimed = float((result.variance.mean().to(error) / error).sqrt())
            mean = float(psnr(result.image.to(scans.truth), scans.truth, 1.0).mean())
            found[row.name] = [round(mean, 2), round(claimed, 2)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", help="images to train on beside phantoms")
    parser.add_argument("--set", action="append", default=[], help="a setting of all variants")
    parser.add_argument("--only", action="append", choices=list(VARIANTS), help="a variant; repeatable")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--scans", type=int, default=12, help="validation scans of a row; 0: no scores")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    names = options.only or list(VARIANTS)
    options.out.mkdir(parents=True, exist_ok=True)
    train_all(options, names)
    if not options.scans:
        return
    with (options.out / "ablation.jsonl").open("w") as file:
        for name in names:
            if (options.out / name / "manifest.json").exists() and read_manifest(options.out / name).blocks:
                line = json.dumps(scores(options, name))
                print(line, flush=True)
                file.write(line + "\n")
    if torch.cuda.is_available():
        print(f"largest memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB", file=sys.stderr)


if __name__ == "__main__":
    main()
