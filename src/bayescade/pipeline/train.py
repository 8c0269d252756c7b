"""`bayescade train`: makes training images and simulates their scans, then trains a method into a run folder with a card."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescade.config import load_settings
from bayescade.data.noise import Noise
from bayescade.data.simulate import scan_batches
from bayescade.data.sources import Source, file_source, image_source
from bayescade.data.splits import split_seed
from bayescade.devices import available_bytes, choose_device
from bayescade.errors import UserError
from bayescade.model_training import TrainingRequest, summary, train_into, trainable_method
from bayescade.models import ANY
from bayescade.phantoms import ellipses
from bayescade.physics.geometry import Geometry, measured_arc
from bayescade.pipeline.scan_geometry import choose_geometry
from bayescade.pipeline.train_any import AnyTraining, name_and_hash, train_any
from bayescade.progress import progress
from bayescade.projectors import scan_problem
from bayescade.seeds import check_seed
from bayescade.storage.identity import Identity
from bayescade.storage.image_store import new_store
from bayescade.training.distributed import process_group
from bayescade.training.sets import Pair, TrainingData
from bayescade.training.tensorboard import check_tracker


def train(
    method_name: str,
    out: str,
    *,
    case: str | None = None,
    geometry_file: str | None = None,
    images: str | None = None,  # an image file to train on instead of ellipses
    noise: Noise | None = None,  # default: 1 % Gaussian noise
    preset: str = "recommended",
    start_from: str | None = None,  # a model for any scan to start from
    config: str | None = None,
    settings: Sequence[str] = (),
    seed: int = 0,
    tensorboard: bool = False,
    device: str = "auto",
) -> dict[str, Any]:
    """Trains a method for a scan, or resumes the run in the folder `out`; gives a summary of the run."""
    check_seed(seed)
    if preset == ANY or start_from is not None:
        return train_any(
            AnyTraining(
                method=method_name,
                out=out,
                start_from=start_from,
                case=case,
                geometry_file=geometry_file,
                images=images,
                noise=noise,
                config=config,
                settings=settings,
                seed=seed,
                tensorboard=tensorboard,
                device=device,
            )
        )
    method = trainable_method(method_name)
    noise = noise or Noise()
    case_name, geometry = choose_geometry(case, geometry_file)
    base = method.preset(preset, geometry.views, measured_arc(geometry))
    chosen = load_settings(method.Settings, config, settings, base=base)
    check_tracker(tensorboard)
    stored = {**dataclasses.asdict(chosen), "noise": noise.to_json(), "images": name_and_hash(images)}
    identity = Identity(method_name, case_name, geometry.to_json(), stored, seed)
    with process_group(choose_device(device)) as (processes, torch_device):
        sources = training_sources(images, geometry, chosen.data, seed, torch_device)

        def make_data() -> TrainingData:
            count, validation_count = chosen.data.images, chosen.data.validation_images
            memory_channels = stored.get("block", {}).get("memory_channels", 0)
            folder = None if fits(geometry, count, chosen.data.memory, torch_device, memory_channels) else Path(out)
            scans = TrainingScans(geometry, noise, torch_device)
            training = scans.stored(sources[0], split_seed(seed, "train"), count, folder)
            validation = scans.stored(sources[1], split_seed(seed, "validation"), validation_count)
            return TrainingData.of(scan_problem(geometry, torch_device, chosen.data.ramp), training, validation)

        request = TrainingRequest(out, method, chosen, identity, preset, noise.describe(), tensorboard)
        run = train_into(request, make_data, torch_device, processes)
        return {"first": run.writes, **summary(run)}  # "first": whether this process prints


def training_sources(
    images: str | None, geometry: Geometry, data: Any, seed: int, device: torch.device
) -> tuple[Source, Source]:
    """The sources of training and validation images; in a file the training images come first."""
    shape = geometry.image_shape
    if images is not None:
        source = file_source(images, shape)
        assert source.count is not None
        needed = data.images + data.validation_images
        if source.count < needed:
            raise UserError(
                f"{images}: expected {data.images} training and {data.validation_images} validation images, "
                f"got {source.count}; choose other numbers: --set data.images=N --set data.validation_images=M"
            )

        def validation_images(first: int, count: int, supersample: int) -> Tensor:
            return source.images(first + data.images, count, supersample)

        return source, Source(validation_images, data.validation_images, source.key)
    validation = image_source("ellipses", shape, seed=seed, split="validation", device=device)
    if data.paper_set:
        if data.images > ellipses.PAPER_TRAIN or shape != (128, 128):
            raise UserError(
                f"setting data.paper_set: the paper's set has {ellipses.PAPER_TRAIN} images of 128 x 128, the settings need "
                f"{data.images} of {shape[0]} x {shape[1]}; use: --set data.paper_set=false"
            )
        stored = ellipses.paper_train(device)
        return Source(lambda first, count, _: stored[first : first + count], len(stored), {}), validation
    return image_source("ellipses", shape, seed=seed, split="train", device=device), validation


def fits(geometry: Geometry, images: int, gigabytes: float, device: torch.device, memory_channels: int = 0) -> bool:
    """Whether sinograms, truths and three stages of images, memory channels and gradients fit the limit.

    The limit is `gigabytes`, or half of the available memory of the device if `gigabytes` is 0.
    """
    pixels, rays = (shape[0] * shape[1] for shape in (geometry.image_shape, geometry.sinogram_shape))
    limit = 1e9 * gigabytes if gigabytes else available_bytes(device) / 2
    return 4 * images * ((7 + 3 * memory_channels) * pixels + rays) <= limit


@dataclasses.dataclass(frozen=True)
class TrainingScans:
    """Simulates scans of the images for a training."""

    geometry: Geometry
    noise: Noise
    device: torch.device

    def stored(
        self,
        source: Source,
        seed: int,
        count: int,
        folder: Path | None = None,  # for large sets: the folder of temporary files; None: in memory
    ) -> Pair:
        """Sinograms and truths of the first `count` images of a source."""
        sinograms = new_store(folder, (count, 1, *self.geometry.sinogram_shape), self.device)
        truths = new_store(folder, (count, 1, *self.geometry.image_shape), self.device)
        done = 0
        batches = scan_batches(source, self.geometry, self.noise, seed=seed, count=count, device=self.device)
        with progress("scanning images", count) as advance:
            for batch in batches:
                indices = slice(done, done + len(batch.truth))
                sinograms[indices], truths[indices] = batch.sinogram, batch.truth
                done = indices.stop
                advance(len(batch.truth))
        return sinograms, truths
