"""End-to-end training of one network, in rounds of several epochs.

Network and optimiser are saved after every round, so that training can be resumed after the last saved round. The order
of the images and the learning rate depend only on the settings, the seed and the epoch.
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
from bayescade.storage.weights import OPTIMISER_PREFIX
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
    cudnn_options,
    precision_on,
    schedule,
)
from bayescade.training.stage import batches, mean_psnr

Tensors = dict[str, Tensor]
Record = dict[str, Any]

STATES = tuple(field.name for field in dataclasses.fields(Memory))  # tensors of Adam for each parameter


@dataclasses.dataclass(frozen=True)
class EndToEndSettings(RateSettings):
    """How a network is trained."""

    epochs: int = 40
    batch: int = 16
    learning_rate: float = 1e-3
    clip: float = 1.0
    rounds: int = 10  # number of rounds; network and optimiser are saved after each round

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "rounds")


@dataclasses.dataclass(frozen=True)
class Examples:
    """Training or validation images of a network; images are in units of the problem's scale."""

    initial: ImageStore  # (images, 1, height, width): reconstructions from which the network starts, e.g. FBP
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
    report: Callable[[Record], None] = no_callback  # (metrics): called after every epoch and every failure
    processes: ProcessGroup = ALONE


def train_network(
    network: nn.Module,  # (initial image, data) -> image; its method `clipped` gives this image without negative values
    training: Examples,
    validation: Examples,
    job: NetworkTraining,
) -> None:
    """Trains the network; its weights are changed."""
    settings, processes = job.settings, job.processes
    device = training.truth.device
    batch = min(settings.batch, len(training))
    steps_per_epoch = len(training) // batch
    network.to(device)
    channels_last(network)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimiser = Adam([Group(parameters, settings.weight_decay)])
    record: Record = {"rounds": 0, "seconds": 0.0}
    if job.saved is not None:
        record = dict(job.saved[1])
        restore(network, optimiser, job.saved[0])
    step = NetworkStep(network, optimiser, training, batch, settings, processes)
    bounds = round_bounds(settings.epochs, settings.rounds)
    done = bounds[record["rounds"]]  # epochs of earlier runs
    rates = itertools.islice(schedule(settings, settings.epochs * steps_per_epoch), done * steps_per_epoch, None)
    with progress("training", settings.epochs - done) as advance, cudnn_options(settings.precision):
        for number in range(record["rounds"], len(bounds) - 1):
            start = time.perf_counter()
            for epoch in range(bounds[number], bounds[number + 1]):
                generator = torch.Generator().manual_seed(derived_seed(job.seed, "orders", epoch))
                order = torch.randperm(len(training), generator=generator).to(device)
                line = {"block": number + 1, "epoch": epoch + 1}  # `storage.runs` reads the round as `block`
                try:
                    index_batches = order[: steps_per_epoch * batch].split(batch)
                    mse, rate = run_epoch(epoch, index_batches, step.load, rates, processes)
                except Failure as failure:
                    job.report({**line, "failed": str(failure)})
                    raise Failure(f"{failure}; the completed rounds are saved in the folder") from None
                score = validation_psnr(network, validation, batch)
                job.report({**line, "loss": mse, "validation_psnr": score, "learning_rate": rate})
                advance(1, f"squared error {mse:.4g}, validation {score:.2f} dB")
            score = processes.value_of_first(validation_psnr(network, validation, batch), device)
            seconds = record["seconds"] + time.perf_counter() - start
            record = {"rounds": number + 1, "seconds": seconds, "validation_psnr": score, "warnings": []}
            job.save({**network.state_dict(), **optimiser_tensors(optimiser)}, record)


def round_bounds(epochs: int, rounds: int) -> list[int]:
    """The first epoch of every round, at most one round for each epoch; the last value is the end of the training."""
    rounds = min(rounds, epochs)
    return [round(number * epochs / rounds) for number in range(rounds + 1)]


@final
class NetworkStep:
    """One step: load a batch, then compute the loss, its gradient and the update."""

    def __init__(
        self,
        network: nn.Module,
        optimiser: Adam,
        examples: Examples,
        batch: int,  # number of images of a batch, in all processes together
        settings: EndToEndSettings,
        processes: ProcessGroup,
    ):
        self.network = network
        self.optimiser = optimiser
        self.examples = examples
        self.clip = settings.clip
        device = examples.truth.device
        self.mixed = precision_on(device, settings.precision) == "bf16"
        self.processes, self.batch_slice = processes, processes.part(batch)
        count = batch // processes.size
        self.initial, self.data, self.truth = (
            torch.empty((count, *store.shape[1:]), dtype=store.dtype, device=device)
            for store in (examples.initial, examples.data, examples.truth)
        )
        self.compute = Captured(self._compute, device, allowed=processes.size == 1)

    def load(self, indices: Tensor) -> "NetworkStep":
        """Copies the examples with these indices; of several processes, each copies only its part of the batch."""
        indices = indices[self.batch_slice]
        copy_images(self.examples.initial, indices, self.initial)
        copy_images(self.examples.data, indices, self.data)
        copy_images(self.examples.truth, indices, self.truth)
        return self

    def run(self, rate: float) -> Tensor:
        """Updates the network with this learning rate; gives the mean squared error before the update."""
        self.optimiser.set_rate(rate)
        return self.compute()

    def _compute(self) -> Tensor:
        self.optimiser.forget_gradients()
        with torch.autocast(self.truth.device.type, torch.bfloat16, enabled=self.mixed, cache_enabled=False):
            image = self.network(self.initial, self.data)
        image = image.to(self.truth.dtype)
        image_error(image, self.truth, self.processes).backward()
        gradients = self.optimiser.gradients()
        self.processes.average(gradients)
        clip_gradients(gradients, self.clip)
        self.optimiser.step()
        return ((image.detach() - self.truth) ** 2).mean()


@torch.no_grad()
def validation_psnr(network: nn.Module, validation: Examples, batch: int) -> float:
    """Mean PSNR of the images of the network, without negative values."""
    pairs = (
        (
            network.clipped(validation.initial[batch_slice], validation.data[batch_slice]),  # type: ignore[operator]
            validation.truth[batch_slice],
        )
        for batch_slice in batches(len(validation), batch)
    )
    return mean_psnr(pairs)


def optimiser_tensors(optimiser: Adam) -> Tensors:
    """The state of Adam as tensors, whose names contain the index of the parameter."""
    tensors: Tensors = {}
    for index, parameter in enumerate(optimiser.parameters):
        for name in STATES:
            tensors[f"{OPTIMISER_PREFIX}{index}.{name}"] = getattr(optimiser.memory[parameter], name).clone()
    return tensors


def restore(network: nn.Module, optimiser: Adam, tensors: Mapping[str, Tensor]) -> None:
    """Sets the network and the state of the optimiser to the saved tensors."""
    network.load_state_dict({key: value for key, value in tensors.items() if not key.startswith(OPTIMISER_PREFIX)})
    restore_optimiser(optimiser, tensors)


def restore_optimiser(optimiser: Adam, tensors: Mapping[str, Tensor]) -> None:
    """Sets the state of the optimiser to the saved tensors; nothing is changed if there are none."""
    if not tensors:
        return
    for index, parameter in enumerate(optimiser.parameters):
        for name in STATES:
            getattr(optimiser.memory[parameter], name).copy_(tensors[f"{OPTIMISER_PREFIX}{index}.{name}"])
