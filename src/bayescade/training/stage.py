"""A stage of greedy training: inputs and truths of the next block. A stage is immutable; `next_stage` makes the next one.

A stage may have images of several problems. Images of one shape form a group, whatever their problems; all images of a batch
belong to one group.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.blocks.block import Block, State
from bayescade.blocks.sampling import ActivationNoise, MeanWeights, SampledWeights, Sampling
from bayescade.errors import UserError
from bayescade.metrics.psnr import psnr
from bayescade.networks.cascade import first_state, step
from bayescade.physics.problem import InverseProblem
from bayescade.storage.image_store import ImageStore, store_like
from bayescade.training.runner import TrainingRunner

SAMPLINGS = ("mean", "activations", "weights")
PASS_BATCH = 128  # batch size of passes without gradients; on a GPU a minimum


@dataclasses.dataclass(frozen=True)
class Measured:
    """Data of one problem."""

    problem: InverseProblem
    data: ImageStore  # (images, *range_shape)


@dataclasses.dataclass(frozen=True)
class ImageGroup:
    """Images of one shape, ordered by problem."""

    measured: tuple[Measured, ...]
    truth: ImageStore  # (images, 1, height, width), in units of the problem's scale
    state: ImageStore  # (images, 1 + m, height, width): image and memory before the next block
    inputs: ImageStore  # (images, n, height, width): planes of the problem at these images

    def __len__(self) -> int:
        return len(self.truth)

    def measured_batches(self, batch: int) -> Iterator[tuple[InverseProblem, Tensor, slice]]:
        """Problem, data and images of batches of one problem each."""
        first = 0
        for measured in self.measured:
            for part in batches(len(measured.data), batch):
                yield measured.problem, measured.data[part], slice(first + part.start, first + part.stop)
            first += len(measured.data)

    def with_state(self, state: ImageStore, batch: int) -> "ImageGroup":
        """The group with other states, and the block inputs at these states."""
        inputs = store_like(self.truth, self.measured[0].problem.input_planes)
        batch = max(batch, PASS_BATCH) if state.device.type == "cuda" else batch
        for problem, y, part in self.measured_batches(batch):
            inputs[part] = problem.inputs(state[part][:, :1], y)
        return dataclasses.replace(self, state=state, inputs=inputs)


@dataclasses.dataclass(frozen=True)
class Stage:
    """Images of a training set before the next block."""

    groups: tuple[ImageGroup, ...]

    def __len__(self) -> int:
        return sum(len(group) for group in self.groups)

    @property
    def example(self) -> Tensor:
        """One image, for device and type."""
        return self.groups[0].state[:1]

    def slices(self, batch: int) -> Iterator[tuple[ImageGroup, slice]]:
        """All images, batch after batch."""
        for group in self.groups:
            for part in batches(len(group), batch):
                yield group, part

    def shuffled_batches(self, batch: int, generator: torch.Generator) -> list[tuple[int, Tensor]]:
        """Batches in a new order: the number of the group, and indices of images; an incomplete batch is left out."""
        parts: list[tuple[int, Tensor]] = []
        for number, group in enumerate(self.groups):
            order = torch.randperm(len(group), generator=generator)
            order = order.to(group.state.device)  # one copy: a copy per batch is slow
            size = min(batch, len(group))
            parts += [(number, order[first : first + size]) for first in range(0, len(group) - size + 1, size)]
        if len(self.groups) > 1:
            parts = [parts[number] for number in torch.randperm(len(parts), generator=generator).tolist()]
        return parts

    def with_states(self, states: Sequence[ImageStore]) -> "Stage":
        """The same images with other states, one store per group; for scores: the inputs stay those of this stage."""
        groups = zip(self.groups, states, strict=True)
        return Stage(tuple(dataclasses.replace(group, state=state) for group, state in groups))

    def pixels(self) -> int:
        """How many pixels all images have."""
        return sum(len(group) * group.truth.shape[1:].numel() for group in self.groups)

    def psnr(self) -> float:
        """Mean PSNR of the images."""
        return mean_psnr((group.state[part][:, :1], group.truth[part]) for group, part in self.slices(PASS_BATCH))

    def mse(self) -> float:
        """Mean squared error of the images."""
        pairs = ((group.state[part][:, :1], group.truth[part]) for group, part in self.slices(PASS_BATCH))
        total = sum(float(((image - truth) ** 2).double().sum()) for image, truth in pairs)
        return total / self.pixels()

    def input_std(self) -> list[float]:
        """Standard deviation of each of the planes that a block sees of the problem."""
        planes = self.groups[0].inputs.shape[1]
        sums = torch.zeros((2, planes), dtype=torch.float64)
        for group, part in self.slices(PASS_BATCH):
            values = group.inputs[part].double()
            sums += torch.stack([values.sum((0, 2, 3)), (values**2).sum((0, 2, 3))]).cpu()
        count = self.pixels()
        variance = (sums[1] - sums[0] ** 2 / count) / max(count - 1, 1)
        return variance.clamp_min(0).sqrt().tolist()


def first_stage(
    sets: Sequence[tuple[InverseProblem, ImageStore, ImageStore]],  # problem, data, truths in the user's units
    batch: int,
    memory_channels: int = 0,
) -> Stage:
    """The stage before the first block; sets of one image shape become one group."""
    shapes = list(dict.fromkeys(tuple(truth.shape[2:]) for _, _, truth in sets))
    return Stage(
        tuple(
            _first_group([one for one in sets if tuple(one[2].shape[2:]) == shape], batch, memory_channels)
            for shape in shapes
        )
    )


def _first_group(
    sets: Sequence[tuple[InverseProblem, ImageStore, ImageStore]], batch: int, memory_channels: int
) -> ImageGroup:
    problem, _, truth = sets[0]
    measured = tuple(Measured(problem, data) for problem, data, _ in sets)
    if len(sets) > 1 or problem.scale != 1:
        truth = _joined([(problem.scale, truth) for problem, _, truth in sets], batch)
    state = store_like(truth, 1 + memory_channels)
    group = ImageGroup(measured, truth, state, inputs=state)  # `with_state` sets the inputs
    for problem, y, part in group.measured_batches(batch):
        state[part] = first_state(problem.initial(y), memory_channels).stacked()
    return group.with_state(state, batch)


def _joined(truths: Sequence[tuple[float, ImageStore]], batch: int) -> ImageStore:
    """Truths of several problems as one store, each in units of its problem's scale."""
    total = sum(len(truth) for _, truth in truths)
    store = store_like(truths[0][1], images=total)
    first = 0
    for scale, truth in truths:
        for part in batches(len(truth), batch):
            store[slice(first + part.start, first + part.stop)] = truth[part] / scale
        first += len(truth)
    return store


