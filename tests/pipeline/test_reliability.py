"""Curves, tables and words about error bars, for errors whose distribution is known."""

import dataclasses
from pathlib import Path

import pytest
import torch

from bayescade.figures.report import Page, write_report
from bayescade.pipeline.reliability import Reliability, outcomes_of, reliability, verdict
from bayescade.pipeline.scores import result_scores, uncertainty_row
from bayescade.results import Reconstruction
from bayescade.uncertainty.intervals import LEVEL, fit_intervals
from bayescade.uncertainty.outcomes import Outcome

IMAGES, SIZE = 40, 32


def result(factor: float = 1.0, seed: int = 0) -> Reconstruction:
    """Independent normal errors; the claimed standard deviation is `factor` times theirs."""
    rng = torch.Generator().manual_seed(seed)
    std = 0.02 * (1 + torch.rand(IMAGES, 1, SIZE, SIZE, generator=rng))
    truth = torch.ones_like(std)
    error = std * torch.randn(std.shape, generator=rng)
    variance = (factor * std) ** 2
    return Reconstruction(truth + error, "tiny", aleatoric=variance, epistemic=0 * variance, truth=truth)


def outcomes(given: Reconstruction) -> list[Outcome]:
    assert given.truth is not None
    return outcomes_of(given, given.truth)


def row(given: Reconstruction) -> dict[str, object]:
    assert given.truth is not None
    found = uncertainty_row(result_scores(given, given.truth))
    assert found is not None
    return found


def test_normal_errors_with_the_right_std_are_on_the_diagonal() -> None:
    (curve,) = reliability(outcomes(result()), None).curves
    for level, covered, low, high in zip(curve.levels, curve.coverage, curve.low, curve.high, strict=True):
        assert covered == pytest.approx(level, abs=0.01)
        assert low <= covered <= high


def test_error_bars_of_half_the_size_cover_less_until_they_are_calibrated() -> None:
    intervals = fit_intervals([dataclasses.replace(item, family="one") for item in outcomes(result(0.5, seed=1))])
    found = reliability(outcomes(result(0.5)), intervals)
    raw, calibrated = found.curves
    assert raw.coverage[raw.levels.index(LEVEL)] == pytest.approx(0.5893, abs=0.01)  # P(|N(0, 1)| < 1.6449 / 2)
    assert calibrated.coverage[calibrated.levels.index(LEVEL)] == pytest.approx(
        1 - (0.1 * (IMAGES + 1) - 1) / IMAGES, abs=0.01
    )  # (sum of losses + 1) / (images + 1) = 0.1
    for table in (found.strata, found.regions):
        assert all(line["calibrated"] > 0.85 for line in table)
    assert [line["size"] for line in found.regions] == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize(("factor", "words"), [(1.0, "right size"), (0.4, "too small"), (2.0, "too large")])
def test_the_verdict_says_whether_error_bars_are_right(factor: float, words: str) -> None:
    given = result(factor)
    lines = verdict(row(given), reliability(outcomes(given), None))
    assert words in lines[0]
    assert ("100.0% of the images are silently wrong" in lines[2]) == (factor < 0.5)


def test_a_warning_makes_a_wrong_image_not_silent() -> None:
    given = dataclasses.replace(result(0.4), warnings=[[{"cause": "centre"}]] * 10 + [[]] * (IMAGES - 10))
    assert row(given)["silently_wrong"] == pytest.approx(1 - 10 / IMAGES)


def test_the_shares_of_the_variance_add_up() -> None:
    given = result()
    assert given.aleatoric is not None
    parts = dataclasses.replace(given, epistemic=0.2 * given.aleatoric, geometry_variance=0.8 * given.aleatoric)
    shares = row(parts)["shares"]
    assert shares == pytest.approx({"aleatoric": 0.5, "epistemic": 0.1, "geometry": 0.4})


def test_the_page_begins_with_the_verdict(tmp_path: Path) -> None:
    given = result()
    assert given.truth is not None
    scores = result_scores(given, given.truth)
    found: Reliability = reliability(outcomes(given), None)
    means = {"method": "<tiny>", "case": "none", "images": IMAGES, "uncertainty": row(given)}
    page = Page(means, scores, verdict(row(given), found), {"seed": "0"}, found.curves, found.regions, found.strata)
    text = write_report(tmp_path, given, page).read_text()
    assert "<tiny>" not in text.split("<script")[0]
    assert text.index("right size") < text.index("<h2>")
    assert "32 x 32 pixels" in text
    for name in ("figure.png", "reliability.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert f"src={name}" in text
