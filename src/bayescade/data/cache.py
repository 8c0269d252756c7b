"""A cache of arrays, keyed by the hash of everything that determines them. If the folder cannot be written, nothing is cached.

A file is named by the hash of its key and contains the key. It is written completely or not at all. If a file is damaged or
contains another key, there is a warning and the arrays are made again (an NPZ file has a checksum of every array).
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayescade.errors import UserError
from bayescade.storage.arrays import ArrayReader, ArrayWriter
from bayescade.storage.files import make_folder

Arrays = dict[str, NDArray[Any]]


def cache_folder() -> Path:
    """The folder named by BAYESCADE_CACHE, or bayescade in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("BAYESCADE_CACHE") or Path(base) / "bayescade")


def cached(
    key: Mapping[str, Any],  # everything that determines the arrays, as JSON values
    make: Callable[[], Arrays],
    folder: Path | None = None,
) -> Arrays:
    """The arrays of the key: read from the cache, or made now and cached."""
    text = json.dumps(key, sort_keys=True, allow_nan=False)
    folder = folder or cache_folder()
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.npz"
    if path.exists():
        try:
            return _read(path, text)
        except UserError as error:
            warnings.warn(f"{error}; the arrays are made again", stacklevel=2)
    arrays = make()
    try:
        make_folder(folder)
        with ArrayWriter(path) as writer:
            writer.attribute("key", text)
            writer.append(arrays)
    except (UserError, OSError):
        pass  # not cached: the arrays are made again next time
    return arrays


def _read(path: Path, text: str) -> Arrays:
    with ArrayReader(path) as file:
        if file.attribute("key") != text:
            raise UserError(f"{path}: this cache file holds the arrays of another key")
        return {name: np.asarray(file.array(name)) for name in file.names if name != "key"}
