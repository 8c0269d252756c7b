"""The result of a method (`Reconstruction`) and its file, and the interface of a method (`Reconstructor`)."""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.storage.arrays import ArrayReader, ArrayWriter, Attribute, check_finite

# Arrays of a result file, with (images, height, width) in front or, for `sample_images`, (images, samples, height, width).
MAPS = (
    "image",
    "aleatoric",
    "epistemic",
    "mc_standard_error",
    "image_standard_error",
    "aleatoric_standard_error",
    "lower",
    "upper",
    "truth",
    "support",
)


@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """Images reconstructed from sinograms, and their uncertainty.

    Maps are (batch, 1, height, width); a map that a method does not give is None. `describe()` lists the maps.
    """

    image: Tensor  # the reconstruction: the mean of the predictive distribution
    model: str  # name of the model that made it
    geometry: str | None = None  # JSON text of the geometry; None where the data are not a scan
    aleatoric: Tensor | None = None  # variance: uncertainty of the data
    epistemic: Tensor | None = None  # variance: uncertainty of the model
    mc_standard_error: Tensor | None = None  # Monte-Carlo error of the epistemic standard deviation
    image_standard_error: Tensor | None = None  # Monte-Carlo error of the image
    aleatoric_standard_error: Tensor | None = None  # Monte-Carlo error of the aleatoric variance
    lower: Tensor | None = None  # lower end of the calibrated interval
    upper: Tensor | None = None  # upper end
    sample_images: Tensor | None = None  # (samples, batch, 1, height, width): samples of the image, if they were stored
    truth: Tensor | None = None  # the true image, if known
    support: Tensor | None = None  # 1 for pixels that the data measure, 0 for others
    samples: int = 0  # Monte-Carlo samples of the maps; 0 for a method without random numbers
    seed: int = 0
    settings: str | None = None  # JSON text of the method's settings
    calibration: str | None = None  # one sentence: what the interval guarantees
    warning: str | None = None  # why this result should not be trusted
    scores: Mapping[str, list[float | None]] | None = None  # per image, when the truth is known

    def __post_init__(self) -> None:
        if self.image.ndim != 4 or self.image.shape[1] != 1 or self.image.numel() == 0:
            raise UserError(f"image: expected shape (batch, 1, height, width), got {tuple(self.image.shape)}")
        for name in MAPS[1:]:
            value = getattr(self, name)
            if value is not None and value.shape != self.image.shape:
                raise UserError(
                    f"{name}: expected the image's shape {tuple(self.image.shape)}, got {tuple(value.shape)}"
                )
        if self.sample_images is not None and self.sample_images.shape[1:] != self.image.shape:
            raise UserError(
                f"sample_images: expected shape (samples, {tuple(self.image.shape)}), got {tuple(self.sample_images.shape)}"
            )

    @property
    def variance(self) -> Tensor:
        """Predictive variance: aleatoric plus epistemic."""
        if self.aleatoric is None or self.epistemic is None:
            raise UserError(f"{self.model} gives an image without uncertainty; there is no variance to show")
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        """Predictive standard deviation."""
        return self.variance.sqrt()

    def describe(self) -> str:
        """A few lines about the result and its maps."""
        count, _, height, width = self.image.shape
        lines = [f"{count} image{'s' if count != 1 else ''} of {height} x {width} by {self.model}"]
        lines += [f"  {name}: {'yes' if getattr(self, name) is not None else 'no'}" for name in MAPS[1:]]
        lines += [f"  {name}: {value}" for name, value in (self.scores or {}).items()]
        lines += [f"  {sentence}" for sentence in (self.calibration, self.warning) if sentence]
        return "\n".join(lines)

    def save(self, path: Path | str) -> None:
        """Writes a result file (HDF5 or NPZ by its ending), whole or not at all."""
        with ResultWriter(path) as writer:
            writer.append(self)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Reads a result file."""
        with ArrayReader(path) as file:
            if "image" not in file.names:
                raise UserError(f"{path}: not a result file (there is no array 'image'); make one with: reconstruct")
            sample_images = None
            # Version 0.1 called the images `samples`; in an NPZ that name is also a number.
            for name in ("sample_images", "samples"):
                if name in file.names and file.array(name).ndim == 4:
                    sample_images = torch.from_numpy(file.read(name)).transpose(0, 1)[:, :, None]
            maps = {name: _read_map(file, name) for name in MAPS if name in file.names}
            try:
                return cls(
                    **maps,
                    sample_images=sample_images,
                    model=file.text("model") or "unknown",
                    geometry=file.text("geometry"),
                    samples=file.whole("samples"),
                    seed=file.whole("seed"),
                    settings=file.text("settings"),
                    calibration=file.text("calibration"),
                    warning=file.text("warning"),
                    scores=_read_scores(file),
                )
            except UserError as error:
                raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def _read_map(file: ArrayReader, name: str) -> Tensor:
    array = file.read(name)
    if array.ndim != 3:
        raise UserError(f"{file.path}: expected '{name}' of shape (images, height, width), got {array.shape}")
    return torch.from_numpy(array)[:, None]


def _read_scores(file: ArrayReader) -> dict[str, list[float | None]] | None:
    text = file.text("scores")
    if text is None:
        return None
    try:
        scores = json.loads(text)
    except ValueError:
        scores = None
    if not isinstance(scores, dict):
        raise UserError(f"{file.path}: expected a JSON object in the attribute 'scores', got {text!r:.40}")
    return scores


class ResultWriter:
    """Writes a result file batch by batch; the file appears after the last batch."""

    def __init__(self, path: Path | str):
        self._arrays = ArrayWriter(path)
        self.scores: dict[str, list[float | None]] = {}  # of all images so far
        self._warnings: list[str] = []

    def __enter__(self) -> Self:
        self._arrays.__enter__()
        return self

    @property
    def warning(self) -> str | None:
        """The warnings of all images so far."""
        return joined(self._warnings)

    def append(self, result: Reconstruction) -> None:
        """Adds the images of a batch after the earlier ones."""
        maps = {name: getattr(result, name) for name in MAPS}
        arrays = {name: _numpy(value[:, 0]) for name, value in maps.items() if value is not None}
        for name, array in arrays.items():
            check_finite(f"{result.model}: {name}", array)
        if result.sample_images is not None:
            arrays["sample_images"] = _numpy(result.sample_images[:, :, 0].transpose(0, 1))
        self._arrays.append(arrays)
        self._warnings += [result.warning] if result.warning else []
        attributes: dict[str, Attribute | None] = {
            "model": result.model,
            "geometry": result.geometry,
            "samples": result.samples,
            "seed": result.seed,
            "settings": result.settings,
            "calibration": result.calibration,
            "warning": self.warning,
        }
        for name, values in (result.scores or {}).items():
            self.scores.setdefault(name, []).extend(values)
        if self.scores:
            attributes["scores"] = json.dumps(self.scores, allow_nan=False)
        for name, attribute in attributes.items():
            if attribute is not None:
                self._arrays.attribute(name, attribute)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._arrays.__exit__(kind, error, trace)


def joined(warnings: list[str]) -> str | None:
    """Warnings as one text, each of them once; None where there are none."""
    return "; ".join(dict.fromkeys(warnings)) or None


def _numpy(tensor: Tensor) -> Any:
    return tensor.detach().to("cpu", torch.float32).numpy()


class Reconstructor(ABC):
    """A method for one problem: data in, a `Reconstruction` out. Methods implement `reconstruct`."""

    name: str
    data_shape: tuple[int, ...]  # of one measurement: (1, views, bins) for a scan
    data_name: str = "sinogram"  # what messages call it

    @property
    def parameters(self) -> int:
        """Number of trained parameters; 0 for a method without training."""
        return 0

    def __call__(
        self,
        data: Any,  # (batch, 1, views, bins), (batch, views, bins) or (views, bins); a tensor or an array, physical units
        *,
        samples: int = 100,
        seed: int = 0,
        index: int = 0,  # of the first image among all that are reconstructed: its random numbers depend on it
    ) -> Reconstruction:
        """The reconstruction of each measurement; methods without random numbers ignore `samples`."""
        return self.reconstruct(as_data(data, self.data_shape, self.data_name), samples=samples, seed=seed, index=index)

    @abstractmethod
    def reconstruct(
        self,
        data: Tensor,  # (batch, *data_shape), float32, finite
        *,
        samples: int,
        seed: int,
        index: int,
    ) -> Reconstruction:
        """The reconstruction of data that `__call__` has checked."""


def as_data(data: Any, shape: tuple[int, ...], name: str = "sinogram") -> Tensor:
    """Sinograms, or other data of that shape, as (batch, *shape) in float32; raises when they are not."""
    try:
        tensor = torch.as_tensor(data)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{name}: expected a tensor or an array of numbers, got {type(data).__name__}") from None
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.dtype == torch.bool:
        raise UserError(f"{name}: expected dense real numbers, got {tensor.layout} {tensor.dtype}")
    inner = shape[1:] if shape[0] == 1 else shape  # the 1 may be left out
    if tensor.ndim in (len(inner), len(inner) + 1) and tuple(tensor.shape[-len(inner) :]) == inner:
        tensor = tensor.reshape(-1, *shape)
    if tuple(tensor.shape[1:]) != tuple(shape) or len(tensor) == 0:
        raise UserError(f"{name}: expected shape (batch, {', '.join(map(str, shape))}), got {tuple(tensor.shape)}")
    tensor = tensor.to(torch.float32)
    if not bool(torch.isfinite(tensor).all()):
        check_finite(name, tensor.detach().cpu().numpy())
    return tensor
