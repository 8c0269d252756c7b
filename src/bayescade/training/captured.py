"""A training step that is captured once and replayed as one CUDA graph."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from bayescade.devices import no_garbage_collection

EAGER_STEPS = 3  # first steps, without a graph: in these steps libraries choose and load their kernels


@final
class Captured:
    """Runs a function without arguments.

    On a GPU the first calls run the function itself. Then it is captured as a CUDA graph, which later calls replay.
    """

    def __init__(
        self,
        compute: Callable[[], Tensor],
        device: torch.device,
        allowed: bool = True,  # whether to capture: communication between processes cannot be captured
        share: "Captured | None" = None,  # a function that never runs at the same time: both share their memory
    ):
        self.compute = compute
        self.stream: torch.cuda.Stream | None = None
        self.pool: Any = None
        if allowed and device.type == "cuda":
            self.stream = share.stream if share is not None else torch.cuda.Stream(device)
            self.pool = share.pool if share is not None else torch.cuda.graph_pool_handle()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0
        self.value = torch.zeros((), device=device)

    def __call__(self) -> Tensor:
        """The function's result, in memory that the next call may overwrite."""
        if self.stream is None:
            return self.compute()
        self.calls += 1
        if self.calls <= EAGER_STEPS:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
            with torch.cuda.stream(self.stream):
                self.value = self.compute()
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
            return self.value
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with no_garbage_collection(), torch.cuda.graph(self.graph, pool=self.pool, stream=self.stream):
                self.value = self.compute()
        self.graph.replay()
        return self.value
