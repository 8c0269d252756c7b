"""Table 1 of Barbano et al., "Quantifying Sources of Uncertainty in Deep Learning-Based Image Reconstruction" (2020).

Our results are shown next to the published results. The numbers are PSNRs in dB: the mean over 100 ellipse images, and
the PSNR of the Shepp-Logan phantom, from scans with 1 % noise.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bayescade.data.noise import Noise
from bayescade.physics.cases import PAPER_CASES

NOISE = Noise()  # 1 %
PAPER_SETTINGS = {"fbp": ("ramp=shifted",)}  # for methods with other defaults than the paper
Cell = tuple[float, float]  # PSNR of the ellipses, of Shepp-Logan

# Pairs ellipses/Shepp-Logan, in the order of PAPER_CASES.
_ROWS = {
    "fbp": "16.08/10.09 20.30/14.08 24.86/18.96 29.11/23.75 31.85/25.82 13.75/14.23 17.28/17.11 22.87/20.19",
    "tv": "28.33/17.90 32.11/35.51 34.93/35.63 35.80/36.19 36.54/36.47 28.00/26.87 31.15/29.31 34.21/33.59",
    "unet": "28.22/19.20 33.44/25.37 39.10/31.57 44.47/41.87 48.18/46.47 13.73/14.22 37.78/28.21 42.80/35.47",
    "lpd": "30.71/23.21 38.97/37.90 44.73/43.09 47.94/48.37 49.42/47.15 35.96/30.57 39.75/30.94 45.37/41.26",
    "dgd": "31.64/24.17 38.40/39.97 43.40/45.63 47.27/49.03 50.45/51.35 35.56/35.83 39.88/42.12 45.25/47.52",
    "bdgd": "30.04/21.35 37.08/37.32 42.30/41.88 48.06/50.64 51.85/54.39 32.18/29.67 37.49/36.81 45.91/49.55",
    "bdgd-plus": "31.33/23.82 38.92/37.39 45.01/45.08 48.86/51.65 53.00/56.89 33.73/32.81 40.60/44.45 48.78/52.23",
}


def published() -> dict[str, dict[str, Cell]]:
    """The published numbers: method -> case -> (ellipses, Shepp-Logan)."""
    table: dict[str, dict[str, Cell]] = {}
    for method, text in _ROWS.items():
        pairs = [cell.split("/") for cell in text.split()]
        table[method] = {case: (float(a), float(b)) for case, (a, b) in zip(PAPER_CASES, pairs, strict=True)}
    return table


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table in the form of the paper, then a table with a line for each method and case."""
    return f"{wide(rows)}\n{long(rows)}"


def wide(rows: Sequence[Mapping[str, Any]]) -> str:
    """The form of the paper: a column for each case, cells "ellipses/Shepp-Logan". The line of the paper is above our line."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    lines = ["| | " + " | ".join(cases) + " |", "|---|" + "---|" * len(cases)]
    for method in dict.fromkeys(row["method"] for row in rows):
        paper_pairs = [published().get(method, {}).get(case) for case in cases]
        by_case = {row["case"]: row for row in rows if row["method"] == method}
        our_pairs = [
            (by_case[case]["psnr"], by_case[case]["psnr_shepp_logan"])
            if case in by_case and by_case[case]["psnr"] is not None
            else None
            for case in cases
        ]
        if any(paper_pairs):
            lines.append(f"| paper, {method} | " + " | ".join(_pair(cell) for cell in paper_pairs) + " |")
        lines.append(f"| ours, {method} | " + " | ".join(_pair(cell) for cell in our_pairs) + " |")
    return "\n".join(lines) + "\n"


def _pair(cell: Cell | None) -> str:
    return f"{cell[0]:.2f}/{cell[1]:.2f}" if cell is not None else ""


def long(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each method and case; the intervals are those of a mean over test images."""
    paper = published()
    lines = [
        "| method | case | ellipses (dB) | 95 % interval | paper | Shepp-Logan (dB) | paper | parameters | training |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        paper_pair = paper.get(row["method"], {}).get(row["case"])
        paper_cells = [f"{value:.2f}" for value in paper_pair] if paper_pair else ["", ""]
        interval = row["psnr_interval"]
        cells = [
            row["method"],
            row["case"],
            _decibels(row["psnr"]),
            f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "",
            paper_cells[0],
            _decibels(row["psnr_shepp_logan"]),
            paper_cells[1],
            f"{row['parameters']:,}".replace(",", " ") if row["parameters"] else "",
            f"{row['training_seconds']:.0f} s" if row["training_seconds"] else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _decibels(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
