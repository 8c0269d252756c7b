"""Trains cells of the paper's table, one after the other, within a time limit, and goes on where it was stopped.

    python examples/train_cells.py configs/paper --out runs --limit 540

A file METHOD_CASE.toml, or METHOD_CASE_VARIANT.toml, has the settings of a cell, those it does not name from the recommended
preset; its run folder is OUT with the file's name. Cells that are done are passed over; the one that the limit cuts off goes on
next time after its last block or round. `--order slow` begins with those that have most blocks times epochs, so that what is
left at the end is short. `--jobs 4` trains four at a time on one GPU, which fills the gaps that each leaves (NVIDIA's
multi-process service, if it runs, lets their kernels share the GPU too). `--score 100` reconstructs 100 ellipse images and 100
random Shepp-Logan phantoms of the validation split when a cell is done: validation.json in its run folder, which
`examples/experiments.py` reads. OUT/cells.json says what became of each.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from bayescade import methods, plugins
from bayescade.config import load_settings
from bayescade.data.noise import Noise
from bayescade.data.simulate import scan_set
from bayescade.data.sources import image_source
from bayescade.devices import choose_device
from bayescade.errors import Failure, UserError
from bayescade.models import load_model
from bayescade.physics.cases import case_geometry
from bayescade.physics.geometry import measured_arc
from bayescade.pipeline.evaluate import score, score_row
from bayescade.pipeline.train import train
from bayescade.progress import show_progress
from bayescade.storage.files import write_json
from bayescade.storage.manifest import MANIFEST, model_hash, read_manifest

VALIDATION = "validation.json"  # in a run folder: scores on images of the validation split
PHANTOMS = ("ellipses", "random-shepp-logan")
SAMPLES = 10


class OutOfTime(Exception):
    """The limit is reached."""


def stop(number: int, frame: FrameType | None) -> None:
    """Ends the training under way: the blocks that are saved stay."""
    raise OutOfTime


def cells(folder: str, only: str | None) -> list[Path]:
    """The configurations, by name."""
    paths = sorted(Path(folder).glob("*_*.toml"))
    wanted = only.split(",") if only else [path.stem for path in paths]
    unknown = [name for name in wanted if name not in [path.stem for path in paths]]
    if unknown or not paths:
        raise SystemExit(f"{folder}: no configuration {', '.join(unknown) or '*_*.toml'}")
    return [Path(folder) / f"{name}.toml" for name in wanted]


def length(path: Path) -> int:
    """Blocks times epochs times images."""
    method_name, case = path.stem.split("_")[:2]
    method, geometry = plugins.load(methods, method_name), case_geometry(case)
    base = method.preset("recommended", geometry.views, measured_arc(geometry))
    settings = load_settings(method.Settings, str(path), base=base)
    blocks = settings.greedy.blocks if hasattr(settings, "greedy") else 1
    return int(blocks * settings.fit.epochs * settings.data.images)


def status(folder: Path) -> str:
    """What there is of a cell that there is no time for."""
    if not (folder / MANIFEST).exists():
        return "not begun"
    return "done" if read_manifest(folder).status == "done" else "cut off"


def train_cell(path: Path, out: Path, limit: float, images: int, device: str) -> dict[str, Any]:
    """Trains one cell, in at most so many seconds."""
    method, case = path.stem.split("_")[:2]
    signal.signal(signal.SIGALRM, stop)
    if limit < float("inf"):
        signal.setitimer(signal.ITIMER_REAL, max(limit, 0.001))
    try:
        answer = train(method, str(out), case=case, noise=Noise(), config=str(path), device=device)
        if images:
            score_cell(out, images, device)
        return {"cell": path.stem, "status": "done", **answer}
    except OutOfTime:
        return {"cell": path.stem, "status": "cut off"}
    except (Failure, UserError) as error:
        return {"cell": path.stem, "status": f"failed: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def score_cell(run: Path, images: int, device: str) -> None:
    """Mean PSNR for every kind of phantom, on images of neither training nor test; not again for the same weights."""
    manifest = read_manifest(run)
    key = {"images": images, "samples": SAMPLES, "model": model_hash(manifest)}
    saved = json.loads((run / VALIDATION).read_text()) if (run / VALIDATION).exists() else {}
    if saved.items() >= key.items():
        return
    geometry = case_geometry(manifest.case)
    torch_device = choose_device(device)
    method = load_model(str(run), geometry, device=torch_device)
    scored: dict[str, Any] = {**key}
    for phantom in PHANTOMS:
        source = image_source(phantom, geometry.image_shape, seed=1, split="validation", device=torch_device)
        scans = scan_set(source, geometry, Noise(), seed=1, count=images, device=torch_device)
        scores, result = score(method, scans, geometry, samples=SAMPLES, seed=0)
        row = score_row(str(run), manifest.case, images, scores, result.warning)
        worst = min((value for value in scores["psnr"] if value is not None), default=None)
        scored[phantom] = {"psnr": row["psnr"], "worst": worst, "nll": (row["uncertainty"] or {}).get("nll")}
    write_json(run / VALIDATION, scored)


def train_apart(path: Path, options: argparse.Namespace, until: float) -> dict[str, Any]:
    """Trains one cell in a process of its own."""
    left = until - time.perf_counter()
    folder = Path(options.out) / path.stem
    if left <= 0:
        return {"cell": path.stem, "status": status(folder)}
    command = [sys.executable, __file__, str(path.parent), "--only", path.stem, "--out", options.out, "--json"]
    command += ["--score", str(options.score), "--device", options.device]
    command += ["--limit", str(left)] if left < float("inf") else []
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        return dict(json.loads(done.stdout)["cells"][0])
    except (ValueError, KeyError, IndexError):
        lines = done.stderr.strip().splitlines()
        return {"cell": path.stem, "status": f"failed: {lines[-1] if lines else 'it said nothing'}"}


def say(row: dict[str, Any]) -> None:
    """What became of a cell, in a line."""
    said = f", validation {row['validation_psnr']:.2f} dB, {row['training_seconds']:.0f} s" if "out" in row else ""
    print(f"{row['cell']}: {row['status']}{said}", flush=True)


def main() -> None:
    """Trains, and says what is done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("configs", help="folder with METHOD_CASE.toml files")
    parser.add_argument("--only", help="names of files with commas between, in the order they are trained")
    parser.add_argument("--order", choices=["given", "slow"], default="given")
    parser.add_argument("--out", default="runs")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--score", type=int, default=0, help="validation images that a finished cell is scored on")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true", help="one JSON object, and no words")
    options = parser.parse_args()
    chosen = cells(options.configs, options.only)
    if options.order == "slow":
        chosen.sort(key=length, reverse=True)
    rows = []
    begin = time.perf_counter()
    until = begin + options.limit
    if options.jobs > 1:
        with ThreadPoolExecutor(options.jobs) as pool:
            for row in pool.map(lambda path: train_apart(path, options, until), chosen):
                rows.append(row)
                say(row)
    else:
        show_progress()
        for path in chosen:
            left, folder = until - time.perf_counter(), Path(options.out) / path.stem
            row = {"cell": path.stem, "status": status(folder)}
            if left > 0:
                row = train_cell(path, folder, left, options.score, options.device)
            rows.append(row)
            if not options.json:
                say(row)
    if options.json:
        print(json.dumps({"cells": rows}))
    else:
        seconds = time.perf_counter() - begin
        write_json(Path(options.out) / "cells.json", {"cells": rows, "seconds": seconds, "jobs": options.jobs})


if __name__ == "__main__":
    main()
