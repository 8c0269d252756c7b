"""Training data of a model for any scan: objects of many kinds, each with a scan of its own, normalised."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayescade.config import load_settings
from bayescade.data.noise import Noise
from bayescade.data.objects import mixed_source
from bayescade.data.random_scans import random_geometry
from bayescade.data.sources import Source
from bayescade.data.splits import split_seed
from bayescade.data.training_scans import GROUP, ScanGroup, ScanSettings, scan_groups
from bayescade.models import ANY
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.physics.problem import InverseProblem
from bayescade.progress import Advance, progress
from bayescade.projectors import PerImageProjector, ray_transform
from bayescade.projectors.any_scan import any_scan_problem, image_units, in_pixels, plane_names
from bayescade.projectors.per_image import Operator, Room
from bayescade.seeds import derived_seed
from bayescade.training.sets import ProblemSet, TrainingData
from bayescade.training.stage import PASS_PIXELS

SIZES = {96: 0.54, 128: 0.38, 192: 0.05, 256: 0.03}  # edge of the image in pixels, and the share of these images


@dataclasses.dataclass(frozen=True)
class Objects:
    """Stored images, (images, 1, height, width), to train on beside phantoms, or alone."""

    training: Tensor | None = None
    validation: Tensor | None = None
    only_stored: bool = False

    def source(self, shape: tuple[int, int], split: str, seed: int, device: torch.device) -> Source:
        """The objects of a split."""
        stored = self.training if split == "train" else self.validation
        return mixed_source(shape, seed, stored, device, self.only_stored)


def any_scan_data(
    settings: Any,  # of the method, with the part `scans`
    geometry: Geometry | None,  # None: random geometries
    noise: Noise,
    seed: int,
    device: torch.device,
    objects: Objects,
) -> TrainingData:
    """Normalised scans for training and for validation."""
    counts = {"train": settings.data.images, "validation": settings.data.validation_images}
    sets: list[tuple[ProblemSet, ...]] = []
    with progress("simulating scans", sum(counts.values())) as advance:
        for split, count in counts.items():
            maker = SetMaker(settings.scans, noise, split, split_seed(seed, split), device, objects, advance)
            sets.append(maker.of_one(in_pixels(geometry), count) if geometry is not None else maker.of_many(count))
    return TrainingData(sets[0], sets[1])


def any_scan_settings(method: ModuleType, config: str | None, overrides: Sequence[str], base: Any = None) -> Any:
    """The base settings, changed by a file and by overrides; by default those of the method's preset `any`."""
    kind = settings_kind(method)
    if base is None:
        preset = method.preset(ANY)
        parts = {field.name: getattr(preset, field.name) for field in dataclasses.fields(preset)}
        base = kind(**parts, scans=ScanSettings())
    return load_settings(kind, config, overrides, base=base)


def settings_kind(method: ModuleType) -> Any:
    """The class of the settings of the method's preset `any`, with one more part, `scans`."""
    return dataclasses.make_dataclass(
        "Settings", [("scans", ScanSettings)], bases=(type(method.preset(ANY)),), frozen=True
    )


@dataclasses.dataclass(frozen=True)
class SetMaker:
    """Makes the sets of one split."""

    scans: ScanSettings
    noise: Noise
    split: str
    seed: int  # of the split
    device: torch.device
    objects: Objects
    advance: Advance  # called with the number of scans that are done

    def of_many(self, count: int) -> tuple[ProblemSet, ...]:
        """Sets of random geometries and of several image sizes; a set has fan beams only or parallel beams only."""
        sets: list[ProblemSet] = []
        for size, share in SIZES.items():
            seed = derived_seed(self.seed, size)
            number = max(1, round(share * count))
            geometries = [random_geometry(self.scans.geometries, (size, size), seed, index) for index in range(number)]
            for kind in (FanBeam, ParallelBeam):
                chosen = [geometry for geometry in geometries if isinstance(geometry, kind)]
                room = Room.of(chosen) if chosen else None
                for group in self.groups(chosen, derived_seed(seed, kind.__name__)):
                    operator = PerImageProjector(group.geometries, self.device, room=room)
                    y = padded(group.sinogram, operator.range_shape)
                    problem = self.problem(operator)
                    units = image_units(problem, y).reshape(-1, 1, 1, 1)
                    sets.append((problem, y / units, group.truth / units))
        return tuple(sets)

    def of_one(self, geometry: Geometry, count: int) -> tuple[ProblemSet, ...]:
        """One set of one geometry."""
        problem = self.problem(ray_transform(geometry, self.device))
        data, truths = [], []
        for group in self.groups([geometry] * count, self.seed):
            units = image_units(problem, group.sinogram).reshape(-1, 1, 1, 1)
            data.append(group.sinogram / units)
            truths.append(group.truth / units)
        return ((problem, torch.cat(data), torch.cat(truths)),)

    def problem(self, operator: Operator) -> InverseProblem:
        """The normalised problem of these scans."""
        return any_scan_problem(operator, plane_names(self.scans.planes), self.scans.tv_iterations)

    def groups(self, geometries: Sequence[Geometry], seed: int) -> Iterator[ScanGroup]:
        """The scans of these geometries."""
        if not geometries:
            return
        shape = geometries[0].image_shape
        source = self.objects.source(shape, self.split, seed, self.device)
        size = max(1, min(GROUP, PASS_PIXELS // math.prod(shape)))
        groups = scan_groups(
            source, geometries, self.scans.scanner, self.noise, seed=seed, device=self.device, group=size
        )
        for group in groups:
            self.advance(len(group.truth))
            yield group


def padded(sinogram: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The sinograms with zeros for further views and bins."""
    return pad(sinogram, (0, shape[-1] - sinogram.shape[-1], 0, shape[-2] - sinogram.shape[-2]))
