"""`benchmark any`: its rows, the choice of TV's constant, and a tiny run from beginning to end."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from bayescade import load_model
from bayescade.cli import run
from bayescade.data.noise import Noise
from bayescade.data.random_scans import RandomScans, is_in_support, random_geometry
from bayescade.data.simulate import Scans, scan_batches
from bayescade.data.sources import image_source
from bayescade.errors import UserError
from bayescade.physics.cases import case_geometry
from bayescade.physics.geometry import FanBeam, measured_arc
from bayescade.pipeline import any_rows, tv_choice
from bayescade.pipeline.any_rows import ARC, FEW, FULL, HELD_OUT, PATIENTS, TRAINED, Row, all_rows
from bayescade.pipeline.any_table import comparison, summary, table_row
from bayescade.pipeline.benchmark_any import (
    SCANNER,
    AnyBenchmark,
    Bench,
    benchmark_any,
    image_values,
    patients_of_split,
    row_scans,
)
from bayescade.pipeline.scores import t_interval, t_quantile
from bayescade.pipeline.tv_choice import choose_constant, tv_images, validation_score
from bayescade.projectors import ray_transform

ROWS = {row.name: row for row in all_rows()}
TINY = [
    Row("tiny-views", FULL, case_geometry("sparse-10", 16)),
    Row("tiny-arc", ARC, case_geometry("limited-90", 16), outside=True),
    Row("tiny-patients", FULL, case_geometry("sparse-10", 16), PATIENTS),
]


def request(out: Path | None = None, **changes: object) -> AnyBenchmark:
    """A run with FBP in the part of the model."""
    base = AnyBenchmark(model="fbp", images=2, validation_images=1, out=str(out) if out else None, device="cpu")
    return dataclasses.replace(base, **changes)


def test_the_number_of_rows_and_of_geometries_outside() -> None:
    assert len(ROWS) == len(all_rows()) >= 44
    outside = {row.geometry.to_json(): row.outside for row in all_rows()}
    assert sum(outside.values()) >= len(outside) / 3


@pytest.mark.parametrize("row", all_rows(), ids=lambda row: row.name)
def test_a_row_is_in_the_support_unless_it_says_outside(row: Row) -> None:
    assert is_in_support(row.geometry, RandomScans()) is not row.outside
    assert row.objects in (*TRAINED, *HELD_OUT)


@pytest.mark.parametrize("row", all_rows(), ids=lambda row: row.name)
def test_the_group_of_a_row_is_that_of_its_scan(row: Row) -> None:
    views, arc = row.geometry.views, measured_arc(row.geometry)
    if row.group == FEW:
        assert views < 16 or arc < 90 - 1e-6
        return
    assert views >= 16
    assert arc >= 90 - 1e-6
    step = 180 / min(views, 180)
    if row.group == FULL and "irregular" not in row.name:
        assert arc == pytest.approx(180, abs=2 * step)
    elif row.group == ARC:
        assert arc < 180 - step


def test_the_rows_that_the_comparison_is_about() -> None:
    for views in (16, 24, 32, 50, 64, 90, 180, 360):
        assert ROWS[f"ellipses-views-{views}"].geometry == case_geometry(f"sparse-{views}")
    assert ROWS["ellipses-views-32-noise-0.25"].noise.settings.relative == 0.0025
    assert ROWS["ellipses-views-32-noise-4"].noise.settings.relative == 0.04
    assert ROWS["ellipses-views-32-photons-1e4"].noise.settings.photons == 1e4
    for objects in HELD_OUT:
        assert {f"{objects}-views-32", f"{objects}-views-60", f"{objects}-arc-120"} <= ROWS.keys()
    assert {f"patients-{scan}" for scan in ("views-24", "arc-90")} <= ROWS.keys()
    assert {f"ellipses-{scan}" for scan in ("views-8", "views-12", "arc-60", "arc-75")} <= ROWS.keys()
    assert any_rows.REFERENCE in ROWS


def test_the_same_sampling_on_other_grids_and_as_a_fan() -> None:
    scan = ROWS["ellipses-views-32"].geometry
    for size, views in ((192, 48), (256, 64)):
        larger = ROWS[f"ellipses-views-{views}-size-{size}"].geometry
        assert larger.image_shape == (size, size)
        assert larger.views / size == scan.views / 128
        assert larger.ray_spacing == pytest.approx(scan.ray_spacing, rel=0.01)
    fan = ROWS["ellipses-fan-64"].geometry
    assert isinstance(fan, FanBeam)
    assert fan.views == 2 * scan.views
    assert fan.ray_spacing == pytest.approx(scan.ray_spacing)


def test_the_attenuation_of_counted_photons_is_about_3() -> None:
    row = ROWS["ellipses-views-32-photons-1e4"]
    source = image_source("ellipses", row.geometry.image_shape, seed=0, split="validation")
    images = source.images(0, 40, 1)
    largest = ray_transform(row.geometry, calls=1)(images).amax((1, 2, 3))
    assert float(largest.mean()) * row.noise.settings.attenuation == pytest.approx(3, abs=0.5)


def test_every_random_geometry_is_in_the_support() -> None:
    settings = RandomScans()
    for index in range(150):
        assert is_in_support(random_geometry(settings, (96, 130), 7, index), settings), index
    millimetres = dataclasses.replace(case_geometry("sparse-32"), pixel_size=0.3, bin_width=0.3)
    assert is_in_support(millimetres, settings)
    assert not is_in_support(millimetres, RandomScans(least_views=33))
    assert not is_in_support(dataclasses.replace(millimetres, bin_width=0.6), settings)


def test_choosing_a_constant() -> None:
    tried: list[float] = []

    def score_of(best: float) -> tv_choice.Score:
        def score(constants: list[float]) -> list[float]:
            tried.extend(constants)
            return [-abs(math.log(constant / best)) for constant in constants]

        return score

    for best in (0.5, 0.001, 60.0):  # within the first grid, below it, above it
        tried.clear()
        choice = choose_constant(score_of(best))
        assert abs(math.log(choice.constant / best)) <= math.log(1.26)
        assert not choice.at_end
        assert [constant for constant, _ in choice.tried] == sorted(tried)
        assert len(set(tried)) == len(tried), "no constant is computed twice"
    assert choose_constant(score_of(1e9)).at_end


def tiny_scans(count: int) -> Scans:
    geometry = case_geometry("sparse-10", 16)
    source = image_source("ellipses", (16, 16), seed=0, split="validation")
    return next(scan_batches(source, geometry, Noise(), seed=3, count=count, scanner=SCANNER))


def test_tv_of_a_batch_is_the_method_tv_with_its_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    scans, geometry = tiny_scans(2), case_geometry("sparse-10", 16)
    operator = ray_transform(geometry)
    score = validation_score(operator, scans.sinogram, scans.truth)([0.3, 3.0])
    alone = [
        load_model("tv", geometry, settings={"constant": constant})(scans.sinogram).image for constant in (0.3, 3.0)
    ]
    expected = [-10 * ((image - scans.truth) ** 2).mean((1, 2, 3)).log10().mean() for image in alone]
    assert score == pytest.approx([float(value) for value in expected], abs=1e-3)
    monkeypatch.setattr(tv_choice, "PART_NUMBERS", 1)  # one image at a time
    images, converged = tv_images(operator, scans.sinogram, torch.tensor([0.3, 3.0]))
    assert bool(converged.all())
    torch.testing.assert_close(images, torch.stack([alone[0][0], alone[1][1]]), rtol=0, atol=1e-5)


def test_the_interval_of_a_mean() -> None:
    for freedom in (1, 7, 19):
        assert t_quantile(0.95, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-6)
    values = [1.0, 2.0, 4.0]
    expected = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert t_interval(values) == pytest.approx(list(expected), rel=1e-6)
    assert t_interval([1.0]) is None


def test_the_scores_of_a_row() -> None:
    truth = torch.zeros(2, 1, 4, 4)
    truth[:, :, :2] = 0.5
    image = truth + torch.tensor([0.1, 0.2]).reshape(2, 1, 1, 1)
    model = image_values(image, torch.full_like(truth, 0.04), truth)  # standard deviation 0.2
    image[1, 0, 0, 0] = 1.5  # one pixel of the object is not covered
    model["covered"] = image_values(image, torch.full_like(truth, 0.04), truth)["covered"]
    tv = {"psnr": [19.0, 12.0], "fbp_psnr": [10.0, 10.0], "constant": 0.3, "at_end": False, "unconverged": 1}
    row = table_row(
        ROWS["text-views-32"],
        {**tv, "validation_images": 8, "seconds": 1.0},
        {**model, "seconds_per_image": 0.5, "warning": None},
    )
    assert row["psnr"] == pytest.approx(10 * (2 + math.log10(25)) / 2)
    assert row["difference"] == pytest.approx(row["psnr"] - 15.5)
    assert row["claimed_over_found"] == pytest.approx(math.sqrt(0.08 / 0.05))
    assert row["claimed_over_found_low"] == pytest.approx(1 + 0.05)  # the ratios are 1 and 2
    assert row["coverage"] == 15 / 16
    assert (row["held_out"], row["outside"], row["tv_unconverged"]) == (True, False, 1)


def test_the_summary() -> None:
    def row(name: str, difference: float | None, **changes: object) -> dict[str, object]:
        base = table_row(Row(name, FULL, case_geometry("sparse-10", 16)))
        return {**base, "status": "ok", "difference": difference, "claimed_over_found": 1.1, **changes}

    rows = [
        row("a", 2.0),
        row("b", -0.5, outside=True),
        row("c", 1.0, group=ARC, held_out=True, objects="text", claimed_over_found=0.7),
        row("d", -9.0, group=FEW),
        row("e", None, status="no images"),
    ]
    values = summary(rows)
    assert values["comparisons"]["full and arc"] == {
        "rows": 3,
        "above": 2,
        "share": pytest.approx(2 / 3),
        "worst": -0.5,
        "worst_row": "b",
    }
    assert values["comparisons"]["ellipses, full"]["worst"] == -0.5
    assert values["comparisons"]["ellipses, arc"]["rows"] == 0
    assert values["claimed_over_found"] == {"trained": [1.1, 1.1], "held_out": [0.7, 0.7]}
    assert comparison([row("f", None), rows[0]]) == {
        "rows": 2,
        "above": 1,
        "share": 0.5,
        "worst": None,
        "worst_row": "f",
    }


def test_a_run_is_continued_from_its_cells(tmp_path: Path) -> None:
    answer = benchmark_any(request(tmp_path), TINY)
    assert json.loads((tmp_path / "table.json").read_text()) == answer
    full, arc, patients = answer["rows"]
    for row in (full, arc):
        assert row["images"] == 2
        assert row["psnr"] == pytest.approx(row["psnr_fbp"], abs=1e-3), "the model is FBP"
        assert row["psnr_tv"] > row["psnr"]
        assert row["difference_interval"][0] < row["difference"] == pytest.approx(row["psnr"] - row["psnr_tv"])
        assert row["claimed_over_found"] is row["claimed_over_found_low"] is row["coverage"] is None
        assert row["seconds_per_image"] > 0
        assert row["tv_unconverged"] == 0
    assert (patients["status"], patients["psnr"]) == ("no images", None)
    assert answer["summary"]["comparisons"]["full and arc"]["worst_row"] in ("tiny-views", "tiny-arc")
    text = (tmp_path / "table.md").read_text()
    assert f"| full | tiny-views | trained | inside | 2 | {full['psnr']:.2f} |" in text
    assert "| full | tiny-patients | held out | inside | no images |" in text

    cells = sorted((tmp_path / "cells").iterdir())
    assert [cell.name.rsplit("_", 1)[0] for cell in cells] == [
        "model_tiny-arc",
        "model_tiny-views",
        "tv_tiny-arc",
        "tv_tiny-views",
    ]
    stored = json.loads(cells[3].read_text())
    stored["row"]["psnr"] = [99.0, 99.0]
    cells[3].write_text(json.dumps(stored))
    cells[0].unlink()
    again = benchmark_any(request(tmp_path), TINY)
    assert again["rows"][0]["psnr_tv"] == 99.0, "a cell that is there is not computed again"
    assert again["rows"][1]["psnr"] == pytest.approx(arc["psnr"], abs=1e-4), "a cell that is missing is"
    (only,) = benchmark_any(request(tmp_path, rows="views", samples=3), TINY)["rows"]
    assert only["psnr_tv"] == 99.0, "TV does not depend on the samples of the model"
    assert len(list((tmp_path / "cells").iterdir())) == 5

    for damage in ("{", "null", '{"key": 1, "row": {}}'):
        cells[3].write_text(damage)
        with pytest.raises(UserError, match=f"{cells[3].name}: damaged; delete it"):
            benchmark_any(request(tmp_path, rows="views"), TINY)


def test_images_of_a_file(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).random((5, 20, 20)).astype(np.float32)
    np.save(tmp_path / "patients.npy", stored)
    (row,) = benchmark_any(request(tmp_path, patients=str(tmp_path / "patients.npy"), rows="patients"), TINY)["rows"]
    assert (row["status"], row["images"], row["tv_validation_images"]) == ("ok", 2, 1)
    images = torch.from_numpy(stored)[:, None]
    assert len(patients_of_split(images, "validation")) == 2
    assert torch.equal(patients_of_split(images, "test"), images[2:])
    for wrong, message in ((stored[:1], "at least 2 images"), (2 * stored, "values from 0 to 1")):
        np.save(tmp_path / "wrong.npy", wrong)
        with pytest.raises(UserError, match=message):
            benchmark_any(request(patients=str(tmp_path / "wrong.npy")), TINY)


def test_a_scan_depends_on_the_seed_and_its_index_only() -> None:
    def scans(images: int, seed: int = 0, split: str = "test") -> Scans:
        wanted = request(images=images, seed=seed, validation_images=images)
        return row_scans(Bench(wanted, torch.device("cpu"), None, None, "fbp"), TINY[0], split)

    three, one = scans(3), scans(1)
    torch.testing.assert_close(three.sinogram[:1], one.sinogram)
    torch.testing.assert_close(three.truth[:1], one.truth)
    assert not torch.allclose(scans(1, seed=1).truth, one.truth)
    assert not torch.allclose(scans(1, split="validation").truth, one.truth)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "nothing"], "--rows: expected a part of the name of a row"),
        (["--images", "0"], "--images: expected a whole number from 1 to 1000, got 0"),
        (["--validation-images", "2000"], "--validation-images: expected a whole number"),
        (["--samples", "0"], "--samples: expected"),
        (["--model", "bdgd-plus/sparse-32", "--rows", "ellipses-views"], "--model: expected a model for any scan"),
        (["--patients", "nowhere.npy", "--rows", "patients"], "nowhere.npy: there is no such file"),
    ],
)
def test_wrong_input_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["benchmark", "any", "--model", "fbp", "--device", "cpu", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bayescade.pipeline.benchmark_any.all_rows", lambda: TINY)
    line = ["benchmark", "any", "--model", "fbp", "--images", "1", "--validation-images", "1", "--rows", "tiny-views"]
    line += ["--out", str(tmp_path), "--device", "cpu"]
    assert run([*line, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == json.loads((tmp_path / "table.json").read_text())
    assert answer["rows"][0]["difference_interval"] is None, "one image has no interval"
    assert run(line) == 0
    text = capsys.readouterr().out
    assert "| full | tiny-views |" in text
    assert f"wrote {tmp_path}/table.md" in text
