"""How large is the error of a model for any scan, compared with the disagreement of its eight passes?

    error = ratio * disagreement,    one ratio for all scans

    python examples/error_ratio.py any --scans 400 --images patients.npz

prints the ratio by kind of object, number of views and arc; `--write` stores it in the manifest of the model (a run
folder). With a stored ratio it also compares the errors that are claimed with it and without it, which should be done with
another seed. About 3 s a scan on two cores.
"""

import argparse
import itertools
import math
from collections.abc import Callable

import numpy as np

from bayescade.calibration.error_ratio import ScanError, random_scan_errors, set_error_ratio
from bayescade.data.images import read_images
from bayescade.methods._any_scan import AnyScanModel
from bayescade.models import load_model, model_folder
from bayescade.physics.geometry import measured_arc
from bayescade.progress import progress, show_progress
from bayescade.uncertainty.disagreement import fit_ratio

VIEWS = (8, 16, 32, 64, 128, 361)
ARCS = (60, 100, 140, 175, 181)


def row(name: str, errors: list[ScanError]) -> str:
    """A row of the table: quantiles of error / disagreement over scans."""
    if not errors:
        return f"| {name} | 0 | | | | |"
    ratios = np.array([error.found / error.disagreement for error in errors])
    low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
    return f"| {name} | {len(errors)} | {middle:.2f} | {low:.2f} | {high:.2f} | {np.log(ratios).std():.2f} |"


def table(errors: list[ScanError]) -> list[str]:
    """The table, by kind of object, views and arc."""
    lines = [
        "| scans | number | median | 5 % | 95 % | std of the log |",
        "|---|---|---|---|---|---|",
        row("all", errors),
    ]
    for family in sorted({error.family for error in errors}):
        lines.append(row(family, [error for error in errors if error.family == family]))

    def between(key: Callable[[ScanError], float], low: float, high: float) -> list[ScanError]:
        return [error for error in errors if low <= key(error) < high]

    for low, high in itertools.pairwise(VIEWS):
        lines.append(row(f"{low} to {high - 1} views", between(lambda error: error.geometry.views, low, high)))
    for low, high in itertools.pairwise(ARCS):
        lines.append(
            row(f"{low} to {high - 1} degrees", between(lambda error: measured_arc(error.geometry), low, high))
        )
    return lines


def claims(errors: list[ScanError]) -> list[str]:
    """How the claimed errors compare with those found."""
    lines = [
        "| variance | claimed / found: median | 5 % | 95 % | from 0.8 to 1.25 | below 0.5 | std of the log |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("network", "fitted"):
        ratios = np.array([getattr(error, name) / error.found for error in errors])
        low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
        good, bad = ((ratios >= 0.8) & (ratios <= 1.25)).mean(), (ratios < 0.5).mean()
        lines.append(
            f"| {name} | {middle:.2f} | {low:.2f} | {high:.2f} | {good:.0%} | {bad:.1%} | {np.log(ratios).std():.2f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model for any scan")
    parser.add_argument("--scans", type=int, default=400)
    parser.add_argument("--images", help="an image file beside phantoms")
    parser.add_argument("--size", type=int, help="edge of the images in pixels; by default several")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", action="store_true", help="store the ratio in the manifest of the model")
    options = parser.parse_args()
    show_progress()
    model = load_model(options.model, settings=["variance=network"], device=options.device)
    if not isinstance(model, AnyScanModel):
        raise SystemExit(f"{options.model}: expected a model for any scan")
    stored = read_images(options.images) if options.images else None
    sizes = {"sizes": (options.size,)} if options.size else {}
    errors = []
    with progress("random scans", options.scans) as advance:
        for error in random_scan_errors(model, options.scans, seed=options.seed, stored=stored, **sizes):
            errors.append(error)
            advance(1)
    print("\n".join(table(errors)))
    if model.manifest.error_ratio is not None:
        print("\n".join(["", *claims(errors), ""]))
    pairs = [(error.found, error.disagreement) for error in errors if error.disagreement > 0]
    print(f"ratio {fit_ratio(*map(list, zip(*pairs, strict=True))):.3f}")
    if options.write:
        folder = model_folder(options.model)
        assert folder is not None
        print(f"wrote {set_error_ratio(folder, errors):.3f} to {folder}")
    if not all(math.isfinite(found) for found, _ in pairs):
        raise SystemExit("some images are not finite")


if __name__ == "__main__":
    main()
