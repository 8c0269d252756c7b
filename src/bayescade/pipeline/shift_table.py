"""The table of `bayescade benchmark shift`, from the numbers of every image."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bayescade.pipeline.shift_rows import Shift

FACTORS = (1.5, 2.0, 3.0)  # silently wrong: the claimed error is less than the found one by this factor
MAIN = 2.0
GOOD = (0.8, 1.25)  # claimed / found of a scan that needs no warning
CLOSE = 1.0  # dB: and its PSNR is as near to that of a clean scan
NOTED = "centre"  # a fault that is corrected, and noted instead of warned about


def clopper_pearson(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval for a probability, from `count` of `total` (Clopper and Pearson 1934)."""
    alpha = (1 - level) / 2

    def at_most(p: float) -> float:
        """P(X <= count) for X binomial."""
        return math.fsum(binomial(k, total, p) for k in range(count + 1))

    lower = 0.0 if count == 0 else bisect(lambda p: 1 - at_most(p) + binomial(count, total, p) - alpha)
    upper = 1.0 if count == total else bisect(lambda p: alpha - at_most(p))
    return lower, upper


def binomial(k: int, n: int, p: float) -> float:
    """The probability of k of n."""
    if p <= 0 or p >= 1:
        return float(k == (0 if p <= 0 else n))
    return math.exp(
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
    )


def bisect(function: Any) -> float:
    """The zero of an increasing function in [0, 1]."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


def table_row(shift: Shift, cell: dict[str, Any], clean: dict[str, Any] | None) -> dict[str, Any]:
    """The row of a shift."""
    images = cell["images"]
    ideal = ideal_psnr(shift, images, clean)
    ratios = np.array([image["claimed"] / max(image["found"], 1e-30) for image in images])
    warned = np.array([image["warned"] for image in images])
    silent = {f"{factor:g}": int(((ratios < 1 / factor) & ~warned).sum()) for factor in FACTORS}
    good = np.array(
        [
            GOOD[0] <= ratio <= GOOD[1] and abs(image["psnr"] - best) <= CLOSE
            for image, ratio, best in zip(images, ratios, ideal, strict=True)
        ]
    )
    faulty = bool(shift.causes)
    named = [named_right(shift, image) for image in images]
    unwarned = [image for image in images if not image["warned"]]
    row: dict[str, Any] = {
        "row": shift.name,
        "kind": shift.kind,
        "images": len(images),
        "psnr": mean(images, "psnr"),
        "psnr_ideal": float(np.mean(ideal)),
        "psnr_stated": mean(images, "psnr_stated"),
        "psnr_known": mean(images, "psnr_known"),
        "claimed_over_found": pooled_ratio(images, "claimed"),
        "claimed_over_found_raw": pooled_ratio(images, "claimed_raw"),
        "ratio_5": float(np.quantile(ratios, 0.05)),
        "ratio_median": float(np.median(ratios)),
        "coverage": mean(images, "coverage"),
        "coverage_object": mean(images, "coverage_object"),
        "coverage_steep": mean(images, "coverage_steep"),
        "coverage_unwarned": mean(unwarned, "coverage"),
        "width": mean(images, "width"),
        "oracle_width": cell["oracle_width"],
        "interval_score": mean(images, "interval_score"),
        "warned": float(warned.mean()),
        "detected": float(np.mean([image["warned"] or right for image, right in zip(images, named, strict=True)])),
        "cause_right": float(np.mean([right for right, image in zip(named, images, strict=True) if seen(image)]))
        if faulty and any(seen(image) for image in images)
        else None,
        "silently_wrong": silent,
        "silently_wrong_limits": list(clopper_pearson(silent[f"{MAIN:g}"], len(images))),
        "needlessly_warned": int((good & warned).sum()),
        "locally_silently_wrong": int(
            sum(bool(image.get("locally_wrong")) and not image["warned"] for image in images)
        ),
        "silently_wrong_variance_x4": int((2 * ratios < 1 / MAIN).sum()),
        "silently_wrong_unwarned_raw": int(
            sum(image["claimed_raw"] / max(image["found"], 1e-30) < 1 / MAIN for image in images)
        ),
        "centre_rmse": rms(images, "estimate_error"),
        "centre_z": z_rms(images),
        "shares": shares(images),
    }
    return row


def seen(image: dict[str, Any]) -> bool:
    """Whether anything was said about a scan."""
    return bool(image["warned"] or image["noted"])


def named_right(shift: Shift, image: dict[str, Any]) -> bool:
    """Whether a warning or a note names the fault."""
    return any(cause in shift.causes for cause in image["causes"]) or (NOTED in shift.causes and image["noted"])


def ideal_psnr(shift: Shift, images: Sequence[dict[str, Any]], clean: dict[str, Any] | None) -> list[float]:
    """The PSNR of every image without the fault; of other objects, its own."""
    same = clean is not None and shift.objects == "ellipses" and shift.objects_change is None
    if same and clean is not None and len(clean["images"]) >= len(images):
        return [image["psnr"] for image in clean["images"][: len(images)]]
    return [image["psnr"] for image in images]


def mean(images: Sequence[dict[str, Any]], name: str) -> float | None:
    """The mean of a number over the images that have it; None if none has it."""
    values = [image[name] for image in images if image.get(name) is not None]
    return float(np.mean(values)) if values else None


def pooled_ratio(images: Sequence[dict[str, Any]], name: str) -> float:
    """The root of the pooled predicted variance over the pooled squared error."""
    claimed = sum(image[name] ** 2 for image in images)
    return math.sqrt(claimed / max(sum(image["found"] ** 2 for image in images), 1e-300))


def rms(images: Sequence[dict[str, Any]], name: str) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean([image[name] ** 2 for image in images])))


def z_rms(images: Sequence[dict[str, Any]]) -> float | None:
    """Root mean square of error / standard error of the centre, where it is known."""
    values = [image["estimate_error"] / image["estimate_std"] for image in images if image["centre_known"]]
    return float(np.sqrt(np.mean(np.square(values)))) if values else None


def shares(images: Sequence[dict[str, Any]]) -> dict[str, float] | None:
    """The shares of the parts in the mean variance."""
    names = {"aleatoric": "aleatoric", "epistemic": "epistemic", "geometry_variance": "geometry"}
    totals = {short: sum(image["parts"][name] or 0.0 for image in images) for name, short in names.items()}
    total = sum(totals.values())
    return {name: value / total for name, value in totals.items()} if total > 0 else None


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What holds over all rows, each with the same weight."""
    silent = {
        f"{factor:g}": [row["silently_wrong"][f"{factor:g}"] / row["images"] for row in rows] for factor in FACTORS
    }
    worst = max(rows, key=lambda row: row["silently_wrong"][f"{MAIN:g}"] / row["images"])
    count, total = sum(row["silently_wrong"][f"{MAIN:g}"] for row in rows), sum(row["images"] for row in rows)
    return {
        "rows": len(rows),
        "scans": total,
        "silently_wrong": {name: float(np.mean(values)) for name, values in silent.items()},
        "silently_wrong_limits": list(clopper_pearson(count, total)),
        "worst_row": worst["row"],
        "worst_share": worst["silently_wrong"][f"{MAIN:g}"] / worst["images"],
        "needlessly_warned": float(np.mean([row["needlessly_warned"] / row["images"] for row in rows])),
        "locally_silently_wrong": float(np.mean([row["locally_silently_wrong"] / row["images"] for row in rows])),
        "variance_x4_silently_wrong": float(
            np.mean([row["silently_wrong_variance_x4"] / row["images"] for row in rows])
        ),
        "no_warnings_silently_wrong": float(
            np.mean([row["silently_wrong_unwarned_raw"] / row["images"] for row in rows])
        ),
        "warned": float(np.mean([row["warned"] for row in rows])),
    }


