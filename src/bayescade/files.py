"""Files that are whole or absent: written under a temporary name and moved into place; read with every fault named.

Arrays with attributes are kept in HDF5 (`.h5`, `.hdf5`) or NPZ (`.npz`) under the same names. In an NPZ an attribute is
a text entry of its own; one that bears the name of an array gets `_attribute` behind it.
"""

import contextlib
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from bayescade.errors import UserError

HDF5_SUFFIXES = (".h5", ".hdf5")
SUFFIXES = (*HDF5_SUFFIXES, ".npz")
Attribute = str | int | float


@contextlib.contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """A temporary path beside `path`; when the block ends well, it takes the place of `path` in one step.

    A process that dies in between leaves `path` as it was; what it left under the temporary name is removed by the next
    write to the same path.
    """
    path = Path(path)
    check_writable(path)
    _remove_partials(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb+") as written:
            os.fsync(written.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def check_writable(path: Path | str) -> None:
    """Raises when a file cannot be put at `path`, before any work is done for it."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path}: expected a file name to write to, got a folder; add a name, e.g. {path / 'out.h5'}")
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist; make it with: mkdir -p {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path}: the folder {path.parent} is not writable; choose another with -o")


def make_folder(path: Path | str) -> Path:
    """The folder, made if it is not there."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot make this folder ({error.strerror}); choose another") from None
    return path


def _remove_partials(path: Path) -> None:
    pattern = re.compile(re.escape(f".{path.name}.") + r"([0-9]+)\.partial")
    for other in path.parent.glob(f".{path.name}.*.partial"):
        match = pattern.fullmatch(other.name)
        if match and not _alive(int(match[1])):
            other.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def write_text(path: Path | str, text: str) -> None:
    """The text as a file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(text)


def write_json(path: Path | str, value: Any) -> None:
    """The value as a JSON file; NaN is an error."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def check_suffix(path: Path | str) -> None:
    """Raises unless the name ends like a file of arrays."""
    if Path(path).suffix not in SUFFIXES:
        raise UserError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}, got '{Path(path).suffix}'")


class ArrayWriter:
    """Writes arrays that grow along their first axis, then moves the file into place.

    Use it as a context manager: an exception inside leaves nothing behind. HDF5 grows on disk; NPZ is kept in memory
    until the end.
    """

    def __init__(self, path: Path | str):
        check_suffix(path)
        self._path = Path(path)
        self._stack = contextlib.ExitStack()
        self._attributes: dict[str, Attribute] = {}
        self._parts: dict[str, list[NDArray[Any]]] = {}

    def __enter__(self) -> Self:
        self._partial = self._stack.enter_context(replacing(self._path))
        self._file = _new_hdf5(self._partial) if self._path.suffix in HDF5_SUFFIXES else None
        return self

    def append(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Puts the arrays behind what is there under their names."""
        for name, array in arrays.items():
            if self._file is None:
                self._parts.setdefault(name, []).append(array)
            elif name not in self._file:
                self._file.create_dataset(name, data=array, maxshape=(None, *array.shape[1:]), chunks=_chunk(array))
            else:
                dataset = self._file[name]
                dataset.resize(len(dataset) + len(array), axis=0)
                dataset[-len(array) :] = array

    def attribute(self, name: str, value: Attribute) -> None:
        """Sets an attribute of the file."""
        self._attributes[name] = value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        except BaseException as failure:
            self._close()
            self._stack.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self._close()
        self._stack.__exit__(kind, error, trace)

    def _finish(self) -> None:
        if self._file is not None:
            for name, value in self._attributes.items():
                self._file.attrs[name] = value
            return
        entries: dict[str, Any] = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        for name, value in self._attributes.items():
            entries[name if name not in self._parts else f"{name}_attribute"] = np.array(value)
        with self._partial.open("wb") as file:
            np.savez(file, **entries)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


def _new_hdf5(path: Path) -> h5py.File:
    # The oldest format in which an attribute may be larger than 64 kB (a geometry of some thousand angles is).
    return h5py.File(path, "w", libver=("v108", "v110"))


def _chunk(array: NDArray[Any]) -> tuple[int, ...]:
    return (1, *(max(1, size) for size in array.shape[1:]))


class ArrayReader:
    """Reads a file of `ArrayWriter`, or one by another hand with the same names. HDF5 is read slice by slice."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        check_readable(self.path)
        self._file = _open(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def names(self) -> list[str]:
        """Names of the arrays (in an NPZ the attributes too)."""
        return list(self._file.keys())

    def array(self, name: str) -> Any:
        """The array: a numpy array or an h5py dataset, which is read when it is sliced."""
        if name not in self._file:
            raise UserError(f"{self.path}: expected an array '{name}', found {_listing(self.names)}")
        with self._faults():
            array = self._file[name]
        if not hasattr(array, "shape") or array.dtype.kind not in "fiub":
            raise UserError(f"{self.path}: expected numbers in '{name}', got {getattr(array, 'dtype', 'a group')}")
        return array

    def read(self, name: str, first: int | None = None, last: int | None = None) -> NDArray[np.float32]:
        """Rows `first` to `last` - 1 of an array as float32."""
        with self._faults():
            return np.asarray(self.array(name)[first:last], dtype=np.float32)

    def attribute(self, name: str) -> Any:
        """An attribute, or None where there is none."""
        if isinstance(self._file, h5py.File):
            value = self._file.attrs.get(name)
        else:
            key = f"{name}_attribute" if f"{name}_attribute" in self._file else name
            with self._faults():
                value = self._file.get(key)
            value = None if value is None or np.ndim(value) else value.item()
        return value.decode() if isinstance(value, bytes) else value

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"{self.path}: the file is damaged ({error}); make or copy it again") from None
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{self.path}: the file holds no plain array ({error})") from None


def check_readable(path: Path | str) -> None:
    """Raises unless there is a file to read."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path}: expected a file, got a folder")
    if not path.exists():
        raise UserError(f"{path}: there is no such file; check the name")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path}: no permission to read this file")


def _open(path: Path) -> Any:
    check_suffix(path)
    try:
        if path.suffix in HDF5_SUFFIXES:
            return h5py.File(path, "r")
        return np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile):
        kind = "NPZ" if path.suffix == ".npz" else "HDF5"
        raise UserError(f"{path}: not a whole {kind} file (damaged, cut short, or of another kind)") from None


def _listing(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) if names else "nothing"


def check_finite(what: str, array: Any, first: int = 0) -> None:
    """Raises when a number is NaN or infinite, and says where the first one is."""
    bad = ~np.isfinite(array)
    if bad.any():
        image, row, column = (int(place) for place in np.argwhere(bad)[0])
        raise UserError(
            f"{what} has {int(bad.sum())} values that are NaN or infinite, the first in image {first + image} at row {row}, "
            f"column {column}; mend or mask them"
        )
