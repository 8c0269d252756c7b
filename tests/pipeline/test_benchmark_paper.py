import json
import shutil
from pathlib import Path

import pytest
import torch

from bayescade.cli import run
from bayescade.errors import UserError
from bayescade.models import shipped_folder
from bayescade.physics.cases import PAPER_CASES
from bayescade.pipeline import paper_figures, scores
from bayescade.pipeline.benchmark_paper import benchmark_paper, hash_of
from bayescade.pipeline.paper_table import published, wide
from bayescade.pipeline.scores import bootstrap_interval

FIGURES = ["maps_sparse-32.png", "text_sparse-32.png", "shepp-logan_sparse-32.png"]


@pytest.mark.parametrize("case", PAPER_CASES)
def test_the_papers_fbp_row(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 16 numbers within 0.05 dB."""
    monkeypatch.setattr(scores, "ssim", lambda image, *_: torch.ones(len(image)))  # not in the row, and slow
    (row,) = benchmark_paper(["fbp"], [case], noise_seeds=1)["rows"]
    ellipses, shepp_logan = published()["fbp"][case]
    assert row["psnr"] == pytest.approx(ellipses, abs=0.05)
    assert row["psnr_shepp_logan"] == pytest.approx(shepp_logan, abs=0.05)


def test_the_published_table() -> None:
    table = published()
    assert len(table) == 7
    assert all(len(row) == 8 for row in table.values())
    assert table["bdgd-plus"]["limited-150"] == (48.78, 52.23)
    assert table["tv"]["sparse-8"] == (28.33, 17.90)


def test_fewer_images_are_the_first_of_them() -> None:
    few, more = (benchmark_paper(["fbp"], ["sparse-8"], images=images)["rows"][0] for images in (1, 2))
    assert few["psnr_shepp_logan"] == pytest.approx(more["psnr_shepp_logan"], abs=1e-4)


def test_writes_its_table_and_keeps_its_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "benchmark",
        "paper",
        "--methods",
        "fbp",
        "--cases",
        "sparse-8,limited-20",
        "--images",
        "2",
        "--draws",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert run([*line, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "table.json").read_text()) == said
    assert "| fbp | sparse-8 |" in (tmp_path / "table.md").read_text()
    cells = sorted((tmp_path / "cells").iterdir())
    assert len(cells) == 2
    stored = json.loads(cells[0].read_text())
    stored["row"]["psnr"] = 99.0
    cells[0].write_text(json.dumps(stored))
    rows = benchmark_paper(["fbp"], ["sparse-8", "limited-20"], images=2, noise_seeds=1, out=str(tmp_path))["rows"]
    assert 99.0 in [row["psnr"] for row in rows], "a cell that is there is not computed again"
    rows = benchmark_paper(["fbp"], ["sparse-8", "limited-20"], images=2, seed=1, noise_seeds=1, out=str(tmp_path))[
        "rows"
    ]
    assert 99.0 not in [row["psnr"] for row in rows], "another seed is another cell"


def test_several_noise_seeds_give_the_median() -> None:
    alone = [
        benchmark_paper(["fbp"], ["sparse-8"], images=2, seed=seed, noise_seeds=1)["rows"][0] for seed in (3, 4, 5)
    ]
    (together,) = benchmark_paper(["fbp"], ["sparse-8"], images=2, seed=3)["rows"]
    for name in ("psnr", "psnr_shepp_logan"):
        assert together[name] == pytest.approx(sorted(row[name] for row in alone)[1], abs=1e-4)
    with pytest.raises(UserError, match="--noise-seeds"):
        benchmark_paper(["fbp"], ["sparse-8"], noise_seeds=0)


@pytest.mark.slow
def test_rows_say_what_a_method_costs(tmp_path: Path) -> None:
    rows = benchmark_paper(
        ["fbp", "bdgd-plus", "lpd"], ["sparse-32", "sparse-64"], images=1, samples=1, noise_seeds=1, out=str(tmp_path)
    )["rows"]
    fbp, trained, missing = rows[0], rows[1], rows[5]
    assert (fbp["parameters"], fbp["training_seconds"]) == (0, None)
    assert trained["parameters"] > 100_000
    assert 0 < trained["training_seconds"] < 300
    assert trained["seconds_per_image"] > 0
    assert trained["psnr_interval"] == [trained["psnr"], trained["psnr"]], "one image leaves nothing to draw"
    assert missing["status"] == "no weights"
    assert sorted(path.name for path in tmp_path.glob("*.png")) == sorted(FIGURES)
    assert missing["parameters"] is None
    assert "| lpd | sparse-64 |  |  | 47.94 |  | 48.37 |  |  |" in (tmp_path / "table.md").read_text()


def test_the_bootstrap_interval_is_that_of_a_mean() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3 + 10
    low, high = bootstrap_interval(values.tolist()) or (0.0, 0.0)
    half = 1.96 * float(values.std()) / 20
    assert low == pytest.approx(float(values.mean()) - half, abs=0.05)
    assert high == pytest.approx(float(values.mean()) + half, abs=0.05)
    assert bootstrap_interval([1.0, None]) is None


def test_a_damaged_cell_is_named(tmp_path: Path) -> None:
    benchmark_paper(["fbp"], ["sparse-8"], images=1, noise_seeds=1, out=str(tmp_path))
    (cell,) = (tmp_path / "cells").iterdir()
    for text in ("{", "{}", "null", "[]", '{"key": 1, "row": {}}'):
        cell.write_text(text)
        with pytest.raises(UserError, match=f"{cell.name}: damaged; delete it"):
            benchmark_paper(["fbp"], ["sparse-8"], images=1, noise_seeds=1, out=str(tmp_path))


def test_figures_are_drawn_once_and_again_for_other_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    for name in ("draw_maps", "draw_text", "draw_side_by_side"):
        monkeypatch.setattr(paper_figures, name, lambda bench, path: drawn.append(path.name) or path.write_text("x"))
    (tmp_path / "cells").mkdir()

    def draw(weights: str) -> list[str]:
        drawn.clear()
        models = {(method, "sparse-32"): (f"{method}/sparse-32", weights) for method in ("dgd", "bdgd-plus")}
        models[("dgd", "sparse-8")] = ("dgd/sparse-8", weights)  # no figure of its own
        names = paper_figures.paper_figures(models, tmp_path, samples=1, seed=0, device=torch.device("cpu"))
        assert [Path(name).name for name in names] == FIGURES
        return list(drawn)

    assert draw("a") == FIGURES
    assert draw("a") == []
    assert draw("b") == FIGURES
    assert draw("a") == FIGURES


@pytest.mark.slow
def test_learned_methods_side_by_side(tmp_path: Path) -> None:
    models = dict.fromkeys(("dgd", "bdgd-plus"), "bdgd-plus/sparse-32")
    bench = paper_figures.Bench("sparse-32", models, samples=1, seed=0, device=torch.device("cpu"))
    paper_figures.draw_side_by_side(bench, tmp_path / "beside.png")
    assert (tmp_path / "beside.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_with_the_papers_lines_above_ours() -> None:
    rows = benchmark_paper(["fbp", "lpd"], ["sparse-8", "limited-20"], images=1, noise_seeds=1)["rows"]
    header, _, paper, ours, paper_lpd, ours_lpd = wide(rows).splitlines()
    assert header == "| | sparse-8 | limited-20 |"
    assert paper == "| paper, fbp | 16.08/10.09 |  |"
    assert ours.startswith(f"| ours, fbp | {rows[0]['psnr']:.2f}/{rows[0]['psnr_shepp_logan']:.2f} | ")
    assert paper_lpd == "| paper, lpd | 30.71/23.21 |  |"
    assert ours_lpd == "| ours, lpd |  |  |"


def test_a_cell_depends_on_how_its_model_is_sampled(tmp_path: Path) -> None:
    shipped = shipped_folder("bdgd/limited-90")
    assert shipped is not None
    folder = tmp_path / "model"
    shutil.copytree(shipped, folder)
    before = hash_of(str(folder), "limited-90")
    assert before == hash_of("bdgd", "limited-90") != hash_of("bdgd", "sparse-32")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["settings"]["inference"]["features"] = "half"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert hash_of(str(folder), "limited-90") != before
