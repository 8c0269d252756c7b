"""`bayescade train`: images, scans, a cascade trained block by block into a run folder, and its card."""

import contextlib
import dataclasses
import hashlib
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescade import __version__, methods, plugins
from bayescade.config import load_settings
from bayescade.data.simulate import Noise, scan_batches
from bayescade.data.sources import Source, file_source, image_source
from bayescade.data.splits import split_seed
from bayescade.devices import available_bytes, choose_device
from bayescade.errors import Failure, UserError
from bayescade.phantoms import ellipses
from bayescade.physics.geometry import Geometry
from bayescade.pipeline.card import warnings_of, write_card
from bayescade.pipeline.scan_geometry import choose_geometry
from bayescade.progress import progress
from bayescade.seeds import check_seed
from bayescade.storage.files import check_readable
from bayescade.storage.image_store import ImageStore, new_store
from bayescade.storage.runs import Identity, Run, alone
from bayescade.training.distributed import assembled
from bayescade.training.tensorboard import check_tracker, tracker


def train(
    method_name: str,
    out: str,
    *,
    case: str | None = None,
    geometry_file: str | None = None,
    images: str | None = None,  # an image file to train on instead of ellipses
    noise: Noise,
    preset: str = "recommended",
    config: str | None = None,
    settings: tuple[str, ...] | list[str] = (),
    seed: int = 0,
    tensorboard: bool = False,
    device: str = "auto",
) -> dict[str, Any]:
    """Trains, or goes on with what is there; gives what the run folder says."""
    check_seed(seed)
    trainable = [name for name in plugins.names(methods) if not plugins.load(methods, name).ANY_GEOMETRY]
    if method_name not in trainable:
        raise UserError(plugins.unknown("method to train", method_name, trainable))
    name, geometry = choose_geometry(case, geometry_file)
    method = plugins.load(methods, method_name)
    chosen = load_settings(method.Settings, config, list(settings), base=method.preset(preset, geometry))
    check_tracker(tensorboard)
    identity = Identity(
        method_name,
        name,
        geometry.to_json(),
        {**dataclasses.asdict(chosen), "noise": dataclasses.asdict(noise), "images": content(images)},
        seed,
    )
    with assembled(choose_device(device)) as (team, place), contextlib.ExitStack() as stack:
        sources = training_sources(images, geometry, chosen.data, seed, place)
        if team.rank == 0:
            stack.enter_context(alone(out))
            run = Run.open(out, identity, {"preset": preset, "versions": versions(), "device": device_name(place)})
            team.wait()
        else:
            team.wait()
            run = Run.follow(out)
        run.blocks()  # damaged ones are named before any work
        team.wait()
        if run.manifest["status"] == "done":
            return summary(run)
        start = time.perf_counter()
        count, watched = chosen.data.images, chosen.data.validation_images
        folder = None if fits(geometry, count, chosen.data.memory, place) else Path(out)
        training = scans(sources[0], geometry, noise, split_seed(seed, "train"), count, place, folder)
        validation = scans(sources[1], geometry, noise, split_seed(seed, "validation"), watched, place)
        data_seconds = time.perf_counter() - start
        with tracker(Path(out) / "tensorboard" if tensorboard and run.writes else None) as track:

            def report(line: dict[str, Any]) -> None:
                run.report(line)
                track(line)

            method.train(geometry, training, validation, chosen, run, seed=seed, report=report, team=team)
        if not run.manifest["blocks"]:
            said = warnings_of(run.manifest)[0]
            raise Failure(f"{out}: {said}: nothing was learned; look at the images and the noise")
        times = {"training_seconds": run.seconds, "data_seconds": data_seconds, "processes": team.size}
        run.finish(times, write_card({**run.manifest, **times}))
        return summary(run)


def content(images: str | None) -> dict[str, str] | None:
    """The name and the hash of an image file: a run goes on with the same images only."""
    if images is None:
        return None
    check_readable(images)
    return {"name": Path(images).name, "sha256": hashlib.sha256(Path(images).read_bytes()).hexdigest()}


def training_sources(
    images: str | None, geometry: Geometry, data: Any, seed: int, device: torch.device
) -> tuple[Source, Source]:
    """Where training and validation images come from; a file gives first its training images, then those of validation."""
    shape = geometry.image_shape
    if images is not None:
        source = file_source(images, shape)
        assert source.count is not None
        needed = data.images + data.validation_images
        if source.count < needed:
            raise UserError(
                f"{images}: expected {data.images} training and {data.validation_images} validation images, "
                f"got {source.count}; say how many: --set data.images=N --set data.validation_images=M"
            )

        def last(first: int, count: int, supersample: int) -> Tensor:
            return source.take(first + data.images, count, supersample)

        return source, Source(last, data.validation_images, source.key)
    validation = image_source("ellipses", shape, seed=seed, split="validation", device=device)
    if data.paper_set:
        if data.images > ellipses.PAPER_TRAIN or shape != (128, 128):
            raise UserError(
                f"setting data.paper_set: the paper's set has {ellipses.PAPER_TRAIN} images of 128 x 128, asked for "
                f"{data.images} of {shape[0]} x {shape[1]}; use: --set data.paper_set=false"
            )
        stored = ellipses.paper_train(device)
        return Source(lambda first, count, _: stored[first : first + count], len(stored), {}), validation
    return image_source("ellipses", shape, seed=seed, split="train", device=device), validation


def fits(geometry: Geometry, images: int, gigabytes: float, device: torch.device) -> bool:
    """Whether sinograms, truths and three stages of images and gradients fit the memory set aside for them."""
    pixels, rays = (shape[0] * shape[1] for shape in (geometry.image_shape, geometry.sinogram_shape))
    limit = 1e9 * gigabytes if gigabytes else available_bytes(device) / 2
    return 4 * images * (7 * pixels + rays) <= limit


def scans(
    source: Source,
    geometry: Geometry,
    noise: Noise,
    seed: int,
    count: int,
    device: torch.device,
    folder: Path | None = None,  # for files; None = in memory
) -> tuple[ImageStore, ImageStore]:
    """Sinograms and truths."""
    sinograms = new_store(folder, (count, 1, *geometry.sinogram_shape), device)
    truths = new_store(folder, (count, 1, *geometry.image_shape), device)
    done = 0
    with progress("scanning images", count) as advance:
        for batch in scan_batches(source, geometry, noise, seed=seed, count=count, device=device):
            some = slice(done, done + len(batch.truth))
            sinograms[some], truths[some] = batch.sinogram, batch.truth
            done = some.stop
            advance(len(batch.truth))
    return sinograms, truths


def versions() -> dict[str, str]:
    """What made the weights."""
    return {"bayescade": __version__, "torch": torch.__version__, "python": platform.python_version()}


def device_name(device: torch.device) -> str:
    """The device in words."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"


def summary(run: Run) -> dict[str, Any]:
    """What there is to say about a finished run."""
    manifest = run.manifest
    return {
        "first": run.writes,  # whether this process is the one that speaks
        "out": str(run.folder),
        "method": manifest["method"],
        "case": manifest["case"],
        "blocks": len(manifest["blocks"]),
        "validation_psnr": manifest["blocks"][-1]["validation_psnr"],
        "training_seconds": manifest["training_seconds"],
        "warning": "; ".join(warnings_of(manifest)) or None,
    }
