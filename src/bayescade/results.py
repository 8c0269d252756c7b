"""The result of a method (`Reconstruction`) and its file, and the interface of a method (`Reconstructor`)."""

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.storage.arrays import ArrayReader, ArrayWriter, Attribute, check_finite

# Arrays of a result file, each (images, height, width). `sample_images` is stored as (images, samples, height, width).
MAPS = (
    "image",
    "aleatoric",
    "epistemic",
    "epistemic_symmetries",
    "geometry_variance",
    "noise",
    "mc_standard_error",
    "image_standard_error",
    "aleatoric_standard_error",
    "lower",
    "upper",
    "truth",
    "support",
)
VARIANCES = (
    "aleatoric",
    "epistemic",
    "epistemic_symmetries",
    "geometry_variance",
    "noise",
    "aleatoric_standard_error",
)  # in squared units of the image
UNSCALED = ("support", "truth")  # without units, or in the units of the user


@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """Images reconstructed from sinograms, and their uncertainty.

    Maps are (batch, 1, height, width); a map that a method does not give is None. `describe()` lists the maps.
    """

    image: Tensor  # the reconstruction: the mean of the predictive distribution
    model: str  # name of the model that gave the image
    geometry: str | None = None  # JSON text of the geometry; None if the data are not a scan
    aleatoric: Tensor | None = None  # variance: uncertainty of the data
    epistemic: Tensor | None = None  # variance: uncertainty of the model
    # The part of the epistemic variance that lies between the symmetries of the pixel grid.
    epistemic_symmetries: Tensor | None = None
    geometry_variance: Tensor | None = None  # variance: uncertainty of the centre of rotation
    noise: Tensor | None = None  # the part of the aleatoric variance that noise of the data alone causes (bootstrap)
    mc_standard_error: Tensor | None = None  # Monte-Carlo error of the epistemic standard deviation
    image_standard_error: Tensor | None = None  # Monte-Carlo error of the image
    aleatoric_standard_error: Tensor | None = None  # Monte-Carlo error of the aleatoric variance
    lower: Tensor | None = None  # lower end of the calibrated interval
    upper: Tensor | None = None  # upper end of the calibrated interval
    sample_images: Tensor | None = None  # (samples, batch, 1, height, width): samples of the image, if they were stored
    truth: Tensor | None = None  # the true image, if known
    support: Tensor | None = None  # 1 for pixels that the data measure, 0 for all other pixels
    samples: int = 0  # number of Monte-Carlo samples; 0 for a method without random numbers
    seed: int = 0
    settings: str | None = None  # JSON text of the method's settings
    calibration: str | None = None  # one sentence about what the calibrated interval guarantees
    region_calibration: str | None = (
        None  # JSON text: multipliers of intervals of means over regions, by size and level
    )
    warning: str | None = None  # the reasons not to trust this result, as one text
    # One list for every image: {cause, p_value, message, command} of each warning, and texts of what was found and corrected.
    warnings: Sequence[Sequence[Mapping[str, Any]]] | None = None
    notes: Sequence[Sequence[str]] | None = None
    scores: Mapping[str, list[float | None]] | None = None  # one score per image, if the truth is known

    def __post_init__(self) -> None:
        if self.image.ndim != 4 or self.image.shape[1] != 1 or self.image.numel() == 0:
            raise UserError(f"image: expected shape (batch, 1, height, width), got {tuple(self.image.shape)}")
        for name in MAPS[1:]:
            value = getattr(self, name)
            if value is not None and value.shape != self.image.shape:
                raise UserError(
                    f"{name}: expected the shape of the image, {tuple(self.image.shape)}, got {tuple(value.shape)}"
                )
        if self.sample_images is not None and self.sample_images.shape[1:] != self.image.shape:
            raise UserError(
                f"sample_images: expected shape (samples, {tuple(self.image.shape)}), got {tuple(self.sample_images.shape)}"
            )

    @property
    def variance(self) -> Tensor:
        """Predictive variance: the sum of the aleatoric, the epistemic and, if there is one, the geometry part."""
        if self.aleatoric is None or self.epistemic is None:
            raise UserError(f"{self.model} gives an image without uncertainty; the result has no variance")
        variance = self.aleatoric + self.epistemic
        return variance if self.geometry_variance is None else variance + self.geometry_variance

    @property
    def std(self) -> Tensor:
        """Predictive standard deviation."""
        return self.variance.sqrt()

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Reconstruction":
        """The same result with a function applied to all its maps."""
        maps = {name: getattr(self, name) for name in (*MAPS, "sample_images")}
        changed = {name: function(value) for name, value in maps.items() if value is not None}
        return dataclasses.replace(self, **changed)  # type: ignore[arg-type]

    def scaled(
        self,
        factors: Tensor,  # (batch,)
    ) -> "Reconstruction":
        """The same result in other units: image values times the factors, variances times their squares."""
        factor = factors.reshape(-1, 1, 1, 1).to(self.image)
        maps: dict[str, Tensor] = {}
        for name in (*MAPS, "sample_images"):
            value = getattr(self, name)
            if value is not None and name not in UNSCALED:
                maps[name] = value * (factor**2 if name in VARIANCES else factor)
        return dataclasses.replace(self, **maps)  # type: ignore[arg-type]

    def describe(self) -> str:
        """Some lines of text about the result: its maps, scores and warnings."""
        count, _, height, width = self.image.shape
        lines = [f"{count} image{'s' if count != 1 else ''} of {height} x {width} by {self.model}"]
        lines += [f"  {name}: {'yes' if getattr(self, name) is not None else 'no'}" for name in MAPS[1:]]
        lines += [f"  {name}: {value}" for name, value in (self.scores or {}).items()]
        lines += [f"  note: {note}" for notes in self.notes or () for note in notes]
        lines += [f"  {sentence}" for sentence in (self.calibration, self.warning) if sentence]
        return "\n".join(lines)

    def save(self, path: Path | str) -> None:
        """Writes a result file atomically, in HDF5 (`.h5`, `.hdf5`) or NPZ (`.npz`)."""
        with ResultWriter(path) as writer:
            writer.append(self)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Reads a result file."""
        with ArrayReader(path) as file:
            if "image" not in file.names:
                raise UserError(
                    f"{path}: not a result file (there is no array 'image'); make it with: bayescade reconstruct"
                )
            sample_images = None
            # Version 0.1 stored the sample images as `samples`. In an NPZ `samples` may also be the number of samples.
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
                    region_calibration=file.text("region_calibration"),
                    warning=file.text("warning"),
                    warnings=_read_json(file, "warnings", list),
                    notes=_read_json(file, "notes", list),
                    scores=_read_json(file, "scores", dict),
                )
            except UserError as error:
                raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def _read_map(file: ArrayReader, name: str) -> Tensor:
    array = file.read(name)
    if array.ndim != 3:
        raise UserError(f"{file.path}: expected '{name}' of shape (images, height, width), got {array.shape}")
    return torch.from_numpy(array)[:, None]


def _read_json(file: ArrayReader, name: str, kind: type) -> Any:
    """JSON values of an attribute; None if the file does not have it."""
    text = file.text(name)
    if text is None:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, kind):
        expected = "object" if kind is dict else "list"
        raise UserError(f"{file.path}: expected a JSON {expected} in the attribute '{name}', got {text!r:.40}")
    return values


class ResultWriter:
    """Writes a result file batch by batch; the file appears after the last batch."""

    def __init__(self, path: Path | str):
        self._arrays = ArrayWriter(path)
        self.scores: dict[str, list[float | None]] = {}  # scores of all images so far
        self._warnings: list[str] = []
        self.lists: dict[str, list[Any]] = {"warnings": [], "notes": []}  # of all images so far

    def __enter__(self) -> Self:
        self._arrays.__enter__()
        return self

    @property
    def warning(self) -> str | None:
        """The warnings of all images so far."""
        return joined(self._warnings)

    def append(self, result: Reconstruction) -> None:
        """Appends the images of a batch."""
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
            "region_calibration": result.region_calibration,
            "warning": self.warning,
        }
        for name, items in self.lists.items():
            value = getattr(result, name)
            if value is not None:
                items.extend([list(item) for item in value])
                attributes[name] = json.dumps(items, allow_nan=False)
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
    """All different warnings as one text; None if there is no warning."""
    return "; ".join(dict.fromkeys(warnings)) or None


def _numpy(tensor: Tensor) -> Any:
    return tensor.detach().to("cpu", torch.float32).numpy()


class Reconstructor(ABC):
    """A method for one problem: called with data, it returns a `Reconstruction`. Methods implement `reconstruct`."""

    name: str
    data_shape: tuple[int, ...]  # shape of one measurement: (1, views, bins) for a scan
    data_name: str = "sinogram"  # name of the data in messages
    has_variance: bool = False  # whether it gives aleatoric and epistemic variances

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
        index: int = 0,  # index of the first image; the random numbers of an image depend on its index
        geometry: Any = None,  # for a model for any scan that was loaded without a geometry
    ) -> Reconstruction:
        """The reconstruction of each measurement; methods without random numbers ignore `samples`."""
        if geometry is not None:
            raise UserError(
                f"geometry: model '{self.name}' has its geometry already; give another one to load_model(name, geometry)"
            )
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
    """Converts data, e.g. sinograms, to float32 of shape (batch, *shape); raises if the shape or a value is wrong."""
    try:
        tensor = torch.as_tensor(data)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{name}: expected a tensor or an array of numbers, got {type(data).__name__}") from None
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.dtype == torch.bool:
        raise UserError(f"{name}: expected dense real numbers, got {tensor.layout} {tensor.dtype}")
    short = shape[1:] if shape[0] == 1 else shape  # a first dimension of 1 may be omitted, and so may the batch
    if tensor.ndim in (len(short), len(short) + 1) and tuple(tensor.shape[-len(short) :]) == short:
        tensor = tensor.reshape(-1, *shape)
    if tuple(tensor.shape[1:]) != tuple(shape) or len(tensor) == 0:
        raise UserError(f"{name}: expected shape (batch, {', '.join(map(str, shape))}), got {tuple(tensor.shape)}")
    tensor = tensor.to(torch.float32)
    if not bool(torch.isfinite(tensor).all()):
        check_finite(name, tensor.detach().cpu().numpy())
    return tensor
