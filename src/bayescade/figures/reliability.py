"""Reliability: how many pixels intervals cover, against how many they should."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bayescade.storage.files import replacing

COLOURS = ("tab:grey", "tab:blue")


@dataclasses.dataclass(frozen=True)
class Curve:
    """Coverage at some levels, with an interval for each."""

    name: str
    levels: list[float]
    coverage: list[float]
    low: list[float]
    high: list[float]


def draw_reliability(curves: Sequence[Curve], path: Path | str, title: str) -> None:
    """Writes the curves as a PNG file: above the diagonal intervals are too wide, below it too narrow."""
    figure = Figure(figsize=(5.2, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], "k--", linewidth=0.8, label="right")
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        axis.fill_between(curve.levels, curve.low, curve.high, color=colour, alpha=0.25, linewidth=0)
        axis.plot(curve.levels, curve.coverage, "o-", markersize=3, color=colour, label=curve.name)
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="level of the intervals", ylabel="share of the pixels inside")
    axis.text(0.04, 0.72, "too wide", fontsize=8, color="0.4")
    axis.text(0.72, 0.3, "too narrow", fontsize=8, color="0.4")
    axis.legend(loc="lower right", fontsize=8)
    axis.set_title(title, fontsize=9)
    with replacing(path) as partial:
        figure.savefig(partial, format="png", dpi=130)
