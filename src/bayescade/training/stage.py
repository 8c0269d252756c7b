"""A stage of greedy training: what the next block sees and should give. Nothing changes it; `advance` makes the next."""

import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.blocks._block import ActivationDraw, Block, Draw, MeanDraw, WeightDraw
from bayescade.errors import UserError
from bayescade.metrics.psnr import psnr
from bayescade.networks.cascade import Data

Sampling = str  # mean, activations or weights
SAMPLINGS = ("mean", "activations", "weights")


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
    for some in batches(len(image), batch):
        parts.append(Data(data.operator, data.norm, data.sinogram[some]).gradient(image[some]))
    return torch.cat(parts)


def batches(count: int, batch: int) -> Iterator[slice]:
    """Runs of at most `batch` of so many images, in order."""
    return (slice(first, min(first + batch, count)) for first in range(0, count, batch))


@torch.no_grad()
def predictions(
    block: Block, stage: Stage, draw: Callable[[int], Draw], batch: int
) -> Iterator[tuple[slice, Gaussian]]:
    """What the block gives for the stage, a batch at a time; `draw` is asked with the number of images."""
    for some in batches(len(stage), batch):
        image = stage.image[some]
        yield some, block(image, stage.gradient[some], draw(len(image)))


@torch.no_grad()
def images_behind(block: Block, stage: Stage, draw: Callable[[int], Draw], batch: int) -> Tensor:
    """The images that the block gives for the stage, like its images."""
    found = torch.empty_like(stage.image)
    for some in batches(len(stage), batch):
        image = stage.image[some]
        found[some] = block.image(image, stage.gradient[some], draw(len(image)))
    return found


def advance(block: Block, stage: Stage, sampling: Sampling, *, seed: int, batch: int) -> Stage:
    """The stage behind a block: its images carry the noise of the block's weights, not the aleatoric noise.

    `weights`: one draw of the weights for all images; `activations`: every pixel its own (the paper); `mean`: no noise.
    """
    generator = torch.Generator(stage.image.device).manual_seed(seed)
    image = images_behind(block, stage, drawing(block, stage, sampling, generator), batch)
    return Stage(stage.data, stage.truth, image, gradients(stage.data, image, batch))


def drawing(block: Block, stage: Stage, sampling: Sampling, generator: torch.Generator) -> Callable[[int], Draw]:
    """How each batch is drawn."""
    device = stage.image.device
    if sampling == "mean" or not block.layers:
        return lambda count: MeanDraw()
    if sampling == "weights":
        noise = [torch.randn(layer.weight.shape, generator=generator, device=device) for layer in block.layers]
        return lambda count: WeightDraw(noise, shared=True)
    shape = stage.image.shape[1:]
    return lambda count: ActivationDraw(
        [torch.randn((count, *shape), generator=generator, device=device) for _ in block.layers]
    )
