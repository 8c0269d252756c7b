"""Settings from a TOML file and `--set key=value`, loaded into the frozen dataclass beside the thing they set."""

import dataclasses
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bayescade.errors import UserError
from bayescade.files import read_text
from bayescade.shelf import unknown

Settings = TypeVar("Settings")


def load_settings(
    kind: type[Settings],
    path: Path | str | None = None,
    overrides: Sequence[str] = (),  # "key=value"; they beat the file
) -> Settings:
    """The settings with the file's values, then the overrides'; an unknown key is an error listing the keys."""
    values = read_toml(path) if path is not None else {}
    for text in overrides:
        key, value = parse_override(text)
        values[key] = value
    return settings_from(kind, values)


def read_toml(path: Path | str) -> dict[str, Any]:
    """The file's table."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: expected a TOML file, got something else ({error})") from None


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value` as a key and a TOML value; a bare word is text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set: expected key=value, got '{text}'")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value.strip()


def settings_from(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """A frozen dataclass from a table, every value checked against the type of its field."""
    types = typing.get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in known:
            raise UserError(unknown("setting", key, known))
        if not _fits(value, types[key]):
            raise UserError(f"setting {key}: expected {_type_name(types[key])}, got {value!r}")
    converted = {key: float(value) if types[key] is float else value for key, value in values.items()}
    return kind(**converted)


def _fits(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _type_name(kind: Any) -> str:
    return {float: "a number", int: "a whole number", str: "text", bool: "true or false"}.get(kind, str(kind))
