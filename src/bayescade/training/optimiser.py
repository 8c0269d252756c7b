"""What every training has: its length, its learning rates, its precision, and Adam."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bayescade.errors import UserError

PRECISIONS = ("auto", "bf16", "tf32", "float32")
MOST = 1_000_000


@dataclasses.dataclass(frozen=True)
class RateSettings:
    """How long and how fast is learned."""

    epochs: int
    batch: int
    learning_rate: float
    final_learning_rate: float = 1e-5  # at the end of the cosine
    warm_up: float = 0.05  # part of the steps in which the rate rises
    weight_decay: float = 0.0
    clip: float = 0.0  # the most that the norm of a gradient may be; 0 = no limit
    precision: str = "auto"  # bf16 (mixed), tf32 or float32; auto is bf16 on a GPU and float32 elsewhere

    def __post_init__(self) -> None:
        check_whole(self, "epochs", "batch")
        check_positive(self, "learning_rate")
        for name in ("final_learning_rate", "weight_decay", "clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"setting {name}: expected a number of at least 0, got {getattr(self, name)}")
        if not 0 <= self.warm_up < 1:
            raise UserError(f"setting warm_up: expected at least 0 and less than 1, got {self.warm_up}")
        if self.precision not in PRECISIONS:
            raise UserError(f"setting precision: expected {', '.join(PRECISIONS)}, got '{self.precision}'")


def check_whole(settings: object, *names: str, most: int = MOST) -> None:
    """Raises unless the settings of these names are counts."""
    for name in names:
        if not 1 <= getattr(settings, name) <= most:
            raise UserError(f"setting {name}: expected a whole number from 1 to {most}, got {getattr(settings, name)}")


def check_positive(settings: RateSettings, *names: str) -> None:
    """Raises unless the settings of these names are positive."""
    for name in names:
        if not 0 < getattr(settings, name) < 1e30:
            raise UserError(f"setting {name}: expected a positive number, got {getattr(settings, name)}")


def schedule(rate: float, final: float, warm_up: float, steps: int) -> Iterator[float]:
    """Learning rates: a linear rise, then a cosine to the final rate."""
    rise = math.ceil(warm_up * steps)
    for step in range(steps):
        done = (step - rise) / max(steps - rise, 1)
        cosine = (1 + math.cos(math.pi * max(done, 0.0))) / 2
        fall = final + (rate - final) * cosine
        yield fall * (step + 1) / rise if step < rise else fall


def adam_of(groups: list[dict[str, Any]], rate: float) -> torch.optim.Adam:
    """Adam for groups of parameters; on a GPU as one kernel that can be captured, with rates that can be changed there."""
    device = groups[0]["params"][0].device
    if device.type != "cuda":
        return torch.optim.Adam(groups, lr=rate)
    for group in groups:
        group["lr"] = torch.tensor(rate, device=device)
    return torch.optim.Adam(groups, fused=True, capturable=True)


def clipped(gradients: list[Tensor], most: float) -> None:
    """Makes gradients shorter, in place, where their norm is above the most; 0 = no limit."""
    if most:
        factor = (most / torch.nn.utils.get_total_norm(gradients).clamp_min(1e-30)).clamp_max(1.0)
        torch._foreach_mul_(gradients, factor)


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
