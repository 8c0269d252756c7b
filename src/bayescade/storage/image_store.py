"""Stores of many images or sinograms: a tensor, or a file from which only the requested images are read.

Both kinds are indexed with a slice or with a tensor of indices. The result is a tensor on the device of the store.
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
    """Images in a temporary file without a name, which the system removes when the process ends."""

    def __init__(self, folder: Path, shape: Sequence[int], dtype: torch.dtype, device: torch.device):
        self.folder = folder
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.device = device
        self._template = torch.empty(self.shape[1:], dtype=dtype).numpy()  # has the type and shape of one image
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, batch: slice | Tensor) -> Tensor:
        indices = range(len(self))[batch] if isinstance(batch, slice) else batch.tolist()
        images = np.empty((len(indices), *self._template.shape), self._template.dtype)
        if isinstance(indices, range) and indices.step == 1:
            self._read(images, indices.start)
        else:
            for image, index in zip(images, indices, strict=True):
                self._read(image, index)
        return torch.from_numpy(images).to(self.device)

    def __setitem__(self, batch: slice, images: Tensor) -> None:
        first, stop, step = batch.indices(len(self))
        values = images.detach().to("cpu", self.dtype).contiguous().numpy()
        if step != 1 or values.shape != (stop - first, *self._template.shape):
            raise ValueError(f"expected {stop - first} images of {self._template.shape}, got {values.shape}")
        remaining, offset = values.data.cast("B") if values.size else memoryview(b""), first * self._template.nbytes
        try:
            while remaining:
                written = os.pwrite(self._file.fileno(), remaining, offset)
                remaining, offset = remaining[written:], offset + written
        except OSError as error:
            raise Failure(f"{self.folder}: training images do not fit: {error.strerror}; free disk space") from None

    def _read(self, out: np.ndarray, index: int) -> None:
        remaining, offset = out.data.cast("B") if out.size else memoryview(b""), index * self._template.nbytes
        while remaining:
            read = os.preadv(self._file.fileno(), [remaining], offset)
            if read == 0:
                raise Failure(f"{self.folder}: a file with training images is shorter than it was")
            remaining, offset = remaining[read:], offset + read


ImageStore = Tensor | FileImageStore


def store_like(store: ImageStore, channels: int | None = None, images: int | None = None) -> ImageStore:
    """An empty store with the shape, type and device of `store`, in memory or in a file like `store`.

    `channels` and `images` replace the numbers of channels and images.
    """
    shape = (images or len(store), channels or store.shape[1], *store.shape[2:])
    if isinstance(store, Tensor):
        return torch.empty(shape, dtype=store.dtype, device=store.device)
    return FileImageStore(store.folder, shape, store.dtype, store.device)


def new_store(folder: Path | None, shape: Sequence[int], device: torch.device) -> ImageStore:
    """An empty store of float32 images: in a file in the folder, or in memory if the folder is None."""
    if folder is None:
        return torch.empty(tuple(shape), device=device)
    return FileImageStore(folder, shape, torch.float32, device)


def copy_images(store: ImageStore, indices: Tensor, out: Tensor) -> None:
    """Copies the images with these indices into `out`."""
    if isinstance(store, Tensor):
        torch.index_select(store, 0, indices, out=out)
    else:
        out.copy_(store[indices])
