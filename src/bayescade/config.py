"""Settings from a TOML file and `--set key=value`, loaded into the frozen dataclass beside the thing they set.

Settings may have parts: a table in TOML, `part.key=value` on the command line.
"""

import dataclasses
import json
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bayescade.errors import UserError
from bayescade.plugins import unknown
from bayescade.storage.files import read_text

Settings = TypeVar("Settings")

LARGEST = 1e30  # no setting is larger, and the square of none overflows


def load_settings(
    kind: type[Settings],
    path: Path | str | None = None,
    overrides: Sequence[str] = (),  # "key=value"; they beat the file
    base: Settings | None = None,  # the settings to start from; default: the defaults of the class
) -> Settings:
    """The settings with the file's values, then the overrides'; an unknown key is an error listing the keys."""
    values = read_toml(path) if path is not None else {}
    for text in overrides:
        key, value = parse_override(text)
        put(values, key, value)
    return settings_from(kind, values, base)


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
        raise UserError(f"settings: expected key=value, got '{text}'")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value.strip()


def settings_texts(
    settings: Sequence[str] | Mapping[str, Any],  # ["part.key=value"], {"part.key": value} or {"part": {"key": value}}
) -> list[str]:
    """Settings in any of their forms as a list of "part.key=value"."""
    if isinstance(settings, Mapping):
        return [f"{key}={_toml_value(key, value)}" for key, value in _leaves(settings)]
    if isinstance(settings, str) or not all(isinstance(text, str) for text in settings):
        raise UserError(f'settings: expected {{"key": value}} or ["key=value"], got {settings!r}')
    return list(settings)


def _leaves(table: Mapping[str, Any], part: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{part}{key}.")
        else:
            yield f"{part}{key}", value


def _toml_value(key: str, value: Any) -> str:
    """A value as TOML text, which for these types is JSON text."""
    if not isinstance(value, str | int | float | bool):
        raise UserError(f"setting {key}: expected text, a number, true or false, got {value!r}")
    return json.dumps(value, ensure_ascii=False)


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets `part.key` in nested tables."""
    *parts, last = key.split(".")
    for part in parts:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UserError(f"setting {part}: expected a table to hold {last}, got {inner!r}")
        values = inner
    values[last] = value


def settings_from(
    kind: type[Settings], values: Mapping[str, Any], base: Settings | None = None, part: str = ""
) -> Settings:
    """A frozen dataclass from a table, every value checked against the type of its field."""
    types = typing.get_type_hints(kind)
    known = setting_names(kind, part)
    chosen: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{part}{key}"
        if key not in types:
            raise UserError(unknown("setting", name, known))
        if dataclasses.is_dataclass(types[key]):
            if not isinstance(value, Mapping):
                raise UserError(
                    f"setting {name}: expected a table, e.g. {name}.{_first(types[key])}=..., got {value!r}"
                )
            inner = getattr(base, key) if base is not None else None
            chosen[key] = settings_from(types[key], value, inner, f"{name}.")
        elif not _fits(value, types[key]):
            raise UserError(f"setting {name}: expected {_type_name(types[key])}, got {value!r}")
        else:
            chosen[key] = float(value) if types[key] is float else value
    try:
        return dataclasses.replace(base, **chosen) if base is not None else kind(**chosen)  # type: ignore[type-var]
    except UserError as error:
        raise UserError(str(error).replace("setting ", f"setting {part}", 1)) from None


def setting_names(kind: Any, part: str = "") -> list[str]:
    """The names of all settings of a dataclass, those of its parts with the part in front."""
    types = typing.get_type_hints(kind)
    names: list[str] = []
    for field in dataclasses.fields(kind):
        inner = types[field.name]
        names += (
            setting_names(inner, f"{part}{field.name}.") if dataclasses.is_dataclass(inner) else [part + field.name]
        )
    return names


def _first(kind: Any) -> str:
    return dataclasses.fields(kind)[0].name


def _fits(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, kind)


def _type_name(kind: Any) -> str:
    return {float: "a number", int: "a whole number", str: "text", bool: "true or false"}.get(kind, str(kind))
