"""The loop that trains one block: epochs, batches, steps. On a GPU a step is captured once and replayed as a CUDA graph."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from bayescade.bayes.gaussian import Gaussian
from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks.block import ActivationDraw, Block, MeanDraw
from bayescade.blocks.fused import fused
from bayescade.errors import Failure
from bayescade.kernels._triton import check_kernels, is_fused
from bayescade.seeds import derived_seed
from bayescade.storage.image_store import copy_images
from bayescade.training.captured import Captured
from bayescade.training.distributed import ALONE, Team
from bayescade.training.losses import Loss
from bayescade.training.optimiser import (
    Adam,
    Group,
    RateSettings,
    check_positive,
    clipped,
    libraries,
    precision_on,
    schedule,
)
from bayescade.training.stage import Stage


@dataclasses.dataclass(frozen=True)
class FitSettings(RateSettings):
    """How one block is trained; weight decay is for the weights that are not random."""

    epochs: int = 10
    batch: int = 16
    learning_rate: float = 5e-3
    clip: float = 5.0
    posterior_rate: float = 1.0  # learning rate of the posterior's log standard deviations, over that of the rest
    kernels: str = "auto"  # fused: Triton kernels; plain; auto = fused on a GPU

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "posterior_rate")
        check_kernels(self.kernels)


OnEpoch = Callable[[int, float, float], None]  # (epoch, mean loss, learning rate)


def fit(
    block: Block,
    stages: Callable[[int], Stage],  # the training set of an epoch
    loss: Loss,
    settings: FitSettings,
    *,
    seed: int,
    parameters: Sequence[nn.Parameter] | None = None,  # those that learn; default: all
    team: Team = ALONE,
    on_epoch: OnEpoch = lambda epoch, loss, rate: None,
) -> None:
    """Trains the block in place. Batches are runs of a new order every epoch; what does not fill one waits for the next."""
    stage = stages(0)
    device = stage.image.device
    batch = min(settings.batch, len(stage))
    per_epoch = len(stage) // batch
    steps = settings.epochs * per_epoch
    rates = schedule(settings.learning_rate, settings.final_learning_rate, settings.warm_up, steps)
    optimiser = adam(block, settings, set(block.parameters() if parameters is None else parameters))
    orders = torch.Generator().manual_seed(derived_seed(seed, "orders"))
    noises = torch.Generator(device).manual_seed(derived_seed(seed, "noises"))
    step = Step(block, loss, optimiser, stage, batch, settings, team)
    with libraries(settings.precision):
        for epoch in range(settings.epochs):
            stage = stages(epoch) if epoch else stage
            order = torch.randperm(len(stage), generator=orders).to(device)
            total = torch.zeros((), device=device)
            for place in range(per_epoch):
                step.take(stage, order[place * batch : (place + 1) * batch], noises)
                rate = next(rates)
                total += step.run(rate)
            mean = float(team.mean(total)) / per_epoch
            if not math.isfinite(mean):
                raise Failure(f"epoch {epoch + 1}: the loss is {mean}")
            on_epoch(epoch, mean, rate)


def adam(block: Block, settings: FitSettings, learning: set[nn.Parameter]) -> Adam:
    """Adam with weight decay on what is not random, and the posterior's spread at its own rate."""
    means: list[nn.Parameter] = [layer.weight for layer in block.layers]
    spreads = [layer.log_std for layer in block.layers if isinstance(layer, MeanFieldConv)]
    rest = [parameter for parameter in block.parameters() if parameter not in {*means, *spreads}]

    def wanted(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        return [parameter for parameter in parameters if parameter in learning]

    return Adam(
        [
            Group(wanted(rest), weight_decay=settings.weight_decay),
            Group(wanted(means)),
            Group(wanted(spreads), factor=settings.posterior_rate),
        ]
    )


@final
class Step:
    """One step: a batch and its noise are put in place, then the loss, its gradient and the update are computed."""

    def __init__(
        self,
        block: Block,
        loss: Loss,
        optimiser: Adam,
        stage: Stage,
        batch: int,
        settings: FitSettings,
        team: Team = ALONE,
    ):
        self.block = block
        self.loss = loss
        self.optimiser = optimiser
        precision = precision_on(stage.image.device, settings.precision)
        self.mixed = precision == "bf16"
        self.features = torch.bfloat16 if self.mixed else stage.image.dtype
        self.fused = is_fused(settings.kernels, stage.image.device)
        self.clip = settings.clip
        self.team, self.part = team, team.part(batch)
        device, pixels = stage.image.device, stage.image.shape[1:]

        def new(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=stage.image.dtype, device=device)

        own = batch // team.size
        self.image, self.gradient, self.truth = new(own, *pixels), new(own, *pixels), new(own, *pixels)
        self.all_noise = [new(batch, *pixels) for _ in block.layers]
        self.noise = [noise[self.part] for noise in self.all_noise]
        self.compute = Captured(self._compute, device, allowed=team.size == 1)

    def take(self, stage: Stage, rows: Tensor, generator: torch.Generator) -> None:
        """Puts some images of the stage in place, with fresh noise: of a team's batch, this process's part."""
        rows = rows[self.part]
        copy_images(stage.image, rows, self.image)
        copy_images(stage.gradient, rows, self.gradient)
        copy_images(stage.truth, rows, self.truth)
        for noise in self.all_noise:
            noise.normal_(generator=generator)

    def run(self, rate: float) -> Tensor:
        """The loss before the update."""
        self.optimiser.set_rate(rate)
        return self.compute()

    def _predict(self) -> Gaussian:
        if self.fused:
            return fused(self.block, self.image, self.gradient, self.noise, self.features)
        draw = ActivationDraw(self.noise) if self.noise else MeanDraw()
        with torch.autocast(self.image.device.type, torch.bfloat16, enabled=self.mixed, cache_enabled=False):
            prediction: Gaussian = self.block(self.image, self.gradient, draw)
        return prediction

    def _compute(self) -> Tensor:
        self.optimiser.forget_gradients()
        value = self.loss(self._predict(), self.truth, self.block.kl())
        value.backward()
        gradients = self.optimiser.gradients()
        self.team.average(gradients)
        clipped(gradients, self.clip)
        self.optimiser.step()
        return value.detach()
