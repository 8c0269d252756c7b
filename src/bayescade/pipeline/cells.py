"""Cells of a table as files: a cell that is stored is not computed again, so that a run can be killed and continued."""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from bayescade.errors import UserError
from bayescade.storage.files import read_text, write_json


def cell_file_name(
    name: str,
    key: str,  # JSON text of everything that the cell depends on; the file contains it
) -> str:
    """The name of the file of a cell: its name and the start of the hash of its key."""
    return f"{name}_{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


def write_cell(path: Path, key: str, values: dict[str, Any]) -> None:
    """Writes the file of a cell, whole or not at all."""
    write_json(path, {"key": key, "row": values})


def read_cell(
    path: Path,
    key: str,
    names: Collection[str],  # of values that the cell must have
) -> dict[str, Any]:
    """The values of a stored cell; raises an error if the file is damaged or of another cell."""
    try:
        stored = json.loads(read_text(path))
        if stored["key"] == key and stored["row"].keys() >= set(names):
            values: dict[str, Any] = stored["row"]
            return values
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise UserError(f"{path}: damaged; delete it and run the same command again")
