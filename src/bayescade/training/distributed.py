"""Several processes, on one machine or many, train one model: each process computes one part of every batch.

Every process has the whole training set, the same order of images and the same noise. So a step gives the same result
as a step of one process with the whole batch, up to the order of sums. Where a decision depends on a score, all
processes use the score of the first process.
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

TIMEOUT = datetime.timedelta(minutes=10)  # longest time to wait for the slowest process


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes that train together; by default a single process."""

    rank: int = 0  # index of this process
    size: int = 1  # number of processes

    def part(self, batch: int) -> slice:
        """The slice of a batch that this process computes; `batch` is the number of images of the batch."""
        if batch % self.size:
            raise UserError(f"setting fit.batch: expected a multiple of the {self.size} processes, got {batch}")
        count = batch // self.size
        return slice(self.rank * count, (self.rank + 1) * count)

    def mean(self, value: Tensor) -> Tensor:
        """The mean of `value` over all processes, which all processes receive; `value` is overwritten."""
        if self.size > 1:
            dist.all_reduce(value)
            value /= self.size
        return value

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its mean over the processes."""
        if self.size == 1:
            return
        means = self.mean(torch.cat([tensor.flatten() for tensor in tensors]))
        for tensor, mean in zip(tensors, means.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(mean.reshape(tensor.shape))

    def value_of_first(self, value: float, device: torch.device) -> float:
        """The value of the first process, which all processes receive."""
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
    """The group in which `torchrun` started this process, and the device of this process.

    Without `torchrun`: a group of one process, and the given device.
    """
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
