"""Settings from a TOML file and from `--set key=value`, loaded into a frozen dataclass.

A field of the dataclass may be another dataclass of settings, called a part. A part is a table in TOML; its settings are
`part.key=value` on the command line.
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

LARGEST = 1e30  # limit of the absolute value of a setting, so that its square does not overflow


def load_settings(
    kind: type[Settings],
    path: Path | str | None = None,
    overrides: Sequence[str] = (),  # "key=value"; they replace values of the file
    base: Settings | None = None,  # the settings to start from; default: the defaults of the class
) -> Settings:
    """The base settings, changed by the file, then by the overrides; an unknown key is an error that lists the known keys."""
    values = read_toml(path) if path is not None else {}
    for text in overrides:
        key, value = parse_override(text)
        put(values, key, value)
    return settings_from(kind, values, base)


def read_toml(path: Path | str) -> dict[str, Any]:
    """The content of a TOML file, as nested dictionaries."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: expected a TOML file, got something else ({error})") from None


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value` as a key and a TOML value; a value that is not TOML is text."""
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
        return [f"{key}={_toml_value(key, value)}" for key, value in _flattened(settings)]
    if isinstance(settings, str) or not all(isinstance(text, str) for text in settings):
        raise UserError(f'settings: expected {{"key": value}} or ["key=value"], got {settings!r}')
    return list(settings)


def _flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """("part.key", value) for every value of nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _toml_value(key: str, value: Any) -> str:
    """A value as TOML text, which for these types is JSON text."""
    if not isinstance(value, str | int | float | bool):
        raise UserError(f"setting {key}: expected text, a number, true or false, got {value!r}")
    return json.dumps(value, ensure_ascii=False)


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets the value of `part.key` in nested tables."""
    *parts, last = key.split(".")
    for part in parts:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UserError(f"setting {part}: expected a table with the key '{last}', got {inner!r}")
        values = inner
    values[last] = value


def settings_from(
    kind: type[Settings],
    values: Mapping[str, Any],
    base: Settings | None = None,  # has the fields that `values` does not have; default: the defaults of the class
    prefix: str = "",  # "part.", before the names of settings in messages
) -> Settings:
    """A frozen dataclass from a table; the type of every value is checked."""
    types = typing.get_type_hints(kind)
    known = setting_names(kind, prefix)
    chosen: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if key not in types:
            raise UserError(unknown("setting", name, known))
        if dataclasses.is_dataclass(types[key]):
            if not isinstance(value, Mapping):
                raise UserError(
                    f"setting {name}: expected a table, e.g. {name}.{_first_name(types[key])}=..., got {value!r}"
                )
            inner = getattr(base, key) if base is not None else None
            chosen[key] = settings_from(types[key], value, inner, f"{name}.")
        elif not _has_type(value, types[key]):
            raise UserError(f"setting {name}: expected {_type_name(types[key])}, got {value!r}")
        else:
            chosen[key] = float(value) if types[key] is float else value
    try:
        return dataclasses.replace(base, **chosen) if base is not None else kind(**chosen)  # type: ignore[type-var]
    except UserError as error:
        raise UserError(str(error).replace("setting ", f"setting {prefix}", 1)) from None


def setting_names(kind: Any, prefix: str = "") -> list[str]:
    """The names of all settings of a dataclass; a setting of a part has the name `part.key`."""
    types = typing.get_type_hints(kind)
    names: list[str] = []
    for field in dataclasses.fields(kind):
        inner = types[field.name]
        names += (
            setting_names(inner, f"{prefix}{field.name}.") if dataclasses.is_dataclass(inner) else [prefix + field.name]
        )
    return names


def _first_name(kind: Any) -> str:
    return dataclasses.fields(kind)[0].name


def _has_type(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    return isinstance(value, kind)


def _type_name(kind: Any) -> str:
    return {float: "a number", int: "a whole number", str: "text", bool: "true or false"}.get(kind, str(kind))
