"""A page about one evaluation: a verdict in words, how reliable the error bars are, the worst images, and all scores."""

import dataclasses
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayescade.figures.panels import draw_panels, ratio_panel, reconstruction_panels
from bayescade.figures.reliability import Curve, draw_reliability
from bayescade.results import Reconstruction
from bayescade.storage.files import make_folder, write_json, write_text

REPORT_FILES = ("report.html", "figure.png", "reliability.png", "scores.json")
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;text-align:right}"
    "th:first-child,td:first-child{text-align:left}img{max-width:100%}.verdict{font-size:1.15rem;background:#f3f5f8;"
    "border-left:4px solid #47a;padding:.6rem 1.2rem;list-style:none}.wide{overflow-x:auto}dt{font-weight:600}"
)
GLOSSARY = {
    "claimed error": "root of the mean predicted variance of an image",
    "found error": "root of the mean squared difference between reconstruction and truth",
    "coverage": "share of the pixels whose true value is inside their interval",
    "silently wrong": "the claimed error is under half of the found one, and no warning fired",
    "aleatoric": "the part of the variance that comes from the noise of the data",
    "epistemic": "the part that comes from what the model has not learned",
    "geometry": "the part that comes from the centre of rotation, as far as it is not known",
    "edge, weak edge, flat": "the predicted image changes by more than 5 %, 1 to 5 %, or less than 1 % of its level",
    "std below, std above": "the class of the predicted standard deviation, relative to the level of the image",
    "nll": "negative log-likelihood in nats per pixel: smaller is better",
    "crps": "continuous ranked probability score, in image units: smaller is better",
    "ence": "expected normalised calibration error: 0 is calibrated",
    "ause_ratio": "0: the error bars order pixels by their error; 1: no better than chance",
    "spearman": "correlation of the ranks of error and error bar",
}


@dataclasses.dataclass(frozen=True)
class Page:
    """What a report says; lists may be empty."""

    row: Mapping[str, Any]  # means over the images
    scores: Mapping[str, list[float | None]]  # of every image
    verdict: Sequence[str]
    conditions: Mapping[str, str]  # version, seed, noise, samples, ...
    curves: Sequence[Curve] = ()
    regions: Sequence[Mapping[str, Any]] = ()
    strata: Sequence[Mapping[str, Any]] = ()


def write_report(
    folder: Path | str,
    result: Reconstruction,  # the first images that were scored, with their truth
    page: Page,
) -> Path:
    """Writes report.html, its pictures and scores.json into the folder; gives the path of the page."""
    folder = make_folder(folder)
    order = _by_psnr(page.scores["psnr"][: len(result.image)])
    chosen = {"worst": order[0], "median": order[len(order) // 2], "best": order[-1]}
    rows = []
    for index in chosen.values():
        panels, ratio = reconstruction_panels(result, index), ratio_panel(result, index)
        rows.append(panels if ratio is None else [*panels[:3], ratio, *panels[3:]])
    title = f"{page.row['method']} on {page.row['case']}: worst, median, best"
    draw_panels(rows, folder / "figure.png", result.geometry, title, unit="length", value_unit="image value")
    if page.curves:
        draw_reliability(page.curves, folder / "reliability.png", f"{page.row['method']} on {page.row['case']}")
    write_json(folder / "scores.json", {"row": page.row, "scores": page.scores})
    write_text(folder / "report.html", _html(page, chosen, len(result.image)))
    return folder / "report.html"


def _by_psnr(values: list[float | None]) -> list[int]:
    return sorted(range(len(values)), key=lambda index: float("inf") if values[index] is None else values[index])  # type: ignore[arg-type, return-value]


def _html(page: Page, chosen: Mapping[str, int], shown: int) -> str:
    row = page.row
    title = html.escape(f"{row['method']} on {row['case']}, {row['images']} images")
    verdict = "".join(f"<li>{html.escape(line)}</li>" for line in page.verdict)
    which = ", ".join(f"{name}: image {index}" for name, index in chosen.items())
    of = f" of the first {shown}" if shown < row["images"] else ""
    conditions = "".join(
        f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in page.conditions.items()
    )
    glossary = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in GLOSSARY.items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1><ul class=verdict>{verdict}</ul>"
        f"{_reliability(page)}"
        f"<h2>Images</h2><p>By PSNR{of}: {which}. Panels of one quantity have one scale; a pointed end of a colour bar "
        f"says that there are values beyond it. x to the right, y up.</p>"
        f"<a href=figure.png><img src=figure.png alt='truth, reconstruction, error and error bars of three images'></a>"
        f"<h2>Scores</h2><p>PSNR in dB, data range 1; means over the images.</p>{_means(row)}"
        f"<h2>Every image</h2><div class=wide>{_every_image(page.scores)}</div>"
        f"<h2>Conditions</h2><table>{conditions}</table><h2>Words</h2><dl>{glossary}</dl>"
        f"<script type=application/json id=row>{json.dumps(dict(row)).replace('<', chr(92) + 'u003c')}</script></html>\n"
    )


def _reliability(page: Page) -> str:
    """The curves and tables of coverage; nothing for a method without error bars."""
    if not page.curves:
        return ""
    return (
        "<h2>Can the error bars be relied on?</h2><p>Means over the images; the bands are 95 % intervals by resampling "
        "images. On the diagonal, intervals cover what they claim.</p>"
        "<img src=reliability.png alt='share of the pixels inside intervals, by level' style='max-width:36rem'>"
        f"<h3>90 % intervals by kind of pixel</h3>{_coverages('pixels', page.strata)}"
        f"<h3>90 % intervals of means over regions</h3>{_coverages('region', page.regions)}"
    )


def _coverages(what: str, rows: Sequence[Mapping[str, Any]]) -> str:
    body = "".join(
        f"<tr><td>{html.escape(str(row['name']))}</td><td>{row['images']}</td><td>{_share(row['raw'])}</td>"
        f"<td>{_share(row['calibrated'])}</td></tr>"
        for row in rows
    )
    return f"<table><tr><th>{what}</th><th>images</th><th>as the model says</th><th>calibrated</th></tr>{body}</table>"


def _means(row: Mapping[str, Any]) -> str:
    values = {**row, **(row.get("uncertainty") or {})}
    means = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{_number(value)}</td></tr>"
        for name, value in values.items()
        if isinstance(value, float)
    )
    return f"<table><tr><th>score</th><th>mean</th></tr>{means}</table>"


def _every_image(scores: Mapping[str, list[float | None]]) -> str:
    names = list(scores)
    header = "".join(f"<th>{html.escape(name.removeprefix('uncertainty:'))}</th>" for name in names)
    body = "".join(
        f"<tr><td>{index}</td>{''.join(f'<td>{_number(scores[name][index])}</td>' for name in names)}</tr>"
        for index in range(len(scores[names[0]]))
    )
    return f"<table><tr><th>image</th>{header}</tr>{body}</table>"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
