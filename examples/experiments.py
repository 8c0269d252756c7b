"""Writes docs/experiments.md: what every training that was tried gave, from the metrics in the run folders.

    python examples/experiments.py runs/search/* runs/bdgd-plus_*

What is read of a run is saved in docs/experiments.json beside the page, so that the table grows where the runs themselves are
gone; a run of the same name replaces what was there. Scores are on images of the validation split, never on those of tests.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train_cells import VALIDATION

from bayescade import methods, plugins
from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.physics.geometry import measured_arc
from bayescade.storage.files import read_text, write_json, write_text
from bayescade.storage.manifest import Manifest, parts_done, read_manifest, seconds_of
from bayescade.storage.runs import METRICS

DOCS = Path(__file__).parent.parent / "docs"
INTRO = """# Experiments

Every training that was tried on the way to the shipped models, failures included.
`python examples/experiments.py RUNS...` writes this page from the runs' `metrics.jsonl`.

- PSNR in dB. "By block" is the mean over the 100 validation images of the training itself, after
  every other block (for a network: after each round).
- "Ellipses" and "Shepp-Logan" are means over 100 ellipse images and 100 random Shepp-Logan
  phantoms of the validation split, 10 samples, which no training has seen; in brackets the worst
  image. Nothing was chosen by the paper's test set.
- Changes are against the `recommended` preset, under the names that settings had when the run was
  recorded; settings that are gone (`balance`, `depth`, `weak_gain`, ...) live on here only.
- In runs named `_full-rate`, and in all older ones, every block began at the full learning rate.
  Those named `_again` are the shipped models' trainings a second time, with standard deviations by
  the fused kernels: they differ by that and by chance.
- Seconds are of one H200, and more where two or four trainings shared it.
"""
UNCHANGED = ("memory", "runner", "precision", "schedule", "tolerance")  # settings that do not change what is learned
TABLE = """
| run | changes | by block | ellipses | Shepp-Logan | NLL | seconds | remarks |
|---|---|---|---|---|---|---|---|
"""


def record_of(folder: Path) -> dict[str, Any]:
    """What the page says of a run."""
    manifest = read_manifest(folder)
    lines = [json.loads(line) for line in read_text(folder / METRICS).splitlines()]
    curve: dict[int, float] = {}
    done = max(parts_done(manifest), 1)  # of a run without a part the one under way
    for line in lines:
        if "validation_psnr" in line and line["block"] <= done:
            curve[line["block"]] = line["validation_psnr"]
    for number, block in enumerate(manifest.blocks, 1):
        if block.rounds is None:
            curve[number] = block.validation_psnr  # of the best try
    remarks = [line["failed"] for line in lines if "failed" in line]
    if manifest.status != "done":
        remarks.append("cut off")
    ended = manifest.ended.warnings if manifest.ended is not None else ()
    remarks += [warning for warning in ended if warning not in remarks]
    scored = folder / VALIDATION
    return {
        "name": folder.name,
        "method": manifest.method,
        "case": manifest.case,
        "preset": manifest.preset,
        "changes": changes(manifest),
        "curve": [round(curve[block], 2) for block in sorted(curve)],
        "validation": json.loads(read_text(scored)) if scored.exists() else None,
        "seconds": manifest.training_seconds or seconds_of(manifest),
        "remarks": remarks,
    }


def changes(manifest: Manifest) -> str:
    """The settings that are not those of its preset, on the day that it is recorded."""
    method, geometry = plugins.load(methods, manifest.method), case_geometry(manifest.case)
    base = dataclasses.asdict(method.preset(manifest.preset, geometry.views, measured_arc(geometry)))
    changed = [] if manifest.preset == "recommended" else [f"preset {manifest.preset}"]
    for part, values in base.items():
        then = manifest.settings.get(part, {})
        for name, value in values.items():
            was = then.get(name, value)
            if was != value and name not in UNCHANGED:
                changed.append(f"{name} {was:g}" if isinstance(was, float) else f"{name} {was}")
    return ", ".join(changed) or "none"


def row(record: dict[str, Any]) -> str:
    """A line of the table."""
    scores = record["validation"] or {}

    def score(phantom: str) -> str:
        values = scores.get(phantom)
        return f"{values['psnr']:.2f} ({values['worst']:.1f})" if values else ""

    nll = (scores.get("ellipses") or {}).get("nll")
    curve = record["curve"]
    shown = curve if len(curve) < 4 else [*curve[:-1][::2], curve[-1]]
    cells = [
        record["name"],
        record["changes"],
        " ".join(f"{value:.1f}" for value in shown),
        score("ellipses"),
        score("random-shepp-logan"),
        f"{nll:.2f}" if nll is not None else "",
        f"{record['seconds']:.0f}",
        "; ".join(record["remarks"]),
    ]
    return "| " + " | ".join(cells) + " |"


def page(records: Sequence[dict[str, Any]]) -> str:
    """The whole page, geometry after geometry."""
    parts = [INTRO]
    for case in PAPER_CASES:
        own = [record for record in records if record["case"] == case]
        if not own:
            continue
        own.sort(key=lambda record: (record["method"], record["name"]))
        parts.append(f"\n## {case}\n{TABLE}")
        parts += [row(record) + "\n" for record in own]
    return "".join(parts)


def main() -> None:
    """Adds runs to the records and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", nargs="*", help="run folders")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the page and of its records")
    options = parser.parse_args()
    saved = options.docs / "experiments.json"
    records = {record["name"]: record for record in json.loads(read_text(saved))} if saved.exists() else {}
    for run in options.runs:
        if (Path(run) / METRICS).exists():
            records[Path(run).name] = record_of(Path(run))
    ordered = [records[name] for name in sorted(records)]
    write_json(saved, ordered)
    write_text(options.docs / "experiments.md", page(ordered))


if __name__ == "__main__":
    main()
