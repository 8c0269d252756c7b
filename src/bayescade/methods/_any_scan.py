"""A trained method for any scan: it normalises the data, reconstructs, and gives the result in the units of the data."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.inference.pooling import concatenated, pooled
from bayescade.physics.geometry import Geometry
from bayescade.physics.problem import InverseProblem
from bayescade.physics.symmetries import SYMMETRIES, Symmetry
from bayescade.projectors import ray_transform
from bayescade.projectors.any_scan import any_scan_problem, image_units, in_pixels, plane_names
from bayescade.results import Reconstruction, Reconstructor, as_data
from bayescade.seeds import derived_seed
from bayescade.storage.manifest import Manifest
from bayescade.storage.weights import Tensors

AT_ONCE = 32  # scans whose units are computed at once

SETTING = "symmetries="
# (name, problem, manifest, weights, overrides) -> the trained method
Load = Callable[[str, Any, Manifest, Sequence[Tensors], Sequence[str]], Reconstructor]


def symmetries_of(
    text: str,  # "symmetries=8"
) -> int:
    """How many symmetries a setting asks for."""
    value = text.removeprefix(SETTING)
    if not value.isdecimal() or not 1 <= int(value) <= len(SYMMETRIES):
        raise UserError(f"--set {text}: expected a whole number from 1 to {len(SYMMETRIES)}")
    return int(value)


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
        self._symmetries = len(SYMMETRIES)
        for text in overrides:
            if text.startswith(SETTING):
                self._symmetries = symmetries_of(text)
        self._overrides = [text for text in overrides if not text.startswith(SETTING)]
        self._planes = plane_names(str(manifest.settings["scans"].get("planes", "")))
        self._tv_iterations = int(manifest.settings["scans"].get("tv_iterations", 0))
        self._last: AnyScanReconstructor | None = None

    def bound(self, geometry: Geometry) -> "AnyScanReconstructor":
        """The method for one geometry; the last one is kept for the next call."""
        if not isinstance(geometry, Geometry):
            raise UserError(
                f"model '{self.name}' works for any geometry: expected geometry=ParallelBeam(...) or FanBeam(...), got "
                f"{type(geometry).__name__}"
            )
        if self._last is None or self._last.scan != geometry:
            operator = ray_transform(in_pixels(geometry), self.device)
            problem = any_scan_problem(operator, self._planes, self._tv_iterations)

            def load(problem: InverseProblem) -> Reconstructor:
                return self._load(self.name, problem, self.manifest, self._weights, self._overrides)

            self._last = AnyScanReconstructor(load, geometry, problem, self._planes, self._symmetries)
        return self._last

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

    def __init__(
        self,
        load: Callable[[InverseProblem], Any],  # the trained method for a problem in pixels and for normalised data
        scan: Geometry,
        problem: InverseProblem,  # of this scan, in pixels
        planes: Sequence[str],
        symmetries: int,  # how many of SYMMETRIES are used
    ):
        self.scan = scan
        self.problem = problem
        self._load, self._planes = load, planes
        self.symmetries = SYMMETRIES[:symmetries]
        self.first_images = FirstImages()
        self._inner: dict[Symmetry, Any] = {}
        inner = self.inner(SYMMETRIES[0])
        self.name = inner.name
        self.data_shape = inner.data_shape

    def inner(self, symmetry: Symmetry) -> Any:
        """The trained method for the moved scan. Its first images are those of the scan, moved."""
        if symmetry not in self._inner:
            problem = self.problem
            if symmetry != SYMMETRIES[0]:
                geometry = symmetry.geometry(in_pixels(self.scan))
                operator = ray_transform(geometry, self.problem.device)
                problem = any_scan_problem(operator, self._planes, norm=self.problem.norm)
            first = functools.partial(self.first_images.moved, symmetry)
            self._inner[symmetry] = self._load(dataclasses.replace(problem, initial_image=first))
        return self._inner[symmetry]

    @property
    def parameters(self) -> int:
        count: int = self.inner(SYMMETRIES[0]).parameters
        return count

    def reconstruct(self, data: Tensor, *, samples: int, seed: int, index: int) -> Reconstruction:
        results = []
        for first, normalised, units in self._normalised(data):
            parts = []
            for symmetry, count in self._shares(samples):
                part = self.inner(symmetry).reconstruct(
                    symmetry.data(normalised), samples=count, seed=seed_of(seed, symmetry), index=index + first
                )
                parts.append((count, part.mapped(symmetry.restored)))
            results.append(pooled(parts).scaled(units))
        return dataclasses.replace(concatenated(results), geometry=self.scan.to_json(), seed=seed)

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
            for symmetry, count in self._shares(samples):
                images = self.inner(symmetry).sample_images(
                    symmetry.data(normalised),
                    samples=count,
                    seed=seed_of(seed, symmetry),
                    index=index + first,
                    aleatoric=aleatoric,
                )
                parts.append(symmetry.restored(images) * units.reshape(-1, 1, 1, 1))
            batches.append(torch.cat(parts))
        return torch.cat(batches, 1)

    def _shares(self, samples: int) -> list[tuple[Symmetry, int]]:
        """The symmetries, and how many of the samples each has."""
        used = self.symmetries[: max(samples, 1)]
        return [(used[k], len(range(k, max(samples, 1), len(used)))) for k in range(len(used))]

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