def mean_psnr(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Mean PSNR of images, in dB, at data range 1: constant truths are left out, a perfect image counts as 120 dB."""
    scores = []
    for image, truth in pairs:
        varied = truth.flatten(1).amax(1) > truth.flatten(1).amin(1)
        scores.append(psnr(image[varied], truth[varied], 1.0).clamp_max(120))
    values = torch.cat(scores)
    if not len(values):
        raise UserError("validation images: expected at least one that is not constant")
    return float(values.mean())


def batches(count: int, batch: int) -> Iterator[slice]:
    """Slices of at most `batch` images, in order, that cover `count` images."""
    return (slice(first, min(first + batch, count)) for first in range(0, count, batch))


@torch.no_grad()
def predictions(block: Block, stage: Stage, batch: int) -> Iterator[tuple[Tensor, Gaussian]]:
    """Truths, and the block's predictions with mean weights, batch by batch."""
    for group, part in stage.slices(batch):
        yield group.truth[part], block(State.unstacked(group.state[part]), group.inputs[part], MeanWeights())


@torch.no_grad()
def next_states(
    block: Block,
    stage: Stage,
    sampling: str,  # mean; weights: one sample for all images; activations: independent noise in every pixel (the paper)
    runner: TrainingRunner,
    *,
    seed: int = 0,
    batch: int,
) -> list[ImageStore]:
    """The states after the block, one store per group; images have the noise of the weights, not the aleatoric noise."""
    block_runner = runner.block_runner(block, sampling)
    device = stage.example.device
    generator = torch.Generator(device).manual_seed(seed)
    chosen: Sampling = MeanWeights()
    if sampling == "weights" and block.layers:
        noise = {layer: torch.randn(layer.weight.shape, generator=generator, device=device) for layer in block.layers}
        chosen = SampledWeights(block_runner.sample_weights(noise))
    stores = []
    for group in stage.groups:
        stores.append(store_like(group.state))
        for part in batches(
            len(group), max(batch, PASS_BATCH) if runner.fused and sampling != "activations" else batch
        ):
            state = State.unstacked(group.state[part])
            if sampling == "activations" and block.layers:
                shape = state.image.shape
                chosen = ActivationNoise(
                    {layer: torch.randn(shape, generator=generator, device=device) for layer in block.layers}
                )
            features = block_runner.features(state, group.inputs[part])
            stores[-1][part] = step(block_runner, state, features, chosen).stacked()
    return stores


def next_stage(
    block: Block, stage: Stage, sampling: str, runner: TrainingRunner, *, seed: int = 0, batch: int
) -> Stage:
    """The stage after a block."""
    states = next_states(block, stage, sampling, runner, seed=seed, batch=batch)
    return Stage(tuple(group.with_state(state, batch) for group, state in zip(stage.groups, states, strict=True)))
