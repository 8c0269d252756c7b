"""Image files: NPY files, or NPZ and HDF5 files with an array `images` or `truth`."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.storage.arrays import FAULTS, SUFFIXES, ArrayReader, check_finite
from bayescade.storage.files import check_readable, suffix


def read_images(
    path: Path | str,
    shape: tuple[int, int] | None = None,  # expected (height, width)
) -> Tensor:
    """The images of a file, (images, 1, height, width), float32. Values should lie in about [0, 1]; this is not checked."""
    check_readable(path)
    path = Path(path)
    if suffix(path) == ".npy":
        array = _read_npy(path)
    elif suffix(path) in SUFFIXES:
        with ArrayReader(path) as file:
            name = next((name for name in ("images", "truth") if name in file.names), "images")
            array = file.read(name)
    else:
        raise UserError(f"{path}: expected images as .npy, {', '.join(SUFFIXES)}, got '{path.suffix}'")
    if array.dtype.kind not in "fiub":
        raise UserError(f"{path}: expected numbers, got {array.dtype}")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32)
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or 0 in array.shape:
        raise UserError(f"{path}: expected images of shape (images, height, width), got {array.shape}")
    if shape is not None and array.shape[1:] != tuple(shape):
        raise UserError(
            f"{path}: the geometry is for images of {shape[0]} x {shape[1]} pixels, these images have {array.shape[1]} x "
            f"{array.shape[2]}; use a geometry file with image_shape = [{array.shape[1]}, {array.shape[2]}]"
        )
    check_finite(str(path), array)
    return torch.from_numpy(array)[:, None]


def _read_npy(path: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except FAULTS:
        raise UserError(f"{path}: not a complete NPY file of plain numbers") from None
