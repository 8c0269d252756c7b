"""Rows of shifts, and their table."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from bayescade.consistency.causes import CAUSES, VALUES
from bayescade.errors import UserError
from bayescade.physics.geometry import ParallelBeam
from bayescade.pipeline.benchmark_shift import ShiftBenchmark, benchmark_shift
from bayescade.pipeline.shift_rows import CLEAN, SEALED, Shift, all_shifts
from bayescade.pipeline.shift_table import clopper_pearson, summary, table_row

GEOMETRY = ParallelBeam([math.pi * (i + 0.5) / 12 for i in range(12)], 37, 1.0, image_shape=(24, 24))


@pytest.mark.parametrize(("count", "total"), [(0, 50), (1, 50), (7, 20), (20, 20), (3, 4000)])
def test_limits_of_a_share_are_those_of_another_implementation(count: int, total: int) -> None:
    expected = binomtest(count, total).proportion_ci(0.95, method="exact")
    assert clopper_pearson(count, total) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_rows_have_names_of_their_own_and_causes_that_exist() -> None:
    rows = [*all_shifts(), *SEALED]
    assert len({row.name for row in rows}) == len(rows)
    known = {cause for cause, _, _ in CAUSES.values()} | {cause for cause, _ in VALUES.values()} | {"centre"}
    assert {cause for row in rows for cause in row.causes} <= known


@pytest.mark.parametrize("shift", [*all_shifts(), *SEALED], ids=lambda shift: shift.name)
def test_every_fault_changes_the_scan(shift: Shift) -> None:
    sinogram = torch.rand(1, 1, 12, 37) + 0.5
    image = torch.rand(1, 1, 24, 24)
    rng = shift.generator(0, 0)
    if shift.change is not None:
        changed = shift.change(sinogram, GEOMETRY, rng)
        assert changed.shape == sinogram.shape
        assert bool(torch.isfinite(changed).all())
        assert not torch.equal(changed, sinogram)
    if shift.objects_change is not None:
        changed = shift.objects_change(image, rng)
        assert changed.shape == image.shape
        assert not torch.equal(changed, image)
        assert float(changed.min()) >= 0
    if shift.errors is not None:
        first, again = (shift.errors(GEOMETRY, shift.generator(0, 3)) for _ in range(2))
        for field in dataclasses.fields(first):
            assert np.array_equal(getattr(first, field.name), getattr(again, field.name)), (
                "the same scan, the same fault"
            )
    if shift.narrow != 1:
        assert shift.stated(GEOMETRY).bins < GEOMETRY.bins
        assert shift.stated(GEOMETRY).bins % 2 == GEOMETRY.bins % 2


def image(claimed: float, found: float, psnr: float, warned: bool = False, **more: Any) -> dict[str, Any]:
    """The numbers of an image."""
    return {
        "psnr": psnr,
        "claimed": claimed,
        "claimed_raw": claimed,
        "found": found,
        "warned": warned,
        "causes": ["noise"] if warned else [],
        "noted": False,
        "coverage": 0.9,
        "locally_wrong": False,
        "parts": {"aleatoric": 1.0, "epistemic": 1.0, "epistemic_symmetries": 1.0, "geometry_variance": 2.0},
        "estimate_error": 0.1,
        "estimate_std": 0.1,
        "centre_known": True,
        **more,
    }


def test_a_row_counts_what_its_words_say() -> None:
    images = [
        image(1.0, 1.0, 40.0),  # right, and nothing said
        image(1.0, 2.5, 30.0),  # silently wrong
        image(1.0, 2.5, 30.0, warned=True),  # wrong, but warned
        image(1.0, 1.1, 39.5, warned=True),  # needlessly warned
        image(1.0, 1.9, 35.0, locally_wrong=True),
    ]
    clean = {"images": [image(1.0, 1.0, 40.0)] * 5}
    row = table_row(Shift("noise-2", "noise", causes=("noise",)), {"images": images, "oracle_width": 1.0}, clean)
    assert row["silently_wrong"] == {"1.5": 2, "2": 1, "3": 0}
    assert row["needlessly_warned"] == 1
    assert row["locally_silently_wrong"] == 1
    assert row["warned"] == pytest.approx(0.4)
    assert row["cause_right"] == 1
    assert row["psnr_ideal"] == 40
    assert row["claimed_over_found"] == pytest.approx(math.sqrt(5 / (1 + 2 * 6.25 + 1.21 + 3.61)))
    assert row["shares"] == pytest.approx({"aleatoric": 0.25, "epistemic": 0.25, "geometry": 0.5})
    assert row["centre_z"] == pytest.approx(1)
    good = table_row(CLEAN, {"images": clean["images"], "oracle_width": 1.0}, clean)
    both = summary([row, good])
    assert both["silently_wrong"]["2"] == pytest.approx(0.1), "rows have equal weight"
    assert both["worst_row"] == "noise-2"
    assert both["scans"] == 10


@pytest.fixture
def request_of_a_table(tmp_path: Path) -> ShiftBenchmark:
    """Two scans a row of a small geometry."""
    file = tmp_path / "geo.toml"
    file.write_text("bins = 37\nviews = 12\nimage_shape = [24, 24]\n")
    return ShiftBenchmark(
        geometry_file=str(file), images=2, calibration_images=20, samples=2, out=str(tmp_path / "out"), device="cpu"
    )


@pytest.mark.slow
def test_the_table_is_made_and_continued(request_of_a_table: ShiftBenchmark) -> None:
    names = ("clean", "centre-1", "counts", "truncation", "sealed-checks")
    shifts = [row for row in [*all_shifts(), *SEALED] if row.name in names]
    answer = benchmark_shift(request_of_a_table, shifts)
    rows = {row["row"]: row for row in answer["rows"]}
    assert sorted(rows) == sorted(names)
    assert rows["counts"]["warned"] == 1
    assert rows["counts"]["cause_right"] == 1
    assert rows["counts"]["silently_wrong"]["2"] == 0
    assert rows["clean"]["psnr_known"] > 10
    assert "psnr_known" in rows["centre-1"]
    out = Path(str(request_of_a_table.out))
    assert "| sealed-checks |" in (out / "table.md").read_text()
    stored = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    assert len(stored) == len(names)
    again = benchmark_shift(request_of_a_table, shifts)
    assert json.dumps(again) == json.dumps(answer)
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == stored


def test_unknown_rows_are_named(request_of_a_table: ShiftBenchmark) -> None:
    with pytest.raises(UserError, match="'colour'"):
        benchmark_shift(dataclasses.replace(request_of_a_table, rows="colour"))
