import dataclasses
from pathlib import Path

import pytest

from bayescade.config import load_settings, settings_texts
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


@dataclasses.dataclass(frozen=True)
class Parts:
    first: Example = dataclasses.field(default_factory=Example)
    second: Example = dataclasses.field(default_factory=Example)
    loud: bool = False


def test_parts_are_tables_and_dots(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("loud = true\n[first]\nsteps = 9\n")
    base = Parts(second=Example(name="base"))
    loaded = load_settings(Parts, path, ["first.rate=2", "second.steps=5"], base=base)
    assert loaded == Parts(Example(rate=2.0, steps=9), Example(steps=5, name="base"), loud=True)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps=7", r"unknown setting 'steps'.* There are: first.rate, first.steps, .*second.fast, loud"),
        ("first.stesp=7", r"unknown setting 'first.stesp'; did you mean 'first.steps'\?"),
        ("first=7", r"setting first: expected a table, e.g. first.rate=..., got 7"),
        ("first.steps=x", "setting first.steps: expected a whole number"),
        ("loud.very=1", "setting loud: expected true or false"),
    ],
)
def test_bad_overrides_of_parts_are_named(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_settings(Parts, overrides=[override])


@pytest.mark.parametrize(
    "settings",
    [
        ["first.rate=2.5", "second.name=b", "second.fast=true", "loud=true"],
        {"first.rate": 2.5, "second.name": "b", "second.fast": True, "loud": True},
        {"first": {"rate": 2.5}, "second": {"name": "b", "fast": True}, "loud": True},
    ],
)
def test_settings_in_any_form(settings) -> None:
    expected = Parts(Example(rate=2.5), Example(name="b", fast=True), loud=True)
    assert load_settings(Parts, overrides=settings_texts(settings)) == expected


def test_texts_and_small_numbers_go_through_a_mapping() -> None:
    for name in ('a "quoted" = \\ text\n', "true", "1", "\u00e9\U0001f600", ""):
        assert load_settings(Example, overrides=settings_texts({"name": name})) == Example(name=name)
    assert load_settings(Example, overrides=settings_texts({"rate": 1e-17})) == Example(rate=1e-17)


@pytest.mark.parametrize("settings", ["steps=3", [3], {"steps": None}, {"steps": [1]}])
def test_settings_in_no_form_are_named(settings) -> None:
    with pytest.raises(UserError, match="expected"):
        settings_texts(settings)
