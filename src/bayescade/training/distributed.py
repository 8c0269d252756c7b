"""Several processes, on one machine or many, train one cascade: each works on its part of every batch.

Every process holds the whole training set and draws the same order and the same noise, so a step is that of one process with
the whole batch, up to the order in which numbers are added. What is decided by a score is decided by the first process.
"""

import contextlib
import dataclasses
import datetime
import os
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from bayescade.errors import UserError

PATIENCE = datetime.timedelta(minutes=10)  # for the slowest of the others


@dataclasses.dataclass(frozen=True)
class Team:
    """The processes that train together; one alone by default."""

    rank: int = 0
    size: int = 1

    def part(self, batch: int) -> slice:
        """This process's part of a batch."""
        if batch % self.size:
            raise UserError(f"setting fit.batch: expected a multiple of the {self.size} processes, got {batch}")
        each = batch // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the processes, for all of them."""
        if self.size > 1:
            dist.all_reduce(value)
            value /= self.size
        return value

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its mean over the processes."""
        if self.size == 1:
            return
        together = self.mean(torch.cat([tensor.flatten() for tensor in tensors]))
        for tensor, part in zip(tensors, together.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.reshape(tensor.shape))

    def agree(self, value: float, device: torch.device) -> float:
        """The first process's number, for all of them."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=device)
        dist.broadcast(shared, 0)
        return float(shared)

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


ALONE = Team()


@contextlib.contextmanager
def assembled(device: torch.device) -> Iterator[tuple[Team, torch.device]]:
    """The team that `torchrun` started this process in, and this process's device; alone where there was no `torchrun`."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE, device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Team(dist.get_rank(), size), device
    finally:
        dist.destroy_process_group()
