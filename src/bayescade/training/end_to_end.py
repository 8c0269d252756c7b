"""End-to-end training of one network, in rounds: what is kept behind each is all that is needed to go on.

The order of the images and the learning rate depend on the settings, the seed and the round only.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayescade.blocks.block import channels_last
from bayescade.errors import Failure
from bayescade.progress import progress
from bayescade.seeds import derived_seed
from bayescade.storage.image_store import ImageStore, copy_images
from bayescade.storage.runs import WORK
from bayescade.training.captured import Captured
from bayescade.training.distributed import ALONE, Team
from bayescade.training.losses import check_balance, image_error
from bayescade.training.optimiser import (
    Adam,
    Group,
    Memory,
    RateSettings,
    check_whole,
    clipped,
    libraries,
    precision_on,
    schedule,
)
from bayescade.training.stage import batches, mean_psnr

Tensors = dict[str, Tensor]
Report = Callable[[dict[str, Any]], None]  # a line of metrics
Keep = Callable[[Tensors, dict[str, Any]], None]  # (everything, record): called behind every round

STATES = tuple(field.name for field in dataclasses.fields(Memory))


@dataclasses.dataclass(frozen=True)
class EndToEndSettings(RateSettings):
    """How a network is trained."""

    epochs: int = 40
    batch: int = 16
    learning_rate: float = 1e-3
    clip: float = 1.0
    balance: float = 1.0  # 0 = least squares, 1 = images count alike however large their errors are
    rounds: int = 10  # parts of the training, behind each of which everything is kept

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "rounds")
        check_balance(self.balance)


@dataclasses.dataclass(frozen=True)
class Examples:
    """What a network learns from."""

    first: ImageStore  # (images, 1, height, width): the first image
    sinogram: ImageStore  # (images, 1, views, bins)
    truth: ImageStore  # (images, 1, height, width)

    def __len__(self) -> int:
        return len(self.truth)


def train_network(
    network: nn.Module,  # (first image, sinogram) -> image; `clipped` gives it without what is below 0
    training: Examples,
    validation: Examples,
    settings: EndToEndSettings,
    *,
    seed: int,
    kept: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None = None,  # what an earlier run has kept last
    keep: Keep = lambda tensors, record: None,
    report: Report = lambda line: None,
    team: Team = ALONE,
) -> None:
    """Trains the network in place."""
    device = training.truth.device
    batch = min(settings.batch, len(training))
    per_epoch = len(training) // batch
    steps = settings.epochs * per_epoch
    rates = list(schedule(settings.learning_rate, settings.final_learning_rate, settings.warm_up, steps))
    network.to(device)
    channels_last(network)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimiser = Adam([Group(parameters, weight_decay=settings.weight_decay)])
    record: dict[str, Any] = {"rounds": 0, "seconds": 0.0}
    if kept is not None:
        record = dict(kept[1])
        restore(network, optimiser, kept[0])
    step = NetworkStep(network, optimiser, training, batch, settings, team)
    rounds = min(settings.rounds, settings.epochs)
    ends = [round((number + 1) * settings.epochs / rounds) for number in range(rounds)]
    first = ends[record["rounds"] - 1] if record["rounds"] else 0
    with progress("training", settings.epochs - first) as advance, libraries(settings.precision):
        for number in range(record["rounds"], rounds):
            start = time.perf_counter()
            begin = ends[number - 1] if number else 0
            for epoch in range(begin, ends[number]):
                orders = torch.Generator().manual_seed(derived_seed(seed, "orders", epoch))
                order = torch.randperm(len(training), generator=orders).to(device)
                total = torch.zeros((), device=device)
                for place in range(per_epoch):
                    step.take(training, order[place * batch : (place + 1) * batch])
                    total += step.run(rates[epoch * per_epoch + place])
                mean = float(team.mean(total)) / per_epoch
                if not math.isfinite(mean):
                    said = f"epoch {epoch + 1}: the loss is {mean}"
                    report({"block": number + 1, "epoch": epoch + 1, "failed": said})
                    raise Failure(f"{said}; what was kept before is in the folder")
                score = validation_psnr(network, validation, batch)
                line = {"block": number + 1, "epoch": epoch + 1, "loss": mean, "validation_psnr": score}
                report({**line, "learning_rate": rates[(epoch + 1) * per_epoch - 1]})
                advance(1, f"loss {mean:.4g}, validation {score:.2f} dB")
            score = team.agree(validation_psnr(network, validation, batch), device)
            seconds = record["seconds"] + time.perf_counter() - start
            record = {"rounds": number + 1, "seconds": seconds, "validation_psnr": score, "warnings": []}
            keep({**network.state_dict(), **optimiser_tensors(optimiser)}, record)


class NetworkStep:
    """One step: a batch is put in place, then the loss, its gradient and the update are computed."""

    def __init__(
        self,
        network: nn.Module,
        optimiser: Adam,
        examples: Examples,
        batch: int,
        settings: EndToEndSettings,
        team: Team,
    ):
        self.network = network
        self.optimiser = optimiser
        self.clip, self.balance = settings.clip, settings.balance
        device = examples.truth.device
        self.mixed = precision_on(device, settings.precision) == "bf16"
        self.team, self.part = team, team.part(batch)
        own = batch // team.size
        self.first, self.sinogram, self.truth = (
            torch.empty((own, *rows.shape[1:]), dtype=rows.dtype, device=device)
            for rows in (examples.first, examples.sinogram, examples.truth)
        )
        self.compute = Captured(self._compute, device, allowed=team.size == 1)

    def take(self, examples: Examples, places: Tensor) -> None:
        """Puts some examples in place: of a team's batch, this process's part."""
        places = places[self.part]
        copy_images(examples.first, places, self.first)
        copy_images(examples.sinogram, places, self.sinogram)
        copy_images(examples.truth, places, self.truth)

    def run(self, rate: float) -> Tensor:
        """The mean squared error before the update."""
        self.optimiser.set_rate(rate)
        return self.compute()

    def _compute(self) -> Tensor:
        self.optimiser.forget_gradients()
        with torch.autocast(self.truth.device.type, torch.bfloat16, enabled=self.mixed, cache_enabled=False):
            image = self.network(self.first, self.sinogram)
        image = image.to(self.truth.dtype)
        image_error(image, self.truth, self.balance, self.team).backward()
        gradients = self.optimiser.gradients()
        self.team.average(gradients)
        clipped(gradients, self.clip)
        self.optimiser.step()
        return ((image.detach() - self.truth) ** 2).mean()


@torch.no_grad()
def validation_psnr(network: nn.Module, validation: Examples, batch: int) -> float:
    """Mean PSNR of what the network gives out."""
    pairs = (
        (network.clipped(validation.first[some], validation.sinogram[some]), validation.truth[some])  # type: ignore[operator]
        for some in batches(len(validation), batch)
    )
    return mean_psnr(pairs)


def optimiser_tensors(optimiser: Adam) -> Tensors:
    """Adam's memory, named by the place of the parameter."""
    found: Tensors = {}
    for place, parameter in enumerate(optimiser.parameters):
        for name in STATES:
            found[f"{WORK}{place}.{name}"] = getattr(optimiser.memory[parameter], name).clone()
    return found


def restore(network: nn.Module, optimiser: Adam, tensors: Mapping[str, Tensor]) -> None:
    """Puts back what was kept."""
    network.load_state_dict({key: value for key, value in tensors.items() if not key.startswith(WORK)})
    for place, parameter in enumerate(optimiser.parameters):
        for name in STATES:
            getattr(optimiser.memory[parameter], name).copy_(tensors[f"{WORK}{place}.{name}"])
