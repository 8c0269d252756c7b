"""A trained method for any scan: it normalises the data, reconstructs, and gives the result in the units of the data."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.inference.pooling import concatenated, pooled
from bayescade.methods._passes import Pass, passes_of
from bayescade.physics.geometry import Geometry
from bayescade.physics.problem import InverseProblem
from bayescade.physics.symmetries import SYMMETRIES, Symmetry
from bayescade.projectors import ray_transform
from bayescade.projectors.any_scan import any_scan_problem, image_units, in_pixels, plane_names
from bayescade.results import Reconstruction, Reconstructor, as_data
from bayescade.seeds import derived_seed
from bayescade.storage.manifest import Manifest
from bayescade.storage.weights import Tensors
from bayescade.uncertainty.disagreement import fitted

AT_ONCE = 32  # scans whose units are computed at once

SYMMETRIES_SETTING, VARIANCE_SETTING = "symmetries=", "variance="
VARIANCES = ("fitted", "network")
# (name, problem, manifest, weights, overrides) -> the trained method
Load = Callable[[str, Any, Manifest, Sequence[Tensors], Sequence[str]], Any]


def symmetries_of(
    text: str,  # "symmetries=8"
) -> int:
    """How many symmetries a setting asks for."""
    value = text.removeprefix(SYMMETRIES_SETTING)
    if not value.isdecimal() or not 1 <= int(value) <= len(SYMMETRIES):
        raise UserError(f"--set {text}: expected a whole number from 1 to {len(SYMMETRIES)}")
    return int(value)


@dataclasses.dataclass(frozen=True)
class AnyScanSettings:
    """Settings of a model for any scan that are free after its training."""

    symmetries: int = len(SYMMETRIES)
    variance: str = (
        "fitted"  # that of the mean of all passes, if the model has it; or that of the cascade's own network
    )

    @classmethod
    def split(cls, overrides: Sequence[str]) -> "tuple[AnyScanSettings, list[str]]":
        """These settings, and the overrides for the cascade."""
        settings, others = cls(), []
        for text in overrides:
            if text.startswith(SYMMETRIES_SETTING):
                settings = dataclasses.replace(settings, symmetries=symmetries_of(text))
            elif text.startswith(VARIANCE_SETTING):
                variance = text.removeprefix(VARIANCE_SETTING)
                if variance not in VARIANCES:
                    raise UserError(f"--set {text}: expected {' or '.join(VARIANCES)}")
                settings = dataclasses.replace(settings, variance=variance)
            else:
                others.append(text)
        return settings, others


@final
class AnyScanModel(Reconstructor):
    """A trained method for any scan, called with a sinogram and its geometry."""

    data_shape = ()  # that of the geometry

    def __init__(
        self,
        name: str,
        manifest: Manifest,
        weights: Sequence[Tensors],
        load: Load,
        overrides: Sequence[str],  # "inference.key=value"
        device: torch.device,
    ):
        self.name = name
        self.manifest = manifest
        self._weights, self._load = weights, load
        self.device = device
        self.settings, self._overrides = AnyScanSettings.split(overrides)
        self.ratio = manifest.error_ratio if self.settings.variance == "fitted" else None
        self._planes = plane_names(str(manifest.settings["scans"].get("planes", "")))
        self._tv_iterations = int(manifest.settings["scans"].get("tv_iterations", 0))
        self._cascade: Any = None  # of the first problem; its weights are used for all
        self._last: AnyScanReconstructor | None = None

    def bound(
        self,
        geometry: Geometry,
        centre_std: float = 0.0,  # of the centre of rotation, in bins
    ) -> "AnyScanReconstructor":
        """The method for one geometry; the last one is kept for the next call."""
        if not isinstance(geometry, Geometry):
            raise UserError(
                f"model '{self.name}' works for any geometry: expected geometry=ParallelBeam(...) or FanBeam(...), got "
                f"{type(geometry).__name__}"
            )
        if self._last is None or self._last.scan != geometry or self._last.centre_std != centre_std:
            self._last = AnyScanReconstructor(self, geometry, centre_std)
        return self._last

    def problem(self, geometry: Geometry, first: bool, norm: float | Tensor | None = None) -> InverseProblem:
        """The problem of a scan, in pixels; `first`: with its own first image."""
        operator = ray_transform(in_pixels(geometry), self.device)
        return any_scan_problem(operator, self._planes, self._tv_iterations if first else 0, norm)

    def cascade(self, problem: InverseProblem) -> Any:
        """The trained method for a problem in pixels and for normalised data."""
        if self._cascade is None:
            self._cascade = self._load(self.name, problem, self.manifest, self._weights, self._overrides)
        return self._cascade.for_problem(problem)

    def __call__(
        self,
        data: Any,  # as for `Reconstructor`
        *,
        samples: int = 100,
        seed: int = 0,
        index: int = 0,
        geometry: Any = None,
    ) -> Reconstruction:
        """The reconstruction of sinograms of one geometry."""
        if geometry is None:
            raise UserError(
                f"model '{self.name}' works for any geometry: give that of the scan, e.g. model(sinogram, "
                "geometry=ParallelBeam(angles, bins))"
            )
        return self.bound(geometry)(data, samples=samples, seed=seed, index=index)

    def reconstruct(self, data: Tensor, *, samples: int, seed: int, index: int) -> Reconstruction:
        raise UserError(f"model '{self.name}' works for any geometry: call it with geometry=...")


@final
class AnyScanReconstructor(Reconstructor):
    """A trained method for any scan, for one geometry.

    Every symmetry of the pixel grid has an equal share of its samples: the scan is moved, and its image moved back.
    """

    def __init__(self, model: AnyScanModel, scan: Geometry, centre_std: float = 0.0):
        self.model = model
        self.scan, self.centre_std = scan, centre_std
        self.problem = model.problem(scan, first=True)
        self.first_images = FirstImages()
        self._inner: dict[tuple[Symmetry, float], Any] = {}
        inner = self.inner(SYMMETRIES[0])
        self.name = inner.name
        self.data_shape = inner.data_shape
        self.has_variance = inner.has_variance

    def inner(self, symmetry: Symmetry, deviation: float = 0.0) -> Any:
        """The trained method for the moved scan. Its first images are those of the scan, moved."""
        key = (symmetry, deviation * self.centre_std)
        if key not in self._inner:
            problem = self.problem
            if key != (SYMMETRIES[0], 0.0):
                offset = self.scan.offset + key[1] * self.scan.bin_width
                geometry = symmetry.geometry(dataclasses.replace(self.scan, offset=offset))
                problem = self.model.problem(geometry, first=False, norm=self.problem.norm)
            first = functools.partial(self.first_images.moved, symmetry)
            self._inner[key] = self.model.cascade(dataclasses.replace(problem, initial_image=first))
        return self._inner[key]

    @property
    def parameters(self) -> int:
        count: int = self.inner(SYMMETRIES[0]).parameters
        return count

    def reconstruct(self, data: Tensor, *, samples: int, seed: int, index: int) -> Reconstruction:
        results = []
        passes = passes_of(samples, self.model.settings.symmetries)
        for first, normalised, units in self._normalised(data):
            parts = [self._part(part, normalised, seed, index + first) for part in passes]
            counts = [part.samples for part in passes]
            deviations = [part.deviation for part in passes] if self.centre_std else None
            result = pooled(list(zip(counts, parts, strict=True)), deviations)
            if self.model.ratio is not None:
                result = fitted(result, len(passes), self.model.ratio)
            results.append(result.scaled(units))
        return dataclasses.replace(concatenated(results), geometry=self.scan.to_json(), seed=seed)

    def _part(self, part: Pass, normalised: Tensor, seed: int, index: int) -> Reconstruction:
        """The result of one pass. A single sample of the weights is that of their mean."""
        inner = self.inner(part.symmetry, part.deviation)
        if part.samples == 1 and inner.settings.inference.sampling == "weights":
            inner = inner.with_mean_weights()
        result: Reconstruction = inner.reconstruct(
            part.symmetry.data(normalised), samples=part.samples, seed=seed_of(seed, part.symmetry), index=index
        )
        return result.mapped(part.symmetry.restored)

    def sample_images(
        self,
        data: Any,  # as for `__call__`
        *,
        samples: int,
        seed: int,
        index: int = 0,
        aleatoric: bool = False,
    ) -> Tensor:
        """Samples of the image, (samples, batch, 1, height, width); `aleatoric` adds aleatoric noise."""
        batches = []
        for first, normalised, units in self._normalised(as_data(data, self.data_shape, self.data_name)):
            parts = []
            for part in passes_of(samples, self.model.settings.symmetries):
                images = self.inner(part.symmetry, part.deviation).sample_images(
                    part.symmetry.data(normalised),
                    samples=part.samples,
                    seed=seed_of(seed, part.symmetry),
                    index=index + first,
                    aleatoric=aleatoric,
                )
                parts.append(part.symmetry.restored(images) * units.reshape(-1, 1, 1, 1))
            batches.append(torch.cat(parts))
        return torch.cat(batches, 1)

    def _normalised(self, data: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Batches of data in pixels, divided by the unit of each image: (index of the first, data, units).

        The first images of the batch are kept.
        """
        data = data.to(self.problem.device) / self.scan.pixel_size
        count = self.inner(SYMMETRIES[0]).images_at_once
        for first in range(0, len(data), count):
            part = data[first : first + count]
            units = torch.cat([image_units(self.problem, some) for some in part.split(AT_ONCE)])
            part = part / units.reshape(-1, 1, 1, 1)
            self.first_images.value = torch.cat([self.problem.initial(some) for some in part.split(AT_ONCE)])
            yield first, part, units


class FirstImages:
    """The first images of a batch, which are computed once for all symmetries."""

    value: Tensor

    def moved(self, symmetry: Symmetry, y: Tensor) -> Tensor:
        """The first images of the moved scans."""
        assert len(y) == len(self.value)
        return symmetry.image(self.value)


def seed_of(seed: int, symmetry: Symmetry) -> int:
    """Every symmetry has its own samples of the weights."""
    return seed if symmetry == SYMMETRIES[0] else derived_seed(seed, "symmetry", SYMMETRIES.index(symmetry))
