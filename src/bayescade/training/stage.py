"""A stage of greedy training: what the next block sees and should give. Nothing changes it; `advance` makes the next."""

import dataclasses
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.blocks.block import ActivationDraw, Block, Draw, MeanDraw, WeightDraw
from bayescade.blocks.fused import FusedBlock, last_layout
from bayescade.errors import UserError
from bayescade.kernels._triton import is_fused
from bayescade.metrics.psnr import psnr
from bayescade.networks.cascade import Data
from bayescade.storage.image_store import ImageStore, store_like

Sampling = str  # mean, activations or weights
SAMPLINGS = ("mean", "activations", "weights")
FUSED_BATCH = 128  # images at a time, on a GPU at least


@dataclasses.dataclass(frozen=True)
class Stage:
    """Images of a training set on their way."""

    data: Data
    truth: ImageStore  # (images, 1, height, width)
    image: ImageStore  # (images, 1, height, width): the input of the next block
    gradient: ImageStore  # (images, 1, height, width): of the data fidelity there

    @classmethod
    def first(cls, data: Data, truth: ImageStore, image: ImageStore, batch: int = 128) -> "Stage":
        """The stage of the first images."""
        return cls(data, truth, image, gradients(data, image, batch))

    def __len__(self) -> int:
        return len(self.truth)

    def psnr(self) -> float:
        """Mean PSNR of the images."""
        return mean_psnr((self.image[some], self.truth[some]) for some in batches(len(self), FUSED_BATCH))

    def mse(self) -> float:
        """Mean squared error of the images."""
        return mean_square(self.image, self.truth)

    def gradient_std(self) -> float:
        """Standard deviation of the gradient."""
        sums = torch.zeros(2, dtype=torch.float64)
        for some in batches(len(self), FUSED_BATCH):
            values = self.gradient[some].double()
            sums += torch.stack([values.sum(), (values**2).sum()]).cpu()
        count = len(self) * self.gradient.shape[1:].numel()
        variance = (sums[1] - sums[0] ** 2 / count) / max(count - 1, 1)
        return float(variance.clamp_min(0).sqrt())


def mean_psnr(parts: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Mean PSNR of images, in dB, at data range 1: an empty truth is passed over, a perfect image counts as 120 dB."""
    scores = []
    for image, truth in parts:
        there = truth.flatten(1).amax(1) > truth.flatten(1).amin(1)
        scores.append(psnr(image[there], truth[there], 1.0).clamp_max(120))
    found = torch.cat(scores)
    if not len(found):
        raise UserError("validation images: expected at least one that is not empty")
    return float(found.mean())


def mean_square(one: ImageStore, other: ImageStore) -> float:
    """Mean squared difference."""
    total = torch.zeros((), dtype=torch.float64)
    for some in batches(len(one), FUSED_BATCH):
        total += ((one[some] - other[some]) ** 2).double().sum().cpu()
    return float(total) / (len(one) * one.shape[1:].numel())


def gradients(data: Data, image: ImageStore, batch: int) -> ImageStore:
    """The gradient at each image, a batch at a time."""
    found = store_like(image)
    for some in batches(len(image), max(batch, FUSED_BATCH) if image.device.type == "cuda" else batch):
        found[some] = data.some(some).gradient(image[some])
    return found


def batches(count: int, batch: int) -> Iterator[slice]:
    """Runs of at most `batch` of so many images, in order."""
    return (slice(first, min(first + batch, count)) for first in range(0, count, batch))


@torch.no_grad()
def predictions(block: Block, stage: Stage, batch: int) -> Iterator[tuple[slice, Gaussian]]:
    """What the block gives for the stage with its mean weights, a batch at a time."""
    for some in batches(len(stage), batch):
        yield some, block(stage.image[some], stage.gradient[some], MeanDraw())


def images_behind(
    block: Block,
    stage: Stage,
    sampling: Sampling,  # mean; weights: one draw for all images; activations: every pixel its own (the paper)
    *,
    seed: int = 0,
    batch: int,
    kernels: str = "plain",
) -> ImageStore:
    """The images that the block gives for the stage, like its images."""
    device = stage.image.device
    generator = torch.Generator(device).manual_seed(seed)
    shape = stage.image.shape[1:]
    noise: list[Tensor] = []
    if sampling == "weights":
        noise = [torch.randn(layer.weight.shape, generator=generator, device=device) for layer in block.layers]
    if sampling != "activations" and is_fused(kernels, device):
        return fused_images(block, stage, block.last.draw(noise[0]) if noise else block.last.weight, batch)
    found = store_like(stage.image)
    with torch.no_grad():
        for some in batches(len(stage), batch):
            image = stage.image[some]
            draw: Draw = WeightDraw(noise, shared=True) if noise else MeanDraw()
            if sampling == "activations" and block.layers:
                size = (len(image), *shape)
                draw = ActivationDraw([torch.randn(size, generator=generator, device=device) for _ in block.layers])
            found[some] = block.image(image, stage.gradient[some], draw)
    return found


@torch.no_grad()
def fused_images(
    block: Block,
    stage: Stage,
    weights: Tensor,  # (1, channels, 3, 3): of the last layer, for all images
    batch: int,
) -> ImageStore:
    """The same by the fused kernels, with features in half precision on a GPU."""
    fast = FusedBlock(block, torch.float16 if stage.image.device.type == "cuda" else stage.image.dtype)
    found = store_like(stage.image)
    laid_out = last_layout(weights)
    for some in batches(len(stage), max(batch, FUSED_BATCH)):
        image = stage.image[some]
        found[some] = fast.image(image, fast.features(image, stage.gradient[some]), laid_out, shared=True)
    return found


def advance(block: Block, stage: Stage, sampling: Sampling, *, seed: int, batch: int, kernels: str = "plain") -> Stage:
    """The stage behind a block: its images carry the noise of the block's weights, not the aleatoric noise."""
    image = images_behind(block, stage, sampling, seed=seed, batch=batch, kernels=kernels)
    return Stage(stage.data, stage.truth, image, gradients(stage.data, image, batch))
