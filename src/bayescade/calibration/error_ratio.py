"""The ratio of the error of a model for any scan to the disagreement of its passes, over random scans of all kinds.

`uncertainty.disagreement` says what the ratio is for. The scans are those of the model's training (geometries, errors of
the scanner, noise), of another split.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bayescade.config import settings_from
from bayescade.data.noise import noise_from_json
from bayescade.data.objects import PHANTOMS, WITH_STORED, mixed_source
from bayescade.data.random_scans import random_geometry
from bayescade.data.sources import Source
from bayescade.data.splits import split_seed
from bayescade.data.training_scans import ScanSettings, scan_groups
from bayescade.methods._any_scan import AnyScanModel
from bayescade.physics.geometry import Geometry
from bayescade.physics.symmetries import SYMMETRIES
from bayescade.seeds import derived_seed
from bayescade.storage.files import write_json
from bayescade.storage.manifest import MANIFEST, read_manifest, to_json
from bayescade.uncertainty.disagreement import fit_ratio, fitted

SPLIT = "calibration"


@dataclasses.dataclass(frozen=True)
class ScanError:
    """One scan: the root mean square error of its image, and what was predicted of it, as root mean squares too."""

    found: float
    disagreement: float  # of the passes
    network: float  # error claimed by the variance network and the disagreement together
    fitted: float | None  # error claimed with the ratio of the manifest; None: it has none
    family: str
    geometry: Geometry


def random_scan_errors(
    model: AnyScanModel,
    count: int,
    *,
    seed: int = 0,
    sizes: Sequence[int] = (96, 128, 128, 128, 192),  # of the images, in turn
    stored: Tensor | None = None,  # (images, 1, height, width): images beside phantoms
) -> Iterator[ScanError]:
    """Errors and disagreements of random scans, by a model with the setting variance=network."""
    settings = settings_from(ScanSettings, model.manifest.settings["scans"])
    noise = noise_from_json(model.manifest.settings["noise"])
    stream = split_seed(seed, SPLIT)
    families = PHANTOMS if stored is None else WITH_STORED
    passes = len(SYMMETRIES)
    for index in range(count):
        shape = (sizes[index % len(sizes)],) * 2
        geometry = random_geometry(settings.geometries, shape, stream, index)
        objects = mixed_source(shape, stream, stored, model.device)
        (scan,) = scan_groups(
            only(objects, index),
            [geometry],
            settings.scanner,
            noise,
            seed=derived_seed(stream, index),
            device=model.device,
        )
        result = model.bound(geometry)(scan.sinogram, samples=passes)
        assert result.epistemic_symmetries is not None
        error = float((result.image - scan.truth).square().mean().sqrt())
        between = float(result.epistemic_symmetries.mean()) * passes / (passes - 1)
        ratio, claimed = model.manifest.error_ratio, None
        if ratio is not None:
            claimed = float(fitted(result, passes, ratio).variance.mean()) ** 0.5
        network = float(result.variance.mean()) ** 0.5
        yield ScanError(error, between**0.5, network, claimed, families[index % len(families)], geometry)


def only(source: Source, index: int) -> Source:
    """A source with one image of another."""

    def images(first: int, count: int, supersample: int) -> Tensor:
        return source.images(index, 1, supersample)

    return Source(images, 1, None)


def set_error_ratio(folder: Path | str, errors: Sequence[ScanError]) -> float:
    """Writes the ratio of these scans into the manifest of a model."""
    useful = [error for error in errors if error.disagreement > 0 and torch.isfinite(torch.tensor(error.found))]
    ratio = fit_ratio([error.found for error in useful], [error.disagreement for error in useful])
    manifest = dataclasses.replace(read_manifest(folder), error_ratio=ratio)
    write_json(Path(folder) / MANIFEST, to_json(manifest))
    return ratio
