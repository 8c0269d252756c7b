"""The loop that all trainings share: an epoch is a sequence of batches, with one step for each batch."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor

from bayescade.errors import Failure
from bayescade.training.distributed import ProcessGroup

Batch = TypeVar("Batch")


def no_callback(*_: Any) -> None:
    """The default of a callback: does nothing."""


class Step(Protocol):
    """One update of the parameters, from the batch that was loaded."""

    def run(self, rate: float) -> Tensor:
        """Updates the parameters with this learning rate; gives the loss before the update."""


def run_epoch(
    epoch: int,  # counted from 0, for messages
    batches: Sequence[Batch],
    load: Callable[[Batch], Step],  # loads a batch and gives the step for it
    rates: Iterator[float],  # learning rate of each step
    processes: ProcessGroup,
) -> tuple[float, float]:
    """Runs one epoch; gives its mean loss and its last learning rate. Raises `Failure` if the loss is not finite."""
    total, rate = None, 0.0
    for batch in batches:
        rate = next(rates)
        loss = load(batch).run(rate)
        total = loss.clone() if total is None else total.add_(loss)
    assert total is not None
    mean = float(processes.mean(total)) / len(batches)
    if not math.isfinite(mean):
        raise Failure(f"epoch {epoch + 1}: the loss is {mean}")
    return mean, rate
