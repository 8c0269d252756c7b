"""Files of arrays and attributes, in HDF5 (`.h5`, `.hdf5`) or NPZ (`.npz`). A damaged file raises a `UserError`.

Arrays and attributes have the same names in both formats. In an NPZ an attribute is a separate entry; if an array has
the same name, the entry of the attribute is called `NAME_attribute`.
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
SPARE_BYTES = 1_000_000  # always left free on the disk: HDF5 crashes if it cannot flush its buffers

# Exceptions that h5py and numpy may raise when they read a damaged file, or a file from other software.
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
    """Raises unless the file name ends in one of SUFFIXES."""
    if suffix(path) not in SUFFIXES:
        raise UserError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}, got '{Path(path).suffix}'")


class ArrayWriter:
    """Writes arrays that grow along their first axis, then renames the temporary file to its final name.

    Use it as a context manager: after an exception no file is left. An HDF5 file grows on disk; the arrays of an NPZ
    file stay in memory until the end.
    """

    def __init__(self, path: Path | str):
        check_suffix(path)
        self._path = Path(path)
        self._stack = contextlib.ExitStack()
        self._attributes: dict[str, Attribute] = {}
        self._appended: dict[str, list[NDArray[Any]]] = {}

    def __enter__(self) -> Self:
        self._partial = self._stack.enter_context(replacing(self._path))
        self._file = _new_hdf5(self._partial) if suffix(self._path) in HDF5_SUFFIXES else None
        return self

    def append(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Appends each array, along the first axis, to the stored array of the same name."""
        if self._file is not None:
            _check_space(self._partial, sum(array.nbytes for array in arrays.values()))
        for name, array in arrays.items():
            if self._file is None:
                self._appended.setdefault(name, []).append(array)
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
        entries: dict[str, Any] = {name: np.concatenate(arrays) for name, arrays in self._appended.items()}
        for name, value in self._attributes.items():
            entries[name if name not in self._appended else f"{name}_attribute"] = np.array(value)
        with self._partial.open("wb") as file:
            np.savez(file, **entries)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


def _new_hdf5(path: Path) -> h5py.File:
    # The oldest format that allows attributes above 64 kB, e.g. a geometry of thousands of angles.
    return h5py.File(path, "w", libver=("v108", "v110"))


def _check_space(path: Path, needed: int) -> None:
    """Raises if the disk has too little free space for `needed` bytes."""
    free = shutil.disk_usage(path.parent).free
    if free < needed + SPARE_BYTES:
        raise OSError(
            errno.ENOSPC,
            f"not enough space on the disk: {needed / 1e6:.1f} MB more are needed, {free / 1e6:.1f} MB are free",
        )


def _chunk(array: NDArray[Any]) -> tuple[int, ...]:
    return (1, *(max(1, size) for size in array.shape[1:]))


class ArrayReader:
    """Reads a file of `ArrayWriter`, or a file from other software with the same names.

    Of an HDF5 array only the requested slice is read.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        check_readable(path)
        self._file = _open(self.path)
        self._loaded: dict[str, NDArray[Any]] = {}  # arrays of an NPZ that were read: each can only be read completely

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def names(self) -> list[str]:
        """Names of the arrays (in an NPZ the attributes too)."""
        return list(self._file.keys())

    def array(self, name: str) -> Any:
        """The array of that name: a numpy array (NPZ), or an h5py dataset (HDF5), which is read when it is sliced."""
        if name not in self._file:
            raise UserError(f"{self.path}: expected an array '{name}', found {_listing(self.names)}")
        with self._as_user_errors():
            array = self._loaded.get(name)
            if array is None:
                array = self._file[name]
                if not isinstance(self._file, h5py.File):
                    self._loaded[name] = array
            if array.dtype.kind not in "fiub" or array.shape is None:
                raise UserError(f"{self.path}: expected numbers in '{name}', got {array.dtype}")
        return array

    def read(self, name: str, first: int | None = None, last: int | None = None) -> NDArray[np.float32]:
        """Entries `first` to `last` - 1 of an array as float32."""
        array = self.array(name)
        with self._as_user_errors(), np.errstate(over="ignore"):
            return np.asarray(array[first:last]).astype(np.float32)

    def attribute(self, name: str) -> Attribute | None:
        """The value of an attribute, text or a number; None if the file does not have the attribute."""
        with self._as_user_errors():
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
        """An attribute that must be text; None if the file does not have it."""
        value = self.attribute(name)
        if value is not None and not isinstance(value, str):
            raise UserError(f"{self.path}: expected text in the attribute '{name}', got {value!r:.40}")
        return value

    def whole(self, name: str) -> int:
        """An attribute that must be a whole number; 0 if the file does not have it."""
        value = self.attribute(name) or 0
        if isinstance(value, str) or value != int(value):
            raise UserError(f"{self.path}: expected a whole number in the attribute '{name}', got {value!r:.40}")
        return int(value)

    @contextlib.contextmanager
    def _as_user_errors(self) -> Iterator[None]:
        """Raises FAULTS of the `with` block as a UserError that names the file."""
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
        raise UserError(f"{path}: not a complete {kind} file (damaged, truncated, or of another kind)")
    return file


def _listing(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) if names else "nothing"


def check_finite(
    what: str,  # name of the array in the message
    array: Any,  # (images, ..., rows, columns)
    first: int = 0,  # index of the array's first image in its file
) -> None:
    """Raises if a number is NaN, infinite or too large for float32; the message says where the first such number is."""
    bad = ~np.isfinite(array)
    if bad.any():
        first_bad = [int(index) for index in np.argwhere(bad)[0]]
        raise UserError(
            f"{what} has {int(bad.sum())} values that are NaN or infinite or too large, the first in image "
            f"{first + first_bad[0]} at row {first_bad[-2]}, column {first_bad[-1]}; correct or remove them"
        )
