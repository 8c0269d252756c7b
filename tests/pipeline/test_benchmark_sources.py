"""`benchmark sources` at a tiny size: every part follows its cause."""

import json
from pathlib import Path

import pytest

from bayescade.cli import run


@pytest.mark.slow
def test_parts_follow_their_causes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("geo.toml").write_text("bins = 61\nviews = 20\nimage_shape = [40, 40]\n")
    line = ["benchmark", "sources", "--geometry", "geo.toml", "--images", "2", "--out", "out", "--json"]
    assert run(line) == 0
    rows = {row["row"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    base, noisy, centre = (rows[name] for name in ("1 % noise, exact centre", "noise x 4", "centre within 1 bin"))
    assert len(rows) == 6
    assert base["geometry"] == 0
    assert noisy["geometry"] == 0
    assert noisy["aleatoric"] > 1.05 * base["aleatoric"]
    assert noisy["found"] > 1.05 * base["found"]
    assert centre["geometry"] > centre["epistemic"]
    assert centre["found"] > base["found"]
    for row in rows.values():
        assert row["claimed"] ** 2 == pytest.approx(
            sum(row[name] ** 2 for name in ("aleatoric", "epistemic", "geometry"))
        )
    assert "noise x 4" in Path("out/table.md").read_text()
    assert run(["benchmark", "sources", "--model", "fbp", "--images", "1"]) == 2
    assert "no error bars" in capsys.readouterr().err
