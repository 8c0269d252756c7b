import dataclasses
from pathlib import Path

import pytest

from bayescade.config import load_settings
from bayescade.errors import UserError


@dataclasses.dataclass(frozen=True)
class Example:
    rate: float = 0.5
    steps: int = 3
    name: str = "a"
    fast: bool = False


def test_defaults_then_file_then_overrides(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("rate = 2\nname = 'file'\n")
    assert load_settings(Example) == Example()
    assert load_settings(Example, path) == Example(rate=2.0, name="file")
    loaded = load_settings(Example, path, ["name=line", "steps=7", "fast=true", "rate=1e-3"])
    assert loaded == Example(rate=1e-3, steps=7, name="line", fast=True)
    assert isinstance(load_settings(Example, path).rate, float)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stesp=7", r"unknown setting 'stesp'; did you mean 'steps'\? There are: rate, steps, name, fast"),
        ("steps=1.5", "steps: expected a whole number, got 1.5"),
        ("steps=true", "whole number"),
        ("rate=quick", "rate: expected a number, got 'quick'"),
        ("fast=1", "true or false"),
        ("steps", "expected key=value"),
        ("=3", "expected key=value"),
    ],
)
def test_bad_overrides_are_named(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_settings(Example, overrides=[override])


def test_bad_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("rate = ")
    with pytest.raises(UserError, match=r"bad\.toml: expected a TOML file"):
        load_settings(Example, tmp_path / "bad.toml")
    with pytest.raises(UserError, match="no such file"):
        load_settings(Example, tmp_path / "none.toml")
