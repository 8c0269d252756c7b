"""A trained method for any scan: it normalises the data, reconstructs, and gives the result in the units of the data."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry
from bayescade.physics.problem import InverseProblem
from bayescade.projectors import ray_transform
from bayescade.projectors.any_scan import any_scan_problem, image_units, in_pixels, plane_names
from bayescade.results import Reconstruction, Reconstructor, as_data
from bayescade.storage.manifest import Manifest
from bayescade.storage.weights import Tensors

AT_ONCE = 32  # scans whose units are computed at once

# (name, problem, manifest, weights, overrides) -> the trained method
Load = Callable[[str, Any, Manifest, Sequence[Tensors], Sequence[str]], Reconstructor]


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
        self._weights, self._load, self._overrides = weights, load, overrides
        self.device = device
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
            inner = self._load(self.name, problem, self.manifest, self._weights, self._overrides)
            self._last = AnyScanReconstructor(inner, problem, geometry)
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
    """A trained method for any scan, for one geometry."""

    def __init__(
        self,
        inner: Reconstructor,  # for the geometry in pixels and for normalised data
        problem: InverseProblem,  # in pixels
        scan: Geometry,
    ):
        self.inner = inner
        self.problem = problem
        self.scan = scan
        self.name = inner.name
        self.data_shape = inner.data_shape

    @property
    def parameters(self) -> int:
        return self.inner.parameters

    def reconstruct(self, data: Tensor, *, samples: int, seed: int, index: int) -> Reconstruction:
        normalised, units = self._normalised(data)
        result = self.inner.reconstruct(normalised, samples=samples, seed=seed, index=index)
        return dataclasses.replace(result.scaled(units), geometry=self.scan.to_json())

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
        normalised, units = self._normalised(as_data(data, self.data_shape, self.data_name))
        images: Tensor = self.inner.sample_images(  # type: ignore[attr-defined]
            normalised, samples=samples, seed=seed, index=index, aleatoric=aleatoric
        )
        return images * units.reshape(-1, 1, 1, 1)

    def _normalised(self, data: Tensor) -> tuple[Tensor, Tensor]:
        """The data in pixels, divided by the unit of each image; and the units, (batch,)."""
        data = data.to(self.problem.device) / self.scan.pixel_size
        units = torch.cat([image_units(self.problem, part) for part in data.split(AT_ONCE)])
        return data / units.reshape(-1, 1, 1, 1), units
