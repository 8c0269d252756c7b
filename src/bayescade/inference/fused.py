"""Samples by the fused kernels: all blocks for many draws without a word from the host, on a GPU as one CUDA graph.

Features are in half precision or in that of the images, as images and sums are. The first block sees the same image for all
draws: its features are computed once.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from bayescade.blocks.fused import Features, FusedBlock, last_layout
from bayescade.devices import nothing_collected
from bayescade.inference.noise import by_layer
from bayescade.networks.cascade import Cascade, Data
from bayescade.storage.image_store import in_memory

Found = TypeVar("Found")

MOST_GRAPHS = 6  # kept, each with its memory
WARM_UP = 2  # calls before a graph is captured: kernels are compiled, libraries make their plans


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Maps (samples * batch, 1, height, width), samples in front; the variances broadcast to the mean."""

    mean: Tensor
    variance: Tensor | None
    aleatoric: Tensor | None


@final
class FusedSampler:
    """A trained cascade that is sampled many times. What it returns is overwritten by its next call of the same shape."""

    def __init__(self, cascade: Cascade, half: bool):
        example = next(cascade.parameters())
        dtype = torch.float16 if half and example.is_cuda else example.dtype
        self.blocks = [FusedBlock(cascade.block(place), dtype) for place in range(len(cascade))]
        self.replay = Replay()
        # The last noise and what it made of the weights, (draws, 16, in) per layer; the last draws of it in one.
        self.drawn: tuple[Tensor, list[Tensor]] | None = None
        self.flat: tuple[slice, Tensor] | None = None
        self.start: tuple[Tensor, Tensor, Features] | None = None  # first images, sinograms, the first block's features

    @torch.no_grad()
    def sample(
        self,
        data: Data,
        first: Tensor,
        noise: Tensor,  # (draws, weights)
        some: slice,  # of the draws
        analytic: bool,
    ) -> Drawn:
        """Some of the draws for all images, the last block's weights integrated where `analytic`."""
        operator, sinograms = data.operator, in_memory(data.sinogram)

        def begin(first: Tensor, sinogram: Tensor) -> Features:
            return self.blocks[0].features(first, dataclasses.replace(data, sinogram=sinogram).gradient(first))

        if self.start is None or self.start[0] is not first or self.start[1] is not sinograms:
            self.start = first, sinograms, self.replay(("start", operator), begin, first, sinograms)
        features = self.start[2]

        def run(first: Tensor, sinogram: Tensor, drawn: Tensor, planes: Tensor, common: Tensor) -> Drawn:
            here = dataclasses.replace(data, sinogram=sinogram)
            return self._through(here, first, Features(features.frame, planes, common), drawn, analytic)

        inputs = (first, sinograms, self._draw(noise, some), features.planes, features.common)
        return self.replay((analytic, operator), run, *inputs)

    def _draw(self, noise: Tensor, some: slice) -> Tensor:
        """Some draws of all random layers, one after the other in the layout of the kernels; kept for the next call."""
        if self.drawn is None or self.drawn[0] is not noise:
            each = by_layer([fast.block for fast in self.blocks], noise)
            layers = [layer for fast in self.blocks for layer in fast.block.layers]
            normals = [normals for own in each for normals in own]
            made = [last_layout(layer.draw(drawn)) for layer, drawn in zip(layers, normals, strict=True)]
            self.drawn, self.flat = (noise, made), None
        if self.flat is None or self.flat[0] != some:
            parts = [weights[some].flatten() for weights in self.drawn[1]]
            self.flat = some, torch.cat(parts) if parts else noise[some].flatten()
        return self.flat[1]

    def _weights(self, drawn: Tensor) -> Iterator[list[Tensor]]:
        """The same for each block, (draws, 16, in) per layer."""
        assert self.drawn is not None
        made = self.drawn[1]
        draws = drawn.numel() // max(1, sum(weights[0].numel() for weights in made))
        pieces = drawn.split([draws * weights[0].numel() for weights in made])
        each = iter([piece.reshape(-1, *weights.shape[1:]) for piece, weights in zip(pieces, made, strict=True)])
        for fast in self.blocks:
            yield list(itertools.islice(each, len(fast.block.layers)))

    def _through(self, data: Data, x: Tensor, features: Features, drawn: Tensor, analytic: bool) -> Drawn:
        for place, (fast, weights) in enumerate(zip(self.blocks, self._weights(drawn), strict=True)):
            if place:
                features = fast.features(x, data.gradient(x))
            shared = place == 0 or not weights
            last = place == len(self.blocks) - 1
            if last and analytic:
                moments, aleatoric = fast.moments(x, features)
                return Drawn(moments.mean, moments.variance, aleatoric)
            aleatoric = fast.variance(features, weights[-1], shared) if last and weights else None
            x = fast.image(x, features, weights[0] if weights else last_layout(fast.block.last.weight), shared)
        return Drawn(x, None, aleatoric)


@final
class Replay:
    """Runs functions of tensors as CUDA graphs, one for each key and shapes of the tensors; on a CPU as they are."""

    def __init__(self) -> None:
        self.known: dict[object, tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Any]] = {}

    def __call__(self, key: object, run: Callable[..., Found], *inputs: Tensor) -> Found:
        """What the function gives for these inputs, in memory that the next call of these shapes overwrites."""
        if not inputs[0].is_cuda:
            return run(*inputs)
        key = key, *(tensor.shape for tensor in inputs)
        if key not in self.known:
            if len(self.known) >= MOST_GRAPHS:
                self.known.pop(next(iter(self.known)))
            self.known[key] = self._capture(run, inputs)
        graph, held, kept = self.known[key]
        for tensor, value in zip(held, inputs, strict=True):
            tensor.copy_(value)
        graph.replay()
        found: Found = kept
        return found

    @staticmethod
    def _capture(
        run: Callable[..., Found], inputs: tuple[Tensor, ...]
    ) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], Found]:
        held = tuple(tensor.clone() for tensor in inputs)
        stream = torch.cuda.Stream(held[0].device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                run(*held)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with nothing_collected(), torch.cuda.graph(graph, stream=stream):
            found = run(*held)
        return graph, held, found
