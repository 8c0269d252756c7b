"""The table of `bayescade benchmark any` and its summary, from the values of every image."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bayescade.pipeline.any_rows import ARC, ELLIPSES, FULL, PATIENTS, REFERENCE, Row
from bayescade.pipeline.scores import mean, t_interval

LOW_QUANTILE = 0.05  # over images, of claimed over found
NO_IMAGES = "no images"

SCORES = (  # of a row; None in a row without images
    "psnr",
    "psnr_tv",
    "psnr_fbp",
    "difference",
    "difference_interval",
    "claimed_over_found",
    "claimed_over_found_low",
    "coverage",
    "seconds_per_image",
    "tv_constant",
    "tv_at_end",
    "tv_unconverged",
    "tv_validation_images",
    "tv_seconds",
    "warning",
)

TableRow = Mapping[str, Any]


def table_row(
    row: Row,
    tv: TableRow | None = None,  # values of the cell of TV and FBP; None without images
    model: TableRow | None = None,  # values of the cell of the model
) -> dict[str, Any]:
    """A row of the table; its keys are part of the public JSON output."""
    fields = {
        "name": row.name,
        "group": row.group,
        "objects": row.objects,
        "held_out": row.held_out,
        "outside": row.outside,
        "noise": row.noise.describe(),
    }
    if tv is None or model is None:
        return {**fields, "status": NO_IMAGES, "images": 0, **dict.fromkeys(SCORES)}
    differences = paired_differences(model["psnr"], tv["psnr"])
    ratios = claimed_over_found(model)
    return {
        **fields,
        "status": "ok",
        "images": len(tv["psnr"]),
        "psnr": mean(model["psnr"]),
        "psnr_tv": mean(tv["psnr"]),
        "psnr_fbp": mean(tv["fbp_psnr"]),
        "difference": float(np.mean(differences)) if differences else None,
        "difference_interval": t_interval(differences) if differences else None,
        "claimed_over_found": pooled_claimed_over_found(model),
        "claimed_over_found_low": float(np.quantile(ratios, LOW_QUANTILE)) if ratios else None,
        "coverage": coverage(model),
        "seconds_per_image": model["seconds_per_image"],
        "tv_constant": tv["constant"],
        "tv_at_end": tv["at_end"],
        "tv_unconverged": tv["unconverged"],
        "tv_validation_images": tv["validation_images"],
        "tv_seconds": tv["seconds"],
        "warning": model["warning"],
    }


def paired_differences(first: Sequence[float | None], second: Sequence[float | None]) -> list[float]:
    """first - second of every image; empty if a number is missing."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    return [a - b for a, b in pairs] if len(pairs) == len(first) else []


def claimed_over_found(model: TableRow) -> list[float]:
    """Of every image: root of the mean predictive variance over root of the mean squared error; empty without variances."""
    pairs = list(zip(model["variance"], model["square_error"], strict=True))
    if any(variance is None or not square for variance, square in pairs):
        return []
    return [math.sqrt(variance / square) for variance, square in pairs]


def pooled_claimed_over_found(model: TableRow) -> float | None:
    """The same for the pixels of all images together."""
    if not claimed_over_found(model):
        return None
    return math.sqrt(sum(model["variance"]) / sum(model["square_error"]))


def coverage(model: TableRow) -> float | None:
    """Share of the object pixels of all images whose true value is in its interval; None without variances."""
    pixels = sum(model["object_pixels"])
    return sum(model["covered"]) / pixels if None not in model["covered"] and pixels else None


def summary(rows: Sequence[TableRow]) -> dict[str, Any]:
    """The comparison over sets of rows, the range of claimed over found, and the row with 32 views."""
    counted = [row for row in rows if row["group"] in (FULL, ARC) and row["status"] == "ok"]

    def among(condition: Callable[[TableRow], bool]) -> dict[str, Any]:
        return comparison([row for row in counted if condition(row)])

    def ratios(held_out: bool) -> list[float] | None:
        values = [row["claimed_over_found"] for row in counted if row["held_out"] == held_out]
        present = [value for value in values if value is not None]
        return [min(present), max(present)] if present else None

    reference = next((row for row in rows if row["name"] == REFERENCE), None)
    return {
        "comparisons": {
            "full and arc": among(lambda row: True),
            "full and arc, geometries inside": among(lambda row: not row["outside"]),
            "full and arc, geometries outside": among(lambda row: bool(row["outside"])),
            "full and arc, held-out objects": among(lambda row: bool(row["held_out"])),
            "ellipses, full": among(lambda row: row["objects"] == ELLIPSES and row["group"] == FULL),
            "ellipses, arc": among(lambda row: row["objects"] == ELLIPSES and row["group"] == ARC),
            "patients, full": among(lambda row: row["objects"] == PATIENTS and row["group"] == FULL),
            "patients, arc": among(lambda row: row["objects"] == PATIENTS and row["group"] == ARC),
        },
        "claimed_over_found": {"trained": ratios(False), "held_out": ratios(True)},
        "reference": dict(reference) if reference is not None else None,
    }


