"""A stage of greedy training: what the next block sees and should give. Nothing changes it; `advance` makes the next."""

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.blocks._block import ActivationDraw, Block, Draw, MeanDraw, WeightDraw
from bayescade.blocks._fused import FusedBlock
from bayescade.errors import UserError
from bayescade.kernels._triton import is_fused
from bayescade.metrics.psnr import psnr
from bayescade.networks.cascade import Data

Sampling = str  # mean, activations or weights
SAMPLINGS = ("mean", "activations", "weights")
FUSED_BATCH = 128  # images at a time, on a GPU at least


@dataclasses.dataclass(frozen=True)
class Stage:
    """Images of a training set on their way."""

    data: Data
    truth: Tensor  # (images, 1, height, width)
    image: Tensor  # (images, 1, height, width): the input of the next block
    gradient: Tensor  # (images, 1, height, width): of the data fidelity there

    @classmethod
    def first(cls, data: Data, truth: Tensor, image: Tensor, batch: int = 128) -> "Stage":
        """The stage of the first images."""
        return cls(data, truth, image, gradients(data, image, batch))

    def __len__(self) -> int:
        return len(self.truth)

    def psnr(self) -> float:
        """Mean PSNR of the images that are not empty, in dB, at data range 1; one that is perfect counts as 120 dB."""
        there = self.truth.flatten(1).amax(1) > self.truth.flatten(1).amin(1)
        if not bool(there.any()):
            raise UserError("validation images: expected at least one that is not empty")
        return float(psnr(self.image[there], self.truth[there], 1.0).clamp_max(120).mean())

    def mse(self) -> float:
        """Mean squared error of the images."""
        return float(((self.image - self.truth) ** 2).mean())


def gradients(data: Data, image: Tensor, batch: int) -> Tensor:
    """The gradient at each image, a batch at a time."""
    parts = []
    for some in batches(len(image), max(batch, FUSED_BATCH) if image.is_cuda else batch):
        parts.append(Data(data.operator, data.norm, data.sinogram[some]).gradient(image[some]))
    return torch.cat(parts)


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
) -> Tensor:
    """The images that the block gives for the stage, like its images."""
    device = stage.image.device
    generator = torch.Generator(device).manual_seed(seed)
    shape = stage.image.shape[1:]
    noise: list[Tensor] = []
    if sampling == "weights":
        noise = [torch.randn(layer.weight.shape, generator=generator, device=device) for layer in block.layers]
    if sampling != "activations" and is_fused(kernels, device):
        return fused_images(block, stage, block.last.draw(noise[0]) if noise else block.last.weight, batch)
    found = torch.empty_like(stage.image)
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
) -> Tensor:
    """The same by the fused kernels, with features in half precision on a GPU."""
    fast = FusedBlock(block, torch.float16 if stage.image.is_cuda else stage.image.dtype)
    found = torch.empty_like(stage.image)
    for some in batches(len(stage), max(batch, FUSED_BATCH)):
        image = stage.image[some]
        found[some] = fast.image(image, fast.features(image, stage.gradient[some]), weights, shared=True)
    return found


def advance(block: Block, stage: Stage, sampling: Sampling, *, seed: int, batch: int, kernels: str = "plain") -> Stage:
    """The stage behind a block: its images carry the noise of the block's weights, not the aleatoric noise."""
    image = images_behind(block, stage, sampling, seed=seed, batch=batch, kernels=kernels)
    return Stage(stage.data, stage.truth, image, gradients(stage.data, image, batch))
