"""The common code of U-Net and learned primal-dual: training into a run folder, and the trained network as a method."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescade import plugins
from bayescade.config import load_settings, settings_from
from bayescade.errors import UserError
from bayescade.physics.problem import InverseProblem
from bayescade.progress import progress
from bayescade.results import Reconstruction, Reconstructor
from bayescade.storage.image_store import store_like
from bayescade.storage.manifest import Manifest
from bayescade.storage.runs import Run
from bayescade.storage.weights import OPTIMISER_PREFIX, Tensors
from bayescade.training.distributed import ALONE, ProcessGroup
from bayescade.training.end_to_end import Examples, NetworkTraining, Record, train_network
from bayescade.training.sets import Pair, TrainingData
from bayescade.training.stage import batches

Build = Callable[[Any, InverseProblem, torch.Generator], nn.Module]  # (settings, problem, generator) -> network

AT_ONCE = 16  # images reconstructed at once
SCALE_IMAGES = 64  # number of training images from which a network determines its input scales


def check_preset(name: str) -> None:
    """Raises unless the name is `recommended`, the only preset of these networks."""
    if name != "recommended":
        raise UserError(plugins.unknown("preset", name, ["recommended"]))


def train(
    build: Build,
    data: TrainingData,
    settings: Any,
    run: Run,
    *,
    seed: int,
    report: Callable[[Record], None],
    processes: ProcessGroup = ALONE,
) -> None:
    """Trains a network and saves it to the run folder; rounds that are already saved are not trained again."""
    problem = data.problem
    network = build(settings, problem, torch.Generator().manual_seed(seed))
    network.to(problem.device)
    saved = run.blocks()
    training = examples(problem, data.training, settings.fit.batch)
    if not saved:
        network.prepare(training.initial[:SCALE_IMAGES], training.data[:SCALE_IMAGES])  # type: ignore[operator]
    last_save = (saved[-1], dataclasses.asdict(run.manifest.blocks[-1])) if saved else None
    job = NetworkTraining(settings.fit, seed, last_save, run.save_network, report, processes)
    train_network(network, training, examples(problem, data.validation, settings.fit.batch), job)


def examples(problem: InverseProblem, pair: Pair, batch_size: int) -> Examples:
    """Initial images, data and truths; initial images and truths are in units of the problem's scale."""
    data, truth = pair
    initial_images, scaled_truth = store_like(truth), store_like(truth) if problem.scale != 1 else truth
    for batch in batches(len(truth), batch_size):
        initial_images[batch] = problem.initial(data[batch])
        if problem.scale != 1:
            scaled_truth[batch] = truth[batch] / problem.scale
    return Examples(initial_images, data, scaled_truth)


def load(
    build: Build,
    kind: type[Any],  # class of the settings
    name: str,
    problem: InverseProblem,
    manifest: Manifest,
    weights: Sequence[Tensors],
    overrides: Sequence[str],
) -> "TrainedNetwork":
    """A trained network, ready to be called with data."""
    parts = [field.name for field in dataclasses.fields(kind)]
    stored = manifest.settings
    if any(part not in stored for part in parts):
        raise UserError(f"{name}: its manifest is damaged: expected the settings {', '.join(parts)}")
    if overrides:
        raise UserError(
            f"--set {overrides[0]}: settings of the training cannot change after the training; "
            "this method has no other settings"
        )
    settings = load_settings(kind, base=settings_from(kind, {part: stored[part] for part in parts}))
    if not weights:
        raise UserError(f"{name}: nothing is trained yet; run the same train command again")
    network = build(settings, problem, torch.Generator())
    tensors = {key: value.float() for key, value in weights[-1].items() if not key.startswith(OPTIMISER_PREFIX)}
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"the weights do not match their settings: {' '.join(str(error).split()):.200}") from None
    warning = None
    if manifest.status != "done":
        rounds = manifest.blocks[-1].rounds
        warning = f"the training of {name} is not finished: {rounds} of {settings.fit.rounds} rounds are done"
    return TrainedNetwork(name, network, problem, settings, manifest.geometry, warning)


@final
class TrainedNetwork(Reconstructor):
    """A trained network: an image without uncertainty."""

    def __init__(
        self,
        name: str,
        network: nn.Module,
        problem: InverseProblem,
        settings: Any,
        geometry: str | None = None,  # JSON text
        warning: str | None = None,
    ):
        self.name = name
        self.network = network.to(problem.device).eval().requires_grad_(False)
        self.problem = problem
        self.settings = settings
        self.geometry = geometry
        self.warning = warning
        self.data_shape = problem.operator.range_shape
        self.data_name = "sinogram" if geometry is not None else "data"

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.network.parameters())

    @torch.no_grad()
    def reconstruct(self, data: Tensor, *, samples: int, seed: int, index: int) -> Reconstruction:
        images = []
        with progress("images", len(data)) as advance:
            for indices in batches(len(data), AT_ONCE):
                batch = data[indices].to(self.problem.device)
                images.append(self.network.clipped(self.problem.initial(batch), batch))  # type: ignore[operator]
                advance(len(batch))
        return Reconstruction(
            image=torch.cat(images).float() * self.problem.scale,
            model=self.name,
            geometry=self.geometry,
            seed=seed,
            settings=json.dumps(dataclasses.asdict(self.settings)),
            warning=self.warning,
        )
