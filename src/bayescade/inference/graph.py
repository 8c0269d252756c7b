"""Functions of tensors as CUDA graphs: captured once per input shape, then replayed, all kernels in one launch."""

from collections.abc import Callable
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from bayescade.devices import no_garbage_collection
from bayescade.errors import UserError

Result = TypeVar("Result")

MOST_GRAPHS = 6  # graphs stored at the same time; each graph uses GPU memory
WARM_UP = 2  # calls before the capture; in these calls kernels are compiled and libraries choose algorithms


@final
class GraphReplay:
    """Runs functions of tensors as CUDA graphs, one graph for each key and each combination of input shapes."""

    def __init__(self) -> None:
        self.graphs: dict[object, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Any]] = {}

    def __call__(self, key: object, run: Callable[..., Result], *inputs: Tensor) -> Result:
        """The result of `run(*inputs)`. The next call with the same key and shapes overwrites its memory."""
        graph_key = key, *(tensor.shape for tensor in inputs)
        if graph_key not in self.graphs:
            if len(self.graphs) >= MOST_GRAPHS:
                self.graphs.pop(next(iter(self.graphs)))
            self.graphs[graph_key] = self._capture(run, inputs)
        graph, static_inputs, result = self.graphs[graph_key]
        for tensor, value in zip(static_inputs, inputs, strict=True):
            tensor.copy_(value)
        graph.replay()
        output: Result = result
        return output

    @staticmethod
    def _capture(
        run: Callable[..., Result], inputs: tuple[Tensor, ...]
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Result]:
        static_inputs = tuple(tensor.clone() for tensor in inputs)
        stream = torch.cuda.Stream(static_inputs[0].device)
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                run(*static_inputs)
        torch.cuda.current_stream(stream.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with no_garbage_collection(), torch.cuda.graph(graph, stream=stream):
                result = run(*static_inputs)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"setting schedule: expected an operator that a CUDA graph can capture, got: {reason}; "
                "use inference.schedule=serial"
            ) from error
        return graph, static_inputs, result


@final
class NoGraph:
    """Calls functions directly, without CUDA graphs."""

    def __call__(self, key: object, run: Callable[..., Result], *inputs: Tensor) -> Result:
        """The result of `run(*inputs)`."""
        return run(*inputs)
