"""The loop that all trainings share: an epoch is a sequence of batches, with one step for each."""

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
    """One update of the parameters, by a batch that is loaded."""

    def run(self, rate: float) -> Tensor:
        """Updates at that learning rate; the loss before the update."""


def run_epoch(
    epoch: int,
    batches: Sequence[Batch],
    load: Callable[[Batch], Step],  # loads a batch
    rates: Iterator[float],
    processes: ProcessGroup,
) -> tuple[float, float]:
    """The mean loss of an epoch, and its last learning rate; raises where the loss is not a number."""
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
