"""What commands print: an answer as JSON or as lines of text, and warnings."""

import json
import sys
from collections.abc import Sequence
from typing import Any


def table(rows: Sequence[dict[str, Any]], paper: dict[str, dict[str, tuple[float, float]]] | None = None) -> list[str]:
    name_width = max(12, *(len(row["method"]) + 2 for row in rows))
    lines = [
        f"{'method':{name_width}}{'case':14}{'images':>7}{'PSNR':>9}{'Shepp-Logan':>13}{'SSIM':>8}"
        + ("   paper" if paper else "")
    ]
    for row in rows:
        numbers = (_cell(row["psnr"], 9, 2), _cell(row["psnr_shepp_logan"], 13, 2), _cell(row["ssim"], 8, 4))
        paper_pair = (paper or {}).get(row["method"], {}).get(row["case"])
        paper_text = f"   {paper_pair[0]:.2f} / {paper_pair[1]:.2f}" if paper_pair else ""
        lines.append(f"{row['method']:{name_width}}{row['case']:14}{row['images']:>7}{''.join(numbers)}{paper_text}")
    return lines


def uncertainty_lines(scores: dict[str, Any] | None) -> list[str]:
    if scores is None:
        return []
    if scores["nll"] is None or None in scores["coverage"].values():
        return ["the uncertainty cannot be scored: some of its values are not finite numbers"]
    coverages = ", ".join(f"{float(level):.0%} -> {coverage:.1%}" for level, coverage in scores["coverage"].items())
    return [
        f"coverage of intervals: {coverages}",
        f"NLL {scores['nll']:.3f}, CRPS {scores['crps']:.5f}, epistemic share {scores['epistemic_share']:.2%}",
    ]


def _cell(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"


def print_warnings(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        if row.get("warning"):
            name = " ".join(row[key] for key in ("model", "method", "case", "name") if key in row)
            print(f"bayescade: warning: {name}: {row['warning']}", file=sys.stderr)


def print_answer(answer: dict[str, Any], lines: Sequence[str], as_json: bool) -> None:
    print(json.dumps(answer, allow_nan=False) if as_json else "\n".join(lines))


def counted(label: str, lists: Sequence[Sequence[str]]) -> list[str]:
    """The texts of all images, at most three, each with the image it is about."""
    texts = [(index, text) for index, items in enumerate(lists) for text in items]
    several = len(lists) > 1
    lines = [f"{label}{f' (image {index})' if several else ''}: {text}" for index, text in texts[:3]]
    return lines + ([f"and {len(texts) - 3} more: see the result file"] if len(texts) > 3 else [])
