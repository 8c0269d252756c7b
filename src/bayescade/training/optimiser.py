"""What all trainings share: length, learning rates, precision, and Adam (Kingma and Ba, 2015).

`Adam` calls torch's Adam kernel directly: torch's optimiser imports torch's compiler, which takes as long as training a
small block.
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
MOST = 1_000_000  # largest value of a setting that is a count
BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclasses.dataclass(frozen=True)
class RateSettings:
    """Length, learning rate and precision of a training."""

    epochs: int
    batch: int
    learning_rate: float
    final_learning_rate: float = 1e-5  # at the end of the cosine decay
    warm_up: float = 0.05  # fraction of the steps, at the start, in which the learning rate rises
    weight_decay: float = 0.0
    clip: float = 0.0  # limit of the norm of the gradient; 0 means no limit
    precision: str = "auto"  # bf16 (mixed precision), tf32 or float32; auto: bf16 on a GPU, else float32

    def __post_init__(self) -> None:
        check_whole(self, "epochs")
        self.check_rates()

    def check_rates(self) -> None:
        """Raises `UserError` unless all settings but the epochs are possible."""
        check_whole(self, "batch")
        check_positive(self, "learning_rate")
        for name in ("final_learning_rate", "weight_decay", "clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"setting {name}: expected a number of at least 0, got {getattr(self, name)}")
        if not 0 <= self.warm_up < 1:
            raise UserError(f"setting warm_up: expected at least 0 and less than 1, got {self.warm_up}")
        if self.precision not in PRECISIONS:
            raise UserError(f"setting precision: expected {', '.join(PRECISIONS)}, got '{self.precision}'")


def check_whole(settings: object, *names: str, least: int = 1, most: int = MOST) -> None:
    """Raises `UserError` unless each of the named settings is from `least` to `most`."""
    for name in names:
        if not least <= getattr(settings, name) <= most:
            raise UserError(
                f"setting {name}: expected a whole number from {least} to {most}, got {getattr(settings, name)}"
            )


def check_positive(settings: RateSettings, *names: str) -> None:
    """Raises `UserError` unless each of the named settings is positive."""
    for name in names:
        if not 0 < getattr(settings, name) < 1e30:
            raise UserError(f"setting {name}: expected a positive number, got {getattr(settings, name)}")


def schedule(settings: RateSettings, steps: int) -> Iterator[float]:
    """The learning rate of every step: a linear rise, then a cosine decay to the final learning rate."""
    rate, final = settings.learning_rate, settings.final_learning_rate
    rise_steps = math.ceil(settings.warm_up * steps)
    for step in range(steps):
        fraction = (step - rise_steps) / max(steps - rise_steps, 1)
        cosine = (1 + math.cos(math.pi * max(fraction, 0.0))) / 2
        decayed = final + (rate - final) * cosine
        yield decayed * (step + 1) / rise_steps if step < rise_steps else decayed


def clip_gradients(gradients: list[Tensor], limit: float) -> Tensor | None:
    """Overwrites the gradients by scaled gradients whose total norm is at most the limit; 0 means no limit.

    Gives the norm before; None if there is no limit.
    """
    if not limit or not gradients:
        return None
    norm = torch.nn.utils.get_total_norm(gradients)
    torch._foreach_mul_(gradients, (limit / norm.clamp_min(1e-30)).clamp_max(1.0))
    return norm


def precision_on(device: torch.device, precision: str) -> str:
    """The precision to use on this device: `auto` becomes bf16 on a GPU, else float32."""
    return precision if precision != "auto" else ("bf16" if device.type == "cuda" else "float32")


@contextlib.contextmanager
def cudnn_options(precision: str) -> Iterator[None]:
    """In this context cuDNN measures which convolutions are fastest, and may use TF32 unless precision is float32."""
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
    """The state of Adam for one parameter: running means of the gradient and of the squared gradient."""

    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor  # (): number of updates so far

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
        """Sets the learning rate of the next steps."""
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
    def step(
        self,
        skip: Tensor | None = None,  # (), float32: where it is 1 nothing changes
    ) -> None:
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
                    "a parameter, its gradient and its state have different memory layouts: the kernel would combine "
                    "wrong elements"
                )
            steps = [memory.step for memory in memories]
            torch._foreach_add_(steps, 1 if skip is None else [1 - skip] * len(steps))
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
                found_inf=skip,
            )


def layout(tensor: Tensor) -> list[tuple[int, int]]:
    """The memory layout: size and stride of the axes longer than 1."""
    return [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def rate_on(device: torch.device) -> Tensor:
    """A tensor for a learning rate, (), in the type that the Adam kernel on this device reads."""
    return torch.zeros((), device=device, dtype=torch.float64 if device.type == "cpu" else torch.float32)
