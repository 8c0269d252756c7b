"""Scan files: sinograms with their geometry, and the truth if it is known (HDF5 or NPZ)."""

import dataclasses
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from bayescade import __version__
from bayescade.data.noise import Noise, noise_from_json, noise_from_text
from bayescade.data.scanner import Scanner
from bayescade.data.simulate import Scans
from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry, geometry_from_json
from bayescade.storage.arrays import ArrayReader, ArrayWriter, check_finite


class ScanWriter:
    """Writes a scan file batch by batch; the file appears at the end of the `with` statement."""

    def __init__(self, path: Path | str, geometry: Geometry, noise: Noise, seed: int, scanner: Scanner | None = None):
        self._arrays = ArrayWriter(path)
        self._arrays.attribute("geometry", geometry.to_json())
        self._arrays.attribute("seed", seed)
        self._arrays.attribute("bayescade_version", __version__)
        self._arrays.attribute("noise_model", json.dumps(noise.to_json()))
        self._arrays.attribute("scanner", json.dumps(dataclasses.asdict(scanner or Scanner())))
        for name, value in _noise_numbers(noise).items():
            self._arrays.attribute(name, value)

    def __enter__(self) -> Self:
        self._arrays.__enter__()
        return self

    def append(self, scans: Scans) -> None:
        """Adds a batch of scans at the end."""
        arrays = {"sinogram": _to_array(scans.sinogram), "truth": _to_array(scans.truth)}
        for name, array in arrays.items():
            check_finite(f"the simulated {name}", array)
        self._arrays.append(arrays)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._arrays.__exit__(kind, error, trace)


def _noise_numbers(noise: Noise) -> dict[str, float]:
    """The file attributes of the noise models of bayescade; empty for other noise models."""
    if noise.model == "gaussian":
        return {"noise": noise.settings.relative}
    if noise.model == "poisson":
        return {"noise": 0.0, **dataclasses.asdict(noise.settings)}
    return {}


def _to_array(batch: Tensor) -> Any:
    return batch[:, 0].to("cpu", torch.float32).numpy()


@dataclasses.dataclass(frozen=True)
class ScanBatch:
    """Consecutive scans of a file."""

    sinogram: Tensor  # (batch, 1, views, bins)
    truth: Tensor | None  # (batch, 1, height, width); None if the file has no truth


class ScanReader:
    """Reads a scan file. Checks shapes and units, and that all numbers are finite."""

    def __init__(self, path: Path | str):
        self._file = ArrayReader(path)
        self._path = path
        try:
            self._check_all()
        except BaseException:
            self._file.__exit__()
            raise

    def _check_all(self) -> None:
        text = self._file.text("geometry")
        if text is None:
            raise UserError(
                f"{self._path}: expected an attribute 'geometry' (JSON text); make scan files with: bayescade simulate"
            )
        try:
            self.geometry = geometry_from_json(text)
        except UserError as error:
            raise UserError(f"{self._path}: {error}") from None
        self.count = self._checked_count("sinogram", self.geometry.sinogram_shape)
        self.has_truth = "truth" in self._file.names
        if self.has_truth and self._checked_count("truth", self.geometry.image_shape) != self.count:
            raise UserError(f"{self._path}: expected {self.count} truths, one for each sinogram")

    def _checked_count(self, name: str, shape: tuple[int, int]) -> int:
        """The number of images in an array; raises an error if an image does not have this shape."""
        array = self._file.array(name)
        if array.ndim != 3 or tuple(array.shape[1:]) != shape:
            expected = f"(images, {shape[0]}, {shape[1]})"
            raise UserError(
                f"{self._path}: expected '{name}' of shape {expected}, as in its geometry, got {array.shape}"
            )
        if len(array) == 0:
            raise UserError(f"{self._path}: expected at least one image in '{name}', got none")
        return len(array)

    def read(self, first: int, count: int) -> ScanBatch:
        """Scans `first` to `first` + `count` - 1."""
        truth = self._read_finite("truth", first, count) if self.has_truth else None
        return ScanBatch(self._read_finite("sinogram", first, count), truth)

    def noise(self) -> Noise | None:
        """The noise that is stored in the file, in the new or the old form; None if no noise is stored."""
        text = self._file.text("noise_model")
        names = {"relative": "noise", "photons": "photons", "attenuation": "attenuation"}
        old = {key: value for key, name in names.items() if (value := self._file.attribute(name)) is not None}
        if text is None and not old:
            return None
        try:
            return noise_from_text(text) if text is not None else noise_from_json(old)
        except UserError as error:
            raise UserError(f"{self._path}: {error}") from None

    def _read_finite(self, name: str, first: int, count: int) -> Tensor:
        array = self._file.read(name, first, first + count)
        check_finite(f"{self._path}: {name}", array, first)
        return torch.from_numpy(array)[:, None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__()
