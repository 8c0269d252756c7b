"""A page about one evaluation: the scores, and the images with the worst, median and best PSNR."""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayescade.figures.panels import draw_panels, reconstruction_panels
from bayescade.results import Reconstruction
from bayescade.storage.files import make_folder, write_json, write_text

REPORT_FILES = ("report.html", "figure.png", "scores.json")
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;text-align:right}"
    "th:first-child,td:first-child{text-align:left}img{max-width:100%}"
)


def write_report(
    folder: Path | str,
    result: Reconstruction,  # the first images that were scored, with their truth
    scores: Mapping[str, list[float | None]],  # of every image
    row: Mapping[str, Any],  # means over the images, from `score_row`
) -> Path:
    """Writes report.html, figure.png and scores.json into the folder; gives the path of the page."""
    folder = make_folder(folder)
    order = _by_psnr(scores["psnr"][: len(result.image)])
    chosen = {"worst": order[0], "median": order[len(order) // 2], "best": order[-1]}
    rows = [reconstruction_panels(result, index) for index in chosen.values()]
    draw_panels(rows, folder / "figure.png", result.geometry, f"{row['method']} on {row['case']}: worst, median, best")
    write_json(folder / "scores.json", {"row": row, "scores": scores})
    write_text(folder / "report.html", _page(row, scores, chosen))
    return folder / "report.html"


def _by_psnr(values: list[float | None]) -> list[int]:
    return sorted(range(len(values)), key=lambda index: float("inf") if values[index] is None else values[index])  # type: ignore[arg-type, return-value]


def _page(row: Mapping[str, Any], scores: Mapping[str, list[float | None]], chosen: Mapping[str, int]) -> str:
    title = html.escape(f"{row['method']} on {row['case']}, {row['images']} images")
    means = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{_number(value)}</td></tr>"
        for name, value in row.items()
        if isinstance(value, float)
    )
    names = list(scores)
    header = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr><td>{index}</td>{''.join(f'<td>{_number(scores[name][index])}</td>' for name in names)}</tr>"
        for index in range(len(scores[names[0]]))
    )
    which = ", ".join(f"{name}: image {index}" for name, index in chosen.items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1><p>PSNR in dB, data range 1; means over the images.</p>"
        f"<table><tr><th>score</th><th>mean</th></tr>{means}</table>"
        f"<h2>Images</h2><p>By PSNR: {which}. All images have the same grey scale, all errors the same colour scale.</p>"
        f"<img src=figure.png alt='truth, reconstruction and error of three images'>"
        f"<h2>Every image</h2><table><tr><th>image</th>{header}</tr>{body}</table>"
        f"<script type=application/json id=row>{json.dumps(dict(row)).replace('<', chr(92) + 'u003c')}</script></html>\n"
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
