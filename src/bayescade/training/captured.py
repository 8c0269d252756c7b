"""A training step that is captured once and replayed as one CUDA graph."""

from collections.abc import Callable
from typing import final

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
    ):
        self.compute = compute
        self.stream = torch.cuda.Stream(device) if allowed and device.type == "cuda" else None
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
            with no_garbage_collection(), torch.cuda.graph(self.graph, stream=self.stream):
                self.value = self.compute()
        self.graph.replay()
        return self.value
