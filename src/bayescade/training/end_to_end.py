"""End-to-end training of one network, in rounds: what is saved after a round is enough to resume.

The order of the images and the learning rate depend on the settings, the seed and the round only.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescade.blocks.convolution import channels_last
from bayescade.errors import Failure
from bayescade.progress import progress
from bayescade.seeds import derived_seed
from bayescade.storage.image_store import ImageStore, copy_images
from bayescade.storage.weights import WORK
from bayescade.training.captured import Captured
from bayescade.training.distributed import ALONE, ProcessGroup
from bayescade.training.loop import no_callback, run_epoch
from bayescade.training.losses import image_error
from bayescade.training.optimiser import (
    Adam,
    Group,
    Memory,
    RateSettings,
    check_whole,
    clip_gradients,
    libraries,
    precision_on,
    schedule,
)
from bayescade.training.stage import batches, mean_psnr

Tensors = dict[str, Tensor]
Record = dict[str, Any]

STATES = tuple(field.name for field in dataclasses.fields(Memory))


@dataclasses.dataclass(frozen=True)
class EndToEndSettings(RateSettings):
    """How a network is trained."""

    epochs: int = 40
    batch: int = 16
    learning_rate: float = 1e-3
    clip: float = 1.0
    rounds: int = 10  # parts of the training, after each of which everything is saved

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "rounds")


@dataclasses.dataclass(frozen=True)
class Examples:
    """Training or validation images of a network."""

    first: ImageStore  # (images, 1, height, width): the first image
    data: ImageStore  # (images, *range_shape)
    truth: ImageStore  # (images, 1, height, width)

    def __len__(self) -> int:
        return len(self.truth)


@dataclasses.dataclass(frozen=True)
class NetworkTraining:
    """Settings and callbacks of the training of a network."""

    settings: EndToEndSettings
    seed: int
    saved: tuple[Mapping[str, Tensor], Record] | None = None  # tensors and record of the last save of an earlier run
    save: Callable[[Tensors, Record], None] = no_callback  # (tensors, record): called after every round
    report: Callable[[Record], None] = no_callback  # a line of metrics
    processes: ProcessGroup = ALONE


def train_network(
    network: nn.Module,  # (first image, data) -> image; `clipped` sets negative values to 0
    training: Examples,
    validation: Examples,
    job: NetworkTraining,
) -> None:
    """Trains the network; its weights are changed."""
    settings, processes = job.settings, job.processes
    device = training.truth.device
    batch = min(settings.batch, len(training))
    per_epoch = len(training) // batch
    network.to(device)
    channels_last(network)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimiser = Adam([Group(parameters, settings.weight_decay)])
    record: Record = {"rounds": 0, "seconds": 0.0}
    if job.saved is not None:
        record = dict(job.saved[1])
        restore(network, optimiser, job.saved[0])
    step = NetworkStep(network, optimiser, training, batch, settings, processes)
    rounds = min(settings.rounds, settings.epochs)
    ends = [round(number * settings.epochs / rounds) for number in range(rounds + 1)]
    first = ends[record["rounds"]]
    rates = itertools.islice(schedule(settings, settings.epochs * per_epoch), first * per_epoch, None)
    with progress("training", settings.epochs - first) as advance, libraries(settings.precision):
        for number in range(record["rounds"], rounds):
            start = time.perf_counter()
            for epoch in range(ends[number], ends[number + 1]):
                orders = torch.Generator().manual_seed(derived_seed(job.seed, "orders", epoch))
                order = torch.randperm(len(training), generator=orders).to(device)
                line = {"block": number + 1, "epoch": epoch + 1}
                try:
                    parts = order[: per_epoch * batch].split(batch)
                    loss, rate = run_epoch(epoch, parts, step.load, rates, processes)
                except Failure as failure:
                    job.report({**line, "failed": str(failure)})
                    raise Failure(f"{failure}; what was saved before is in the folder") from None
                score = validation_psnr(network, validation, batch)
                job.report({**line, "loss": loss, "validation_psnr": score, "learning_rate": rate})
                advance(1, f"loss {loss:.4g}, validation {score:.2f} dB")
            score = processes.agree(validation_psnr(network, validation, batch), device)
            seconds = record["seconds"] + time.perf_counter() - start
            record = {"rounds": number + 1, "seconds": seconds, "validation_psnr": score, "warnings": []}
            job.save({**network.state_dict(), **optimiser_tensors(optimiser)}, record)


@final
class NetworkStep:
    """One step: load a batch, then compute the loss, its gradient and the update."""

    def __init__(
        self,
        network: nn.Module,
        optimiser: Adam,
        examples: Examples,
        batch: int,
        settings: EndToEndSettings,
        processes: ProcessGroup,
    ):
        self.network = network
        self.optimiser = optimiser
        self.examples = examples
        self.clip = settings.clip
        device = examples.truth.device
        self.mixed = precision_on(device, settings.precision) == "bf16"
        self.processes, self.part = processes, processes.part(batch)
        count = batch // processes.size
        self.first, self.data, self.truth = (
            torch.empty((count, *store.shape[1:]), dtype=store.dtype, device=device)
            for store in (examples.first, examples.data, examples.truth)
        )
        self.compute = Captured(self._compute, device, allowed=processes.size == 1)

    def load(self, indices: Tensor) -> "NetworkStep":
        """Copies the examples of a batch; with several processes, this process's part."""
        indices = indices[self.part]
        copy_images(self.examples.first, indices, self.first)
        copy_images(self.examples.data, indices, self.data)
        copy_images(self.examples.truth, indices, self.truth)
        return self

    def run(self, rate: float) -> Tensor:
        """Updates at that learning rate; the mean squared error before the update."""
        self.optimiser.set_rate(rate)
        return self.compute()

    def _compute(self) -> Tensor:
        self.optimiser.forget_gradients()
        with torch.autocast(self.truth.device.type, torch.bfloat16, enabled=self.mixed, cache_enabled=False):
            image = self.network(self.first, self.data)
        image = image.to(self.truth.dtype)
        image_error(image, self.truth, self.processes).backward()
        gradients = self.optimiser.gradients()
        self.processes.average(gradients)
        clip_gradients(gradients, self.clip)
        self.optimiser.step()
        return ((image.detach() - self.truth) ** 2).mean()


@torch.no_grad()
def validation_psnr(network: nn.Module, validation: Examples, batch: int) -> float:
    """Mean PSNR of the network's images."""
    pairs = (
        (network.clipped(validation.first[part], validation.data[part]), validation.truth[part])  # type: ignore[operator]
        for part in batches(len(validation), batch)
    )
    return mean_psnr(pairs)


def optimiser_tensors(optimiser: Adam) -> Tensors:
    """Adam's memory, named by the index of the parameter."""
    tensors: Tensors = {}
    for index, parameter in enumerate(optimiser.parameters):
        for name in STATES:
            tensors[f"{WORK}{index}.{name}"] = getattr(optimiser.memory[parameter], name).clone()
    return tensors


def restore(network: nn.Module, optimiser: Adam, tensors: Mapping[str, Tensor]) -> None:
    """Loads what was saved."""
    network.load_state_dict({key: value for key, value in tensors.items() if not key.startswith(WORK)})
    for index, parameter in enumerate(optimiser.parameters):
        for name in STATES:
            getattr(optimiser.memory[parameter], name).copy_(tensors[f"{WORK}{index}.{name}"])
