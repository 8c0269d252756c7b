"""What a method gives back: a `Reconstruction`, with everything needed to read it later; and what a method is."""

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
from bayescade.files import ArrayReader, ArrayWriter, Attribute

# Arrays of a result file, with (images, height, width) in front or, for `samples`, (images, samples, height, width).
MAPS = ("image", "aleatoric", "epistemic", "mc_standard_error", "lower", "upper", "truth", "support")


@dataclasses.dataclass(frozen=True)
class Reconstruction:
    """Images reconstructed from sinograms, and how sure they are.

    Maps are (batch, 1, height, width); what a method does not give is None. `describe()` says what is there.
    """

    image: Tensor  # the reconstruction: the mean of the predictive distribution
    model: str  # name of the model that made it
    geometry: str  # JSON text of the geometry
    aleatoric: Tensor | None = None  # variance: the data's doubt
    epistemic: Tensor | None = None  # variance: the model's doubt
    mc_standard_error: Tensor | None = None  # Monte-Carlo error of the epistemic standard deviation
    lower: Tensor | None = None  # lower end of the calibrated interval
    upper: Tensor | None = None  # upper end
    draws: Tensor | None = None  # (samples, batch, 1, height, width): the images behind the mean, when kept
    truth: Tensor | None = None  # what was scanned, when known
    support: Tensor | None = None  # 1 where the data see the pixel, 0 where they do not
    samples: int = 0  # Monte-Carlo samples behind the maps; 0 for a method without chance
    seed: int = 0
    calibration: str | None = None  # the sentence that says what the interval guarantees
    warning: str | None = None  # why this result should not be trusted
    scores: Mapping[str, list[float | None]] | None = None  # per image, when the truth is known

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
        """A few lines on what this is and what it holds."""
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
            maps = {name: torch.from_numpy(file.read(name))[:, None] for name in MAPS if name in file.names}
            if "image" not in maps:
                raise UserError(f"{path}: not a result file (there is no array 'image'); make one with: reconstruct")
            draws = None
            if "samples" in file.names and file.array("samples").ndim == 4:  # in an NPZ it may be the number only
                draws = torch.from_numpy(file.read("samples")).transpose(0, 1)[:, :, None]
            scores = file.attribute("scores")
            return cls(
                **maps,
                draws=draws,
                model=str(file.attribute("model") or "unknown"),
                geometry=str(file.attribute("geometry") or "{}"),
                samples=int(file.attribute("samples") or 0),
                seed=int(file.attribute("seed") or 0),
                calibration=file.attribute("calibration"),
                warning=file.attribute("warning"),
                scores=None if scores is None else json.loads(scores),
            )


class ResultWriter:
    """Writes a result file batch by batch; it appears when the last one is in."""

    def __init__(self, path: Path | str):
        self._arrays = ArrayWriter(path)
        self._scores: dict[str, list[float | None]] = {}

    def __enter__(self) -> Self:
        self._arrays.__enter__()
        return self

    def append(self, result: Reconstruction) -> None:
        """Puts the images of one batch behind those that are there."""
        maps = {name: getattr(result, name) for name in MAPS}
        arrays = {name: _numpy(value[:, 0]) for name, value in maps.items() if value is not None}
        if result.draws is not None:
            arrays["samples"] = _numpy(result.draws[:, :, 0].transpose(0, 1))
        self._arrays.append(arrays)
        attributes: dict[str, Attribute | None] = {
            "model": result.model,
            "geometry": result.geometry,
            "samples": result.samples,
            "seed": result.seed,
            "calibration": result.calibration,
            "warning": result.warning,
        }
        for name, values in (result.scores or {}).items():
            self._scores.setdefault(name, []).extend(values)
        if self._scores:
            attributes["scores"] = json.dumps(self._scores, allow_nan=False)
        for name, attribute in attributes.items():
            if attribute is not None:
                self._arrays.attribute(name, attribute)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._arrays.__exit__(kind, error, trace)


def _numpy(tensor: Tensor) -> Any:
    return tensor.detach().to("cpu", torch.float32).numpy()


class Reconstructor(ABC):
    """A method made ready for a geometry: sinograms in, a `Reconstruction` out."""

    name: str

    @abstractmethod
    def __call__(
        self,
        sinogram: Tensor,  # (batch, 1, views, bins), physical units
        *,
        samples: int = 100,
        seed: int = 0,
    ) -> Reconstruction:
        """The reconstruction of each sinogram; methods without chance ignore `samples` and `seed`."""
