"""Trains cells of the paper's table, one after the other, within a time limit, and goes on where it was stopped.

    python examples/train_cells.py configs/paper --out runs --limit 540

A file METHOD_CASE.toml has the settings of a cell; its run folder is OUT/METHOD_CASE. Cells that are done are passed over;
the one that the limit cuts off goes on next time behind its last block or round. `--order slow` begins with those that have
most blocks times epochs, so that what is left at the end is short. OUT/cells.json says what became of each.
"""

import argparse
import signal
import time
from pathlib import Path
from types import FrameType

from bayescade import methods, shelf
from bayescade.config import load_settings
from bayescade.data.simulate import Noise
from bayescade.errors import Failure, UserError
from bayescade.files import write_json
from bayescade.physics.cases import case_geometry
from bayescade.pipeline.train import train
from bayescade.progress import show_progress
from bayescade.runs import MANIFEST, read_manifest


class OutOfTime(Exception):
    """The limit is reached."""


def stop(number: int, frame: FrameType | None) -> None:
    """Ends the training under way: what it has kept stays."""
    raise OutOfTime


def cells(folder: str, only: str | None) -> list[Path]:
    """The configurations, by name."""
    found = sorted(Path(folder).glob("*_*.toml"))
    wanted = only.split(",") if only else [path.stem for path in found]
    unknown = [name for name in wanted if name not in [path.stem for path in found]]
    if unknown or not found:
        raise SystemExit(f"{folder}: no configuration {', '.join(unknown) or '*_*.toml'}")
    return [Path(folder) / f"{name}.toml" for name in wanted]


def length(path: Path) -> int:
    """Blocks times epochs."""
    method_name, case = path.stem.split("_")
    method = shelf.take(methods, method_name)
    settings = load_settings(method.Settings, str(path), base=method.preset("recommended", case_geometry(case)))
    blocks = settings.greedy.blocks if hasattr(settings, "greedy") else 1
    return int(blocks * settings.fit.epochs)


def status(folder: Path) -> str:
    """What there is of a cell that there is no time for."""
    if not (folder / MANIFEST).exists():
        return "not begun"
    return "done" if read_manifest(folder)["status"] == "done" else "cut off"


def main() -> None:
    """Trains, and says what is done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("configs", help="folder with METHOD_CASE.toml files")
    parser.add_argument("--only", help="names METHOD_CASE with commas between, in the order they are trained")
    parser.add_argument("--order", choices=["given", "slow"], default="given")
    parser.add_argument("--out", default="runs")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    show_progress()
    chosen = cells(options.configs, options.only)
    if options.order == "slow":
        chosen.sort(key=length, reverse=True)
    rows = []
    begin = time.perf_counter()
    signal.signal(signal.SIGALRM, stop)
    for path in chosen:
        left = options.limit - (time.perf_counter() - begin)
        folder = Path(options.out) / path.stem
        if left <= 0:
            rows.append({"cell": path.stem, "status": status(folder)})
            continue
        if left < float("inf"):
            signal.setitimer(signal.ITIMER_REAL, left)
        method, case = path.stem.split("_")
        try:
            answer = train(method, str(folder), case=case, noise=Noise(), config=str(path), device=options.device)
            rows.append({"cell": path.stem, "status": "done", **answer})
        except OutOfTime:
            rows.append({"cell": path.stem, "status": "cut off"})
        except (Failure, UserError) as error:
            rows.append({"cell": path.stem, "status": f"failed: {error}"})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        row = rows[-1]
        said = f", validation {row['validation_psnr']:.2f} dB, {row['training_seconds']:.0f} s" if "out" in row else ""
        print(f"{row['cell']}: {row['status']}{said}", flush=True)
    write_json(Path(options.out) / "cells.json", {"cells": rows})


if __name__ == "__main__":
    main()
