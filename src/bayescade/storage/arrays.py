"""Arrays with attributes, in HDF5 (`.h5`, `.hdf5`) or NPZ (`.npz`) under the same names; a damaged file raises an error.

In an NPZ an attribute is a separate entry; one with the name of an array gets the suffix `_attribute`.
"""

import contextlib
import errno
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from bayescade.errors import UserError
from bayescade.storage.files import check_readable, replacing, suffix

HDF5_SUFFIXES = (".h5", ".hdf5")
SUFFIXES = (*HDF5_SUFFIXES, ".npz")
Attribute = str | int | float
SPARE_BYTES = 1_000_000  # left free on a disk: HDF5 crashes when it cannot flush its buffers

# What h5py and numpy may raise when they read a damaged file, or one from other software.
FAULTS = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


def check_suffix(path: Path | str) -> None:
    """Raises unless the name ends like a file of arrays."""
    if suffix(path) not in SUFFIXES:
        raise UserError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}, got '{Path(path).suffix}'")


class ArrayWriter:
    """Writes arrays that grow along their first axis, then renames the temporary file to its final name.

    Use it as a context manager: after an exception no file is left. HDF5 grows on disk; NPZ stays in memory until the
    end.
    """

    def __init__(self, path: Path | str):
        check_suffix(path)
        self._path = Path(path)
        self._stack = contextlib.ExitStack()
        self._attributes: dict[str, Attribute] = {}
        self._parts: dict[str, list[NDArray[Any]]] = {}

    def __enter__(self) -> Self:
        self._partial = self._stack.enter_context(replacing(self._path))
        self._file = _new_hdf5(self._partial) if suffix(self._path) in HDF5_SUFFIXES else None
        return self

    def append(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Appends to the arrays of these names."""
        if self._file is not None:
            _check_space(self._partial, sum(array.nbytes for array in arrays.values()))
        for name, array in arrays.items():
            if self._file is None:
                self._parts.setdefault(name, []).append(array)
            elif name not in self._file:
                self._file.create_dataset(name, data=array, maxshape=(None, *array.shape[1:]), chunks=_chunk(array))
            else:
                dataset = self._file[name]
                dataset.resize(len(dataset) + len(array), axis=0)
                dataset[-len(array) :] = array
        if self._file is not None:
            self._file.flush()

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
    # The oldest format that allows attributes above 64 kB, e.g. a geometry of thousands of angles.
    return h5py.File(path, "w", libver=("v108", "v110"))


def _check_space(path: Path, needed: int) -> None:
    """Raises when the disk has too little free space."""
    free = shutil.disk_usage(path.parent).free
    if free < needed + SPARE_BYTES:
        raise OSError(
            errno.ENOSPC, f"no room on the disk: {needed / 1e6:.1f} MB more are needed, {free / 1e6:.1f} MB are free"
        )


def _chunk(array: NDArray[Any]) -> tuple[int, ...]:
    return (1, *(max(1, size) for size in array.shape[1:]))


class ArrayReader:
    """Reads a file of `ArrayWriter`, or one from other software with the same names. HDF5 is read slice by slice."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        check_readable(path)
        self._file = _open(self.path)
        self._whole: dict[str, NDArray[Any]] = {}  # arrays of an NPZ, which can only be read whole

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
            array = self._whole.get(name)
            if array is None:
                array = self._file[name]
                if not isinstance(self._file, h5py.File):
                    self._whole[name] = array
            if array.dtype.kind not in "fiub" or array.shape is None:
                raise UserError(f"{self.path}: expected numbers in '{name}', got {array.dtype}")
        return array

    def read(self, name: str, first: int | None = None, last: int | None = None) -> NDArray[np.float32]:
        """Entries `first` to `last` - 1 of an array as float32."""
        array = self.array(name)
        with self._faults(), np.errstate(over="ignore"):
            return np.asarray(array[first:last]).astype(np.float32)

    def attribute(self, name: str) -> Attribute | None:
        """A text or a number; None where there is no such attribute."""
        with self._faults():
            if isinstance(self._file, h5py.File):
                value = self._file.attrs.get(name)
            else:
                key = f"{name}_attribute" if f"{name}_attribute" in self._file else name
                value = self._file.get(key)
                value = value.item() if value is not None and np.ndim(value) == 0 else None
            if value is None:
                return None
            value = value.decode() if isinstance(value, bytes) else value
            value = value.item() if isinstance(value, np.generic) else value
            if not isinstance(value, str | int | float):
                raise UserError(f"{self.path}: expected text or a number in the attribute '{name}', got {value!r:.40}")
            return value

    def text(self, name: str) -> str | None:
        """An attribute that must be text."""
        value = self.attribute(name)
        if value is not None and not isinstance(value, str):
            raise UserError(f"{self.path}: expected text in the attribute '{name}', got {value!r:.40}")
        return value

    def whole(self, name: str) -> int:
        """An attribute that must be a whole number; 0 where there is none."""
        value = self.attribute(name) or 0
        if isinstance(value, str) or value != int(value):
            raise UserError(f"{self.path}: expected a whole number in the attribute '{name}', got {value!r:.40}")
        return int(value)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except FAULTS as error:
            raise UserError(
                f"{self.path}: the file is damaged or of another kind ({error}); make or copy it again"
            ) from None


def _open(path: Path) -> Any:
    check_suffix(path)
    kind = "HDF5" if suffix(path) in HDF5_SUFFIXES else "NPZ"
    try:
        file = h5py.File(path, "r") if kind == "HDF5" else np.load(path, allow_pickle=False)
    except FAULTS:
        file = None
    if not isinstance(file, h5py.File | np.lib.npyio.NpzFile):
        raise UserError(f"{path}: not a whole {kind} file (damaged, cut short, or of another kind)")
    return file


def _listing(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) if names else "nothing"


def check_finite(what: str, array: Any, first: int = 0) -> None:
    """Raises when a number is NaN or infinite (or too large for float32), with the position of the first one."""
    bad = ~np.isfinite(array)
    if bad.any():
        position = [int(index) for index in np.argwhere(bad)[0]]
        raise UserError(
            f"{what} has {int(bad.sum())} values that are NaN or infinite or too large, the first in image "
            f"{first + position[0]} at row {position[-2]}, column {position[-1]}; correct or remove them"
        )
