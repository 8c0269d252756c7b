"""`bayescade train --preset any` and `--from MODEL`: training for any scan, or from a model for any scan to one scan."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from bayescade.config import settings_from
from bayescade.data.images import read_images
from bayescade.data.noise import Noise, noise_from_json, noise_model
from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.model_training import TrainingRequest, summary, train_into, trainable_method
from bayescade.models import ANY, is_for_any_scan, model_folder
from bayescade.pipeline.any_scans import Objects, any_scan_data, any_scan_settings, settings_kind
from bayescade.pipeline.scan_geometry import choose_geometry
from bayescade.projectors.any_scan import plane_names
from bayescade.storage.files import check_readable
from bayescade.storage.identity import Identity
from bayescade.storage.manifest import Manifest, model_hash, read_manifest
from bayescade.storage.weights import Tensors, read_blocks
from bayescade.training.distributed import process_group
from bayescade.training.sets import TrainingData
from bayescade.training.tensorboard import check_tracker

VALIDATION_PART = 12  # one in this many stored images is for validation
# Of a training that starts from a model.
TUNING = {"images": 2000, "validation_images": 100}
TUNING_RATES = {"epochs": 4, "learning_rate": 3e-4, "rounds": 4}


@dataclasses.dataclass(frozen=True)
class Start:
    """A model from which a training starts."""

    name: str
    manifest: Manifest
    weights: list[Tensors]

    def identity(self) -> dict[str, Any]:
        """Name and hash, which belong to the identity of the training."""
        return {"model": self.name, "hash": model_hash(self.manifest)}


@dataclasses.dataclass(frozen=True)
class AnyTraining:
    """What `bayescade train` was asked for."""

    method: str
    out: str
    start_from: str | None = None  # a model for any scan
    case: str | None = None
    geometry_file: str | None = None
    images: str | None = None  # an image file to train on beside phantoms; its last images are for validation
    noise: Noise | None = None  # default: that of the model to start from, or mixed noise
    config: str | None = None
    settings: Sequence[str] = ()
    seed: int = 0
    tensorboard: bool = False
    device: str = "auto"


def train_any(asked: AnyTraining) -> dict[str, Any]:
    """Trains a method for any scan; with a case or a geometry for one scan, with the same objects, noise and errors.

    A training that starts from a model needs a case or a geometry, and takes only the images of the file if one is given.
    """
    method = trainable_method(asked.method)
    start = read_start(asked.start_from, asked.method) if asked.start_from is not None else None
    case, geometry = ANY, None
    if asked.case is not None or asked.geometry_file is not None:
        case, geometry = choose_geometry(asked.case, asked.geometry_file)
    elif start is not None:
        raise UserError(f"--from {start.name}: expected a scan to train for: --case NAME or --geometry FILE")
    base = tuning_base(method, start) if start is not None else None
    chosen = any_scan_settings(method, asked.config, asked.settings, base)
    plane_names(chosen.scans.planes)  # raises for an unknown plane
    noise = asked.noise
    if noise is None:
        noise = noise_from_json(start.manifest.settings["noise"]) if start is not None else noise_model("mixed")
    check_tracker(asked.tensorboard)
    stored = {**dataclasses.asdict(chosen), "noise": noise.to_json(), "images": name_and_hash(asked.images)}
    text = geometry.to_json() if geometry is not None else None
    started = start.identity() if start is not None else None
    identity = Identity(asked.method, case, text, stored, asked.seed, start=started)
    request = TrainingRequest(asked.out, method, chosen, identity, ANY, noise.describe(), asked.tensorboard)
    pictures = read_images(asked.images) if asked.images is not None else None
    with process_group(choose_device(asked.device)) as (processes, device):

        def make_data() -> TrainingData:
            objects = Objects(*split(pictures), only_stored=start is not None and pictures is not None)
            data = any_scan_data(chosen, geometry, noise, asked.seed, device, objects)
            return dataclasses.replace(data, initial=start.weights) if start is not None else data

        run = train_into(request, make_data, device, processes)
        return {"first": run.writes, **summary(run)}


def split(pictures: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The images for training, and the last ones for validation."""
    if pictures is None:
        return None, None
    first = len(pictures) - max(1, len(pictures) // VALIDATION_PART)
    return pictures[:first], pictures[first:]


def read_start(name: str, method_name: str) -> Start:
    """The model of that name; raises unless it is a model of this method for any scan."""
    folder = model_folder(name)
    manifest = read_manifest(folder) if folder is not None else None
    if (
        folder is None
        or manifest is None
        or not is_for_any_scan(manifest)
        or manifest.joint is None
        or manifest.method != method_name
    ):
        raise UserError(
            f"--from {name}: expected a model of {method_name} for any scan whose blocks were trained together, e.g. --from any"
        )
    return Start(name, manifest, read_blocks(folder, manifest))


def tuning_base(method: ModuleType, start: Start) -> Any:
    """The settings of the model, for a short training of all its blocks."""
    kind = settings_kind(method)
    parts = {field.name: start.manifest.settings[field.name] for field in dataclasses.fields(kind)}
    base = settings_from(kind, parts)
    return dataclasses.replace(
        base,
        data=dataclasses.replace(base.data, **TUNING),
        greedy=dataclasses.replace(base.greedy, blocks=len(start.weights), restarts=0),
        joint=dataclasses.replace(base.joint, **TUNING_RATES),
    )


def name_and_hash(images: str | None) -> dict[str, str] | None:
    """The name and the hash of an image file, or None; a run can only be resumed with the same images."""
    if images is None:
        return None
    check_readable(images)
    return {"name": Path(images).name, "sha256": hashlib.sha256(Path(images).read_bytes()).hexdigest()}
