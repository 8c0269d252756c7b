"""The loop that trains one block: epochs, batches, steps. On a GPU a step is captured once and replayed as a CUDA graph."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from bayescade.bayes.gaussian import Gaussian
from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks._block import ActivationDraw, Block, MeanDraw
from bayescade.blocks._fused import fused
from bayescade.errors import Failure, UserError
from bayescade.kernels._triton import check_kernels, is_fused
from bayescade.rows import copy_rows
from bayescade.seeds import derived_seed
from bayescade.training.captured import Captured
from bayescade.training.distributed import ALONE, Team
from bayescade.training.losses import Loss
from bayescade.training.stage import Stage

PRECISIONS = ("auto", "bf16", "tf32", "float32")


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """How one block is trained."""

    epochs: int = 12
    batch: int = 32
    learning_rate: float = 3e-3
    final_learning_rate: float = 1e-5  # at the end of the cosine
    warm_up: float = 0.05  # part of the steps in which the rate rises
    weight_decay: float = 0.0  # of the weights that are not random
    posterior_rate: float = 1.0  # learning rate of the posterior's log standard deviations, over that of the rest
    kernels: str = "auto"  # fused: Triton kernels; plain; auto = fused on a GPU
    precision: str = "auto"  # bf16 (mixed), tf32 or float32; auto is bf16 on a GPU and float32 elsewhere

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if not 1 <= getattr(self, name) <= 1_000_000:
                raise UserError(f"setting {name}: expected a whole number from 1 to 1000000, got {getattr(self, name)}")
        for name in ("learning_rate", "posterior_rate"):
            if not 0 < getattr(self, name) < 1e30:
                raise UserError(f"setting {name}: expected a positive number, got {getattr(self, name)}")
        for name in ("final_learning_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"setting {name}: expected a number of at least 0, got {getattr(self, name)}")
        if not 0 <= self.warm_up < 1:
            raise UserError(f"setting warm_up: expected at least 0 and less than 1, got {self.warm_up}")
        check_kernels(self.kernels)
        if self.precision not in PRECISIONS:
            raise UserError(f"setting precision: expected {', '.join(PRECISIONS)}, got '{self.precision}'")


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


def schedule(rate: float, final: float, warm_up: float, steps: int) -> Iterator[float]:
    """Learning rates: a linear rise, then a cosine to the final rate."""
    rise = math.ceil(warm_up * steps)
    for step in range(steps):
        done = (step - rise) / max(steps - rise, 1)
        cosine = (1 + math.cos(math.pi * max(done, 0.0))) / 2
        fall = final + (rate - final) * cosine
        yield fall * (step + 1) / rise if step < rise else fall


def adam(block: Block, settings: FitSettings, learning: set[nn.Parameter]) -> torch.optim.Adam:
    """Adam with weight decay on what is not random, and the posterior's spread at its own rate."""
    means = [layer.weight for layer in block.layers]
    spreads = [layer.log_std for layer in block.layers if isinstance(layer, MeanFieldConv)]
    free = {*means, *spreads}
    groups: list[dict[str, Any]] = [
        {
            "params": [p for p in block.parameters() if p not in free],
            "factor": 1.0,
            "weight_decay": settings.weight_decay,
        },
        {"params": means, "factor": 1.0},
        {"params": spreads, "factor": settings.posterior_rate},
    ]
    for group in groups:
        group["params"] = [p for p in group["params"] if p in learning]
    return adam_of([group for group in groups if group["params"]], settings.learning_rate)


def adam_of(groups: list[dict[str, Any]], rate: float) -> torch.optim.Adam:
    """Adam for groups of parameters; on a GPU as one kernel that can be captured, with rates that can be changed there."""
    device = groups[0]["params"][0].device
    if device.type != "cuda":
        return torch.optim.Adam(groups, lr=rate)
    for group in groups:
        group["lr"] = torch.tensor(rate, device=device)
    return torch.optim.Adam(groups, fused=True, capturable=True)


def set_rate(optimiser: torch.optim.Adam, rate: float) -> None:
    """Sets the learning rate, each group's times its own factor."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * group["factor"])
        else:
            group["lr"] = rate * group["factor"]


def precision_on(device: torch.device, precision: str) -> str:
    """What `auto` means on a device."""
    return precision if precision != "auto" else ("bf16" if device.type == "cuda" else "float32")


@contextlib.contextmanager
def libraries(precision: str) -> Iterator[None]:
    """The fastest convolutions of a precision, for the time of a training."""
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, precision != "float32"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before


@final
class Step:
    """One step: a batch and its noise are put in place, then the loss, its gradient and the update are computed."""

    def __init__(
        self,
        block: Block,
        loss: Loss,
        optimiser: torch.optim.Adam,
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
        copy_rows(stage.image, rows, self.image)
        copy_rows(stage.gradient, rows, self.gradient)
        copy_rows(stage.truth, rows, self.truth)
        for noise in self.all_noise:
            noise.normal_(generator=generator)

    def run(self, rate: float) -> Tensor:
        """The loss before the update."""
        set_rate(self.optimiser, rate)
        return self.compute()

    def _predict(self) -> Gaussian:
        if self.fused:
            return fused(self.block, self.image, self.gradient, self.noise, self.features)
        draw = ActivationDraw(self.noise) if self.noise else MeanDraw()
        with torch.autocast(self.image.device.type, torch.bfloat16, enabled=self.mixed, cache_enabled=False):
            prediction: Gaussian = self.block(self.image, self.gradient, draw)
        return prediction

    def _compute(self) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        value = self.loss(self._predict(), self.truth, self.block.kl())
        value.backward()
        self.team.average([parameter.grad for parameter in self.block.parameters() if parameter.grad is not None])
        self.optimiser.step()
        return value.detach()