def markdown(answer: dict[str, Any]) -> str:
    """The table in Markdown."""
    header = (
        "| row | PSNR | without fault | claimed/found | 5 % | coverage | object | steep | width/oracle | warned | cause right "
        "| silent x2 | needless | local |"
    )
    lines = [header, "|" + "---|" * header.count("|", 1)]
    for row in answer["rows"]:
        width = row["width"] / row["oracle_width"] if row["width"] and row["oracle_width"] else None
        cells = [
            row["row"],
            number(row["psnr"], 1),
            number(row["psnr_ideal"], 1),
            number(row["claimed_over_found"], 2),
            number(row["ratio_5"], 2),
            *(number(row[name], 2) for name in ("coverage", "coverage_object", "coverage_steep")),
            number(width, 2),
            number(row["warned"], 2),
            number(row["cause_right"], 2),
            f"{row['silently_wrong']['2']} of {row['images']}",
            f"{row['needlessly_warned']}",
            f"{row['locally_silently_wrong']}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    s = answer["summary"]
    low, high = s["silently_wrong_limits"]
    lines += [
        "",
        f"{s['rows']} rows, {s['scans']} scans by {answer['model']} for {answer['case']}; rows have equal weight.",
        "",
        "| over all rows | share |",
        "|---|---|",
        f"| silently wrong by a factor of 1.5 | {s['silently_wrong']['1.5']:.2%} |",
        f"| silently wrong by a factor of 2 | {s['silently_wrong']['2']:.2%} |",
        f"| 95 % limits of that, all scans together | {low:.2%} to {high:.2%} |",
        f"| silently wrong by a factor of 3 | {s['silently_wrong']['3']:.2%} |",
        f"| worst row, factor 2 | {s['worst_row']}, {s['worst_share']:.0%} |",
        f"| needlessly warned | {s['needlessly_warned']:.1%} |",
        f"| locally silently wrong | {s['locally_silently_wrong']:.1%} |",
        f"| warned | {s['warned']:.1%} |",
        f"| baseline: no warnings, no calibration, silently wrong | {s['no_warnings_silently_wrong']:.1%} |",
        f"| baseline: no warnings, variance times 4, silently wrong | {s['variance_x4_silently_wrong']:.1%} |",
        "",
    ]
    return "\n".join(lines)


def number(value: float | None, digits: int) -> str:
    """A number, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"
