"""What U-Net and learned primal-dual share: training into a run folder, and the trained network as a method."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescade import plugins
from bayescade.config import load_settings, settings_from
from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.methods._cascade import Physics
from bayescade.physics.geometry import Geometry
from bayescade.progress import progress
from bayescade.results import Reconstruction, Reconstructor
from bayescade.storage.image_store import ImageStore
from bayescade.storage.runs import WORK, Run, Tensors
from bayescade.training.distributed import ALONE, Team
from bayescade.training.end_to_end import Examples, Report, train_network
from bayescade.training.stage import batches

Build = Callable[[Any, Physics, torch.Generator], nn.Module]  # (settings, physics, generator) -> network

AT_ONCE = 16  # images reconstructed at once
PREPARED = 64  # training images that scales are set by


def check_preset(name: str) -> None:
    """Raises unless it is the one preset that networks have."""
    if name != "recommended":
        raise UserError(plugins.unknown("preset", name, ["recommended"]))


def train(
    build: Build,
    geometry: Geometry,
    training: tuple[ImageStore, ImageStore],  # sinograms and truths
    validation: tuple[ImageStore, ImageStore],
    settings: Any,
    run: Run,
    *,
    seed: int,
    report: Report,
    team: Team = ALONE,
) -> None:
    """Trains a network into the run folder, behind the rounds that are there."""
    physics = Physics(geometry, training[0].device)
    network = build(settings, physics, torch.Generator().manual_seed(seed))
    network.to(physics.device)
    kept = run.blocks()
    scans = examples(physics, *training, settings.fit.batch)
    if not kept:
        network.prepare(scans.first[:PREPARED], scans.sinogram[:PREPARED])  # type: ignore[operator]
    train_network(
        network,
        scans,
        examples(physics, *validation, settings.fit.batch),
        settings.fit,
        seed=seed,
        kept=(kept[-1], run.manifest["blocks"][-1]) if kept else None,
        keep=run.replace,
        report=report,
        team=team,
    )


def examples(physics: Physics, sinogram: ImageStore, truth: ImageStore, batch: int) -> Examples:
    """Scans with their FBP, not clipped."""
    return Examples(physics.first_images(sinogram, truth, batch), sinogram, truth)


def load(
    build: Build,
    kind: type[Any],  # of settings
    name: str,
    geometry: Geometry,
    manifest: Mapping[str, Any],
    weights: Sequence[Tensors],
    overrides: Sequence[str],
    device: torch.device | str,
) -> "TrainedNetwork":
    """A trained network, ready to be called with sinograms."""
    parts = [field.name for field in dataclasses.fields(kind)]
    stored = manifest["settings"]
    if any(part not in stored for part in parts):
        raise UserError(f"{name}: its manifest is damaged: expected the settings {', '.join(parts)}")
    if overrides:
        raise UserError(
            f"--set {overrides[0]}: what was trained cannot be set any more, and there is nothing else to set"
        )
    settings = load_settings(kind, base=settings_from(kind, {part: stored[part] for part in parts}))
    if not weights:
        raise UserError(f"{name}: nothing is trained yet; go on with the same train command")
    physics = Physics(geometry, choose_device(device))
    network = build(settings, physics, torch.Generator())
    tensors = {key: value.float() for key, value in weights[-1].items() if not key.startswith(WORK)}
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"the weights do not fit their settings: {' '.join(str(error).split()):.200}") from None
    warning = None
    if manifest.get("status") != "done":
        rounds = manifest["blocks"][-1].get("rounds", 0)
        warning = f"{name} is not trained to its end: {rounds} of {settings.fit.rounds} rounds"
    return TrainedNetwork(name, network, geometry, settings, physics, warning)


@final
class TrainedNetwork(Reconstructor):
    """A trained network: an image, without a word about its doubt."""

    def __init__(
        self, name: str, network: nn.Module, geometry: Geometry, settings: Any, physics: Physics, warning: str | None
    ):
        self.name = name
        self.network = network.to(physics.device).eval().requires_grad_(False)
        self.geometry = geometry
        self.settings = settings
        self.physics = physics
        self.warning = warning
        self.sinogram_shape = geometry.sinogram_shape

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network.parameters())

    @torch.no_grad()
    def reconstruct(self, sinogram: Tensor, *, samples: int, seed: int) -> Reconstruction:
        images = []
        with progress("images", len(sinogram)) as advance:
            for some in batches(len(sinogram), AT_ONCE):
                part = sinogram[some].to(self.physics.device)
                images.append(self.network.clipped(self.physics.first(part), part))  # type: ignore[operator]
                advance(len(part))
        return Reconstruction(
            image=torch.cat(images).float(),
            model=self.name,
            geometry=self.geometry.to_json(),
            seed=seed,
            settings=json.dumps(dataclasses.asdict(self.settings)),
            warning=self.warning,
        )
