"""Several processes, on one machine or many, train one cascade: each works on its part of every batch.

Every process has the whole training set, the same order of images and the same noise. So a step equals that of one process with
the whole batch, up to the order of sums. Decisions by a score are made by the first process.
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

TIMEOUT = datetime.timedelta(minutes=10)  # of waiting for the slowest process


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes that train together; by default a single one."""

    rank: int = 0
    size: int = 1

    def part(self, batch: int) -> slice:
        """This process's part of a batch."""
        if batch % self.size:
            raise UserError(f"setting fit.batch: expected a multiple of the {self.size} processes, got {batch}")
        count = batch // self.size
        return slice(self.rank * count, (self.rank + 1) * count)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the processes, the same in all of them."""
        if self.size > 1:
            dist.all_reduce(value)
            value /= self.size
        return value

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its mean over the processes."""
        if self.size == 1:
            return
        means = self.mean(torch.cat([tensor.flatten() for tensor in tensors]))
        for tensor, part in zip(tensors, means.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.reshape(tensor.shape))

    def agree(self, value: float, device: torch.device) -> float:
        """The number of the first process, the same in all of them."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=device)
        dist.broadcast(shared, 0)
        return float(shared)

    def wait(self) -> None:
        """Waits until all processes call it."""
        if self.size > 1:
            dist.barrier()


ALONE = ProcessGroup()


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[tuple[ProcessGroup, torch.device]]:
    """The group in which `torchrun` started this process, and the process's device; a single process without `torchrun`."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE, device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    try:
        yield ProcessGroup(dist.get_rank(), size), device
    finally:
        dist.destroy_process_group()