def comparison(rows: Sequence[TableRow]) -> dict[str, Any]:
    """In how many rows the model is above TV, and the row with the worst difference.

    A row without a difference (an image is not finite) counts as not above.
    """
    above = sum(row["difference"] is not None and row["difference"] > 0 for row in rows)
    worst = min(rows, key=lambda row: -math.inf if row["difference"] is None else row["difference"], default=None)
    return {
        "rows": len(rows),
        "above": above,
        "share": above / len(rows) if rows else None,
        "worst": worst["difference"] if worst is not None else None,
        "worst_row": worst["name"] if worst is not None else None,
    }


def markdown(answer: TableRow) -> str:
    """The table, and the summary under it."""
    rows = answer["rows"]
    title = f"Model {answer['model']}, {answer['samples']} samples, seed {answer['seed']}."
    return "\n\n".join([title, row_table(rows), summary_text(answer["summary"])]) + "\n"


def row_table(rows: Sequence[TableRow]) -> str:
    """A line for every row."""
    columns = (
        "group",
        "row",
        "objects",
        "geometry",
        "images",
        "model (dB)",
        "TV (dB)",
        "FBP (dB)",
        "model - TV (dB)",
        "95 % interval",
        "claimed/found",
        "5 % of images",
        "coverage of 90 %",
        "s per image",
        "TV: c",
        "TV: not converged",
    )
    lines = [columns, tuple("---" for _ in columns), *(row_texts(row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def row_texts(row: TableRow) -> tuple[str, ...]:
    """The cells of a line."""
    interval, constant = row["difference_interval"], row["tv_constant"]
    return (
        row["group"],
        row["name"],
        "held out" if row["held_out"] else "trained",
        "outside" if row["outside"] else "inside",
        str(row["images"]) if row["status"] == "ok" else row["status"],
        number(row["psnr"]),
        number(row["psnr_tv"]),
        number(row["psnr_fbp"]),
        number(row["difference"], sign=True),
        f"{number(interval[0], sign=True)} to {number(interval[1], sign=True)}" if interval else "",
        number(row["claimed_over_found"]),
        number(row["claimed_over_found_low"]),
        f"{row['coverage']:.1%}" if row["coverage"] is not None else "",
        f"{row['seconds_per_image']:.2g}" if row["seconds_per_image"] is not None else "",
        "" if constant is None else f"{constant:.3g}" + (" (end of the grid)" if row["tv_at_end"] else ""),
        str(row["tv_unconverged"]) if row["tv_unconverged"] else "",
    )


def number(value: float | None, sign: bool = False) -> str:
    """Two decimals; empty for None."""
    if value is None:
        return ""
    return f"{value:+.2f}" if sign else f"{value:.2f}"


def summary_text(values: TableRow) -> str:
    """The summary as a table and sentences."""
    lines = ["| rows | number | model above TV | share | worst difference (dB) | in row |", "|---|---|---|---|---|---|"]
    for name, entry in values["comparisons"].items():
        if entry["rows"]:
            worst = number(entry["worst"], sign=True) or "not finite"
            cells = (name, entry["rows"], entry["above"], f"{entry['share']:.0%}", worst, entry["worst_row"])
            lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    sentences = []
    for name, words in (("trained", "objects of the training"), ("held_out", "held-out objects")):
        ends = values["claimed_over_found"][name]
        if ends:
            sentences.append(f"Claimed over found, {words}, full and arc: {number(ends[0])} to {number(ends[1])}.")
    row = values["reference"]
    if row is not None and row["status"] == "ok":
        sentences.append(
            f"{row['name']}: model {number(row['psnr'])} dB, TV {number(row['psnr_tv'])} dB, difference "
            f"{number(row['difference'], sign=True)} dB."
        )
    return "\n".join(lines) + ("\n\n" + "\n".join(sentences) if sentences else "")
