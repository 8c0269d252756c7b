"""ImageStore of numbers, one per image: a tensor, or a file of which only the rows that are asked for come into memory.

Both are indexed with a slice or with a tensor of places and give a tensor on the device they belong to.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from bayescade.errors import Failure


@final
class FileImageStore:
    """ImageStore in a file without a name, which is gone when nobody needs it any more, however the process ends."""

    def __init__(self, folder: Path, shape: Sequence[int], dtype: torch.dtype, device: torch.device):
        self.folder = folder
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.device = device
        self._row = torch.empty(self.shape[1:], dtype=dtype).numpy()  # the kind and size of a row
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, some: slice | Tensor) -> Tensor:
        places = range(len(self))[some] if isinstance(some, slice) else some.tolist()
        found = np.empty((len(places), *self._row.shape), self._row.dtype)
        if isinstance(places, range) and places.step == 1:
            self._read(found, places.start)
        else:
            for row, place in zip(found, places, strict=True):
                self._read(row, place)
        return torch.from_numpy(found).to(self.device)

    def __setitem__(self, some: slice, rows: Tensor) -> None:
        first, last, step = some.indices(len(self))
        values = rows.detach().to("cpu", self.dtype).contiguous().numpy()
        if step != 1 or values.shape != (last - first, *self._row.shape):
            raise ValueError(f"expected {last - first} rows of {self._row.shape}, got {values.shape}")
        left, place = values.data.cast("B") if values.size else memoryview(b""), first * self._row.nbytes
        try:
            while left:
                written = os.pwrite(self._file.fileno(), left, place)
                left, place = left[written:], place + written
        except OSError as error:
            raise Failure(f"{self.folder}: training images do not fit: {error.strerror}; free some space") from None

    def _read(self, out: np.ndarray, place: int) -> None:
        left, at = out.data.cast("B") if out.size else memoryview(b""), place * self._row.nbytes
        while left:
            read = os.preadv(self._file.fileno(), [left], at)
            if read == 0:
                raise Failure(f"{self.folder}: a file with training images is shorter than it was")
            left, at = left[read:], at + read


ImageStore = Tensor | FileImageStore


def store_like(rows: ImageStore) -> ImageStore:
    """Room for as many rows of the same kind, in memory or in a file as these are."""
    if isinstance(rows, Tensor):
        return torch.empty_like(rows)
    return FileImageStore(rows.folder, rows.shape, rows.dtype, rows.device)


def new_store(folder: Path | None, shape: Sequence[int], device: torch.device) -> ImageStore:
    """Room for rows of float32: in files of the folder, or in memory without one."""
    if folder is None:
        return torch.empty(tuple(shape), device=device)
    return FileImageStore(folder, shape, torch.float32, device)


def in_memory(rows: ImageStore) -> Tensor:
    """All rows as a tensor."""
    return rows if isinstance(rows, Tensor) else rows[:]


def copy_images(rows: ImageStore, places: Tensor, out: Tensor) -> None:
    """Copies some rows into a tensor that is there."""
    if isinstance(rows, Tensor):
        torch.index_select(rows, 0, places, out=out)
    else:
        out.copy_(rows[places])
