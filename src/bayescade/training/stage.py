"""A stage of greedy training: inputs and truths for the next block. It is immutable; `next_stage` makes a new stage.

A stage may have images of several problems. Images of equal shape form a group, even if their problems differ; all
images of a batch belong to one group.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.blocks.block import Block, State, level_of
from bayescade.blocks.sampling import ActivationNoise, MeanWeights, SampledWeights, Sampling
from bayescade.errors import UserError
from bayescade.metrics.psnr import psnr
from bayescade.networks.cascade import first_state, step
from bayescade.physics.problem import InverseProblem
from bayescade.storage.image_store import ImageStore, store_like
from bayescade.training.runner import TrainingRunner

SAMPLINGS = ("mean", "activations", "weights")
PASS_BATCH = 128  # batch size of scores; on a GPU, smallest batch size of other passes without gradients
PASS_PIXELS = 128 * 128**2  # most pixels of a batch of such passes: with larger images the batch is smaller


@dataclasses.dataclass(frozen=True)
class Measured:
    """The data of one problem."""

    problem: InverseProblem
    data: ImageStore  # (images, *range_shape)


@dataclasses.dataclass(frozen=True)
class ImageGroup:
    """Images of one shape, ordered by problem."""

    measured: tuple[Measured, ...]
    truth: ImageStore  # (images, 1, height, width), divided by the scale of their problem
    state: ImageStore  # (images, 1 + m, height, width): image and memory before the next block
    inputs: ImageStore  # (images, n, height, width): `InverseProblem.inputs` at these images

    def __len__(self) -> int:
        return len(self.truth)

    def measured_batches(self, batch: int) -> Iterator[tuple[InverseProblem, Tensor, slice]]:
        """Batches of one problem each: the problem, its data, and the slice of the group's images."""
        offset = 0  # index in the group of the first image of the problem
        for measured in self.measured:
            scans = measured.problem.scans  # a batch has all scans of an operator with one scan per image
            for data_slice in batches(len(measured.data), max(1, self.pass_batch(batch) // scans) * scans):
                image_slice = slice(offset + data_slice.start, offset + data_slice.stop)
                yield measured.problem, measured.data[data_slice], image_slice
            offset += len(measured.data)

    def pass_batch(self, batch: int) -> int:
        """The batch size of a pass without gradients: `batch`, or less for large images."""
        return max(1, min(batch, PASS_PIXELS // math.prod(self.truth.shape[-2:])))

    def with_state(self, state: ImageStore, batch: int) -> "ImageGroup":
        """The group with these states, and with the block inputs computed at these states."""
        inputs = store_like(self.truth, self.measured[0].problem.input_planes)
        batch = max(batch, PASS_BATCH) if state.device.type == "cuda" else batch
        for problem, y, image_slice in self.measured_batches(batch):
            inputs[image_slice] = problem.inputs(state[image_slice][:, :1], y)
        return dataclasses.replace(self, state=state, inputs=inputs)


@dataclasses.dataclass(frozen=True)
class Stage:
    """The training or validation images before the next block."""

    groups: tuple[ImageGroup, ...]

    def __len__(self) -> int:
        return sum(len(group) for group in self.groups)

    def every(self, step: int) -> "Stage":
        """The images of every `step`-th problem, over the list of all problems."""
        groups, number = [], 0
        for group in self.groups:
            measured, kept, offset = [], [], 0
            for item in group.measured:
                if number % step == 0:
                    measured.append(item)
                    kept.append(slice(offset, offset + len(item.data)))
                offset += len(item.data)
                number += 1
            if measured:
                stores = [
                    torch.cat([store[part] for part in kept]) for store in (group.truth, group.state, group.inputs)
                ]
                groups.append(ImageGroup(tuple(measured), *stores))
        return Stage(tuple(groups))

    @property
    def example(self) -> Tensor:
        """One image with its memory, from which device and type can be read."""
        return self.groups[0].state[:1]

    def slices(self, batch: int) -> Iterator[tuple[ImageGroup, slice]]:
        """All images, batch after batch: the group, and the slice of its images."""
        for group in self.groups:
            for image_slice in batches(len(group), group.pass_batch(batch)):
                yield group, image_slice

    def shuffled_batches(self, batch: int, generator: torch.Generator) -> list[tuple[int, Tensor]]:
        """Batches in random order: the index of the group, and the indices of images in the group.

        An incomplete batch is left out.
        """
        shuffled: list[tuple[int, Tensor]] = []
        for group_index, group in enumerate(self.groups):
            order = torch.randperm(len(group), generator=generator)
            order = order.to(group.state.device)  # one copy for all batches: a copy per batch is slow
            count = min(batch, len(group))
            firsts = range(0, len(group) - count + 1, count)
            shuffled += [(group_index, order[first : first + count]) for first in firsts]
        if len(self.groups) > 1:
            shuffled = [shuffled[index] for index in torch.randperm(len(shuffled), generator=generator).tolist()]
        return shuffled

    def with_states(self, states: Sequence[ImageStore]) -> "Stage":
        """This stage with other states, one store per group. Only for scores: block inputs are not computed again."""
        groups = zip(self.groups, states, strict=True)
        return Stage(tuple(dataclasses.replace(group, state=state) for group, state in groups))

    def pixels(self) -> int:
        """The number of pixels of all images together."""
        return sum(len(group) * group.truth.shape[1:].numel() for group in self.groups)

    def psnr(self) -> float:
        """Mean PSNR of the images, times their levels if the problem has levels."""
        return mean_psnr(self._levelled_pairs())

    def mse(self) -> float:
        """Mean squared error of the images."""
        total = sum(float(((image - truth) ** 2).double().sum()) for image, truth in self._pairs())
        return total / self.pixels()

    def input_std(self) -> list[float]:
        """Standard deviation of each plane of the block inputs, over all images."""
        planes = self.groups[0].inputs.shape[1]
        sums = torch.zeros((2, planes), dtype=torch.float64)
        for group, image_slice in self.slices(PASS_BATCH):
            values = group.inputs[image_slice].double()
            sums += torch.stack([values.sum((0, 2, 3)), (values**2).sum((0, 2, 3))]).cpu()
        count = self.pixels()
        variance = (sums[1] - sums[0] ** 2 / count) / max(count - 1, 1)
        return variance.clamp_min(0).sqrt().tolist()

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and truths, batch after batch."""
        for group, image_slice in self.slices(PASS_BATCH):
            yield group.state[image_slice][:, :1], group.truth[image_slice]

    def _levelled_pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and truths, batch after batch, each times its level."""
        for group, image_slice in self.slices(PASS_BATCH):
            image, truth = group.state[image_slice][:, :1], group.truth[image_slice]
            if group.measured[0].problem.levelled:
                level = level_of(group.inputs[image_slice])
                image, truth = image * level, truth * level
            yield image, truth


def first_stage(
    sets: Sequence[tuple[InverseProblem, ImageStore, ImageStore]],  # problem, data, truths in the user's units
    batch: int,
    memory_channels: int = 0,
) -> Stage:
    """The stage before the first block; sets with images of equal shape become one group."""
    shapes = list(dict.fromkeys(tuple(truth.shape[2:]) for _, _, truth in sets))
    return Stage(
        tuple(
            _first_group([item for item in sets if tuple(item[2].shape[2:]) == shape], batch, memory_channels)
            for shape in shapes
        )
    )


def _first_group(
    sets: Sequence[tuple[InverseProblem, ImageStore, ImageStore]], batch: int, memory_channels: int
) -> ImageGroup:
    problem, _, truth = sets[0]
    measured = tuple(Measured(problem, data) for problem, data, _ in sets)
    if len(sets) > 1 or problem.scale != 1:
        truth = _join_truths([(problem.scale, truth) for problem, _, truth in sets], batch)
    state = store_like(truth, 1 + memory_channels)
    group = ImageGroup(measured, truth, state, inputs=state)  # `with_state` below sets the inputs
    for problem, y, image_slice in group.measured_batches(batch):
        state[image_slice] = first_state(problem.initial(y), memory_channels).stacked()
    return group.with_state(state, batch)


def _join_truths(
    truths: Sequence[tuple[float, ImageStore]],  # of each problem: scale and truths
    batch: int,
) -> ImageStore:
    """The truths of several problems in one store, divided by the scale of their problem."""
    total = sum(len(truth) for _, truth in truths)
    store = store_like(truths[0][1], images=total)
    offset = 0
    for scale, truth in truths:
        for image_slice in batches(len(truth), batch):
            store[slice(offset + image_slice.start, offset + image_slice.stop)] = truth[image_slice] / scale
        offset += len(truth)
    return store


def mean_psnr(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Mean PSNR of images, in dB, at data range 1, at most 120 dB each. Images with constant truth are left out."""
    scores = []
    for image, truth in pairs:
        not_constant = truth.flatten(1).amax(1) > truth.flatten(1).amin(1)
        scores.append(psnr(image[not_constant], truth[not_constant], 1.0).clamp_max(120))
    values = torch.cat(scores)
    if not len(values):
        raise UserError("validation images: expected at least one image that is not constant, got none")
    return float(values.mean())


def batches(count: int, batch: int) -> Iterator[slice]:
    """Slices of at most `batch` images, in order, that cover `count` images."""
    return (slice(first, min(first + batch, count)) for first in range(0, count, batch))


@torch.no_grad()
def predictions(block: Block, stage: Stage, batch: int) -> Iterator[tuple[Tensor, Gaussian]]:
    """Truths, and the block's predictions with mean weights, batch by batch."""
    for group, image_slice in stage.slices(batch):
        state = State.unstacked(group.state[image_slice])
        yield group.truth[image_slice], block(state, group.inputs[image_slice], MeanWeights())


@torch.no_grad()
def next_states(
    block: Block,
    stage: Stage,
    sampling: str,  # mean: nothing; weights: one sample for all images; activations: noise in every pixel (the paper)
    runner: TrainingRunner,
    *,
    seed: int = 0,
    batch: int,
) -> list[ImageStore]:
    """The states after the block, one store per group. Only `sampling` adds noise; aleatoric noise is not added."""
    block_runner = runner.block_runner(block, sampling)
    device = stage.example.device
    generator = torch.Generator(device).manual_seed(seed)
    block_sampling: Sampling = MeanWeights()
    if sampling == "weights" and block.layers:
        noise = {layer: torch.randn(layer.weight.shape, generator=generator, device=device) for layer in block.layers}
        block_sampling = SampledWeights(block_runner.sample_weights(noise))
    stores = []
    for group in stage.groups:
        stores.append(store_like(group.state))
        size = max(batch, PASS_BATCH) if runner.fused and sampling != "activations" else batch
        for image_slice in batches(len(group), group.pass_batch(size)):
            state = State.unstacked(group.state[image_slice])
            if sampling == "activations" and block.layers:
                shape = state.image.shape
                block_sampling = ActivationNoise(
                    {layer: torch.randn(shape, generator=generator, device=device) for layer in block.layers}
                )
            features = block_runner.features(state, group.inputs[image_slice])
            stores[-1][image_slice] = step(block_runner, state, features, block_sampling).stacked()
    return stores


def next_stage(
    block: Block, stage: Stage, sampling: str, runner: TrainingRunner, *, seed: int = 0, batch: int
) -> Stage:
    """The stage after a block."""
    states = next_states(block, stage, sampling, runner, seed=seed, batch=batch)
    return Stage(tuple(group.with_state(state, batch) for group, state in zip(stage.groups, states, strict=True)))
