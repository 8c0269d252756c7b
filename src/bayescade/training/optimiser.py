"""What all trainings share: length, learning rates, precision, and Adam (Kingma and Ba, 2015).

This calls torch's Adam kernel directly: torch's optimiser imports a compiler, which takes as long as training a small block.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import Tensor, nn

from bayescade.errors import UserError

PRECISIONS = ("auto", "bf16", "tf32", "float32")
MOST = 1_000_000
BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclasses.dataclass(frozen=True)
class RateSettings:
    """Length, learning rate and precision of a training."""

    epochs: int
    batch: int
    learning_rate: float
    final_learning_rate: float = 1e-5  # at the end of the cosine
    warm_up: float = 0.05  # share of the steps in which the rate rises
    weight_decay: float = 0.0
    clip: float = 0.0  # limit of the norm of the gradient; 0 = no limit
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


def schedule(settings: RateSettings, steps: int) -> Iterator[float]:
    """The learning rate of every step: a linear rise, then a cosine to the final rate."""
    rate, final = settings.learning_rate, settings.final_learning_rate
    rise = math.ceil(settings.warm_up * steps)
    for step in range(steps):
        done = (step - rise) / max(steps - rise, 1)
        cosine = (1 + math.cos(math.pi * max(done, 0.0))) / 2
        fall = final + (rate - final) * cosine
        yield fall * (step + 1) / rise if step < rise else fall


def clip_gradients(gradients: list[Tensor], limit: float) -> None:
    """Scales gradients, in their memory, so that their norm is at most the limit; 0 = no limit."""
    if limit:
        factor = (limit / torch.nn.utils.get_total_norm(gradients).clamp_min(1e-30)).clamp_max(1.0)
        torch._foreach_mul_(gradients, factor)


def precision_on(device: torch.device, precision: str) -> str:
    """What `auto` means on a device."""
    return precision if precision != "auto" else ("bf16" if device.type == "cuda" else "float32")


@contextlib.contextmanager
def libraries(precision: str) -> Iterator[None]:
    """Lets cuDNN choose the fastest convolutions of a precision during a training."""
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, precision != "float32"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before


@dataclasses.dataclass(frozen=True)
class Group:
    """Parameters with the same weight decay."""

    parameters: Sequence[nn.Parameter]
    weight_decay: float = 0.0


@dataclasses.dataclass
class Memory:
    """Adam's state of a parameter: running means of its gradient and its square."""

    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor  # (): how many updates there were

    @classmethod
    def fresh(cls, parameter: nn.Parameter) -> "Memory":
        """The state before the first update, with the parameter's memory layout."""
        return cls(
            torch.zeros_like(parameter, requires_grad=False),
            torch.zeros_like(parameter, requires_grad=False),
            torch.zeros((), device=parameter.device, dtype=torch.float32),
        )


@final
class Adam:
    """Updates parameters by their gradients: on a GPU one kernel for each group, which a CUDA graph can capture."""

    def __init__(self, groups: Sequence[Group]):
        self.groups = [group for group in groups if group.parameters]
        self.rates = [rate_on(group.parameters[0].device) for group in self.groups]
        self.memory = {parameter: Memory.fresh(parameter) for parameter in self.parameters}

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters, in order."""
        return [parameter for group in self.groups for parameter in group.parameters]

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next steps."""
        for tensor in self.rates:
            tensor.fill_(rate)

    def forget_gradients(self) -> None:
        """Removes the gradients of the last step."""
        for parameter in self.parameters:
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """The gradients of the parameters that have one."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    @torch.no_grad()
    def step(self) -> None:
        """One update of all parameters that have a gradient."""
        for group, rate in zip(self.groups, self.rates, strict=True):
            parameters = [parameter for parameter in group.parameters if parameter.grad is not None]
            if not parameters:
                continue
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            memories = [self.memory[parameter] for parameter in parameters]
            for parameter, gradient, memory in zip(parameters, gradients, memories, strict=True):
                alike = layout(parameter) == layout(gradient) == layout(memory.exp_avg) == layout(memory.exp_avg_sq)
                assert alike, (
                    "a parameter, its gradient and its state have different memory layouts: the kernel would mix them up"
                )
            steps = [memory.step for memory in memories]
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                list[Tensor](parameters),
                gradients,
                [memory.exp_avg for memory in memories],
                [memory.exp_avg_sq for memory in memories],
                [],
                steps,
                lr=rate,
                beta1=BETAS[0],
                beta2=BETAS[1],
                weight_decay=group.weight_decay,
                eps=EPSILON,
                amsgrad=False,
                maximize=False,
            )


def layout(tensor: Tensor) -> list[tuple[int, int]]:
    """The memory layout: size and stride of the axes longer than 1."""
    return [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def rate_on(device: torch.device) -> Tensor:
    """A tensor for a learning rate, (), in the type that the kernel of the device reads."""
    return torch.zeros((), device=device, dtype=torch.float64 if device.type == "cpu" else torch.float32)
