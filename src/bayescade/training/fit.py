"""How one block is trained: epochs, batches, steps. On a GPU a step is captured once and replayed as a CUDA graph."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks.block import Block, State
from bayescade.errors import UserError
from bayescade.seeds import derived_seed
from bayescade.storage.image_store import copy_images
from bayescade.training.captured import Captured
from bayescade.training.loop import run_epoch
from bayescade.training.losses import Loss
from bayescade.training.optimiser import (
    Adam,
    Group,
    RateSettings,
    check_whole,
    clip_gradients,
    cudnn_options,
    schedule,
)
from bayescade.training.runner import RUNNERS, TrainingRunner
from bayescade.training.stage import ImageGroup, Stage


@dataclasses.dataclass(frozen=True)
class FitSettings(RateSettings):
    """How one block is trained. Weight decay is applied only to the weights that are not random."""

    epochs: int = 10  # 0: blocks are trained together only, as `joint` says
    batch: int = 16
    learning_rate: float = 5e-3
    clip: float = 5.0
    runner: str = "auto"  # fused: Triton kernels; plain: torch layers; auto: fused on a GPU, else plain

    def __post_init__(self) -> None:
        check_whole(self, "epochs", least=0)
        self.check_rates()
        if self.runner not in RUNNERS:
            raise UserError(f"setting runner: expected {', '.join(RUNNERS)}, got '{self.runner}'")


OnEpoch = Callable[[int, float, float], None]  # (epoch, mean loss, learning rate)


def fit(
    block: Block,
    stages: Callable[[int], Stage],  # epoch -> the training stage for this epoch
    loss: Loss,
    settings: FitSettings,
    runner: TrainingRunner,
    *,
    seed: int,
    on_epoch: OnEpoch = lambda epoch, loss, rate: None,
) -> None:
    """Trains the block: its weights are changed.

    Every epoch has a new order of images; an incomplete batch is left out.
    """
    stage = stages(0)
    device = stage.example.device
    order_generator = torch.Generator().manual_seed(derived_seed(seed, "orders"))
    noise_generator = torch.Generator(device).manual_seed(derived_seed(seed, "noises"))
    steps_per_epoch = len(stage.shuffled_batches(settings.batch, torch.Generator()))
    rates = schedule(settings, settings.epochs * steps_per_epoch)
    optimiser = adam(block, settings)
    steps = [BlockStep(block, loss, optimiser, group, settings, runner) for group in stage.groups]

    def load(batch: tuple[int, Tensor]) -> BlockStep:
        group_index, indices = batch
        steps[group_index].load(stage.groups[group_index], indices, noise_generator)
        return steps[group_index]

    with cudnn_options(settings.precision):
        for epoch in range(settings.epochs):
            stage = stages(epoch) if epoch else stage
            batches = stage.shuffled_batches(settings.batch, order_generator)
            on_epoch(epoch, *run_epoch(epoch, batches, load, rates, runner.processes))


def adam(block: Block, settings: FitSettings) -> Adam:
    """Adam with weight decay on the weights that are not random."""
    means: list[nn.Parameter] = [layer.weight for layer in block.layers]
    log_stds = [layer.log_std for layer in block.layers if isinstance(layer, MeanFieldConv)]
    rest = [parameter for parameter in block.parameters() if parameter not in {*means, *log_stds}]

    def trainable(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        return [parameter for parameter in parameters if parameter.requires_grad]

    return Adam([Group(trainable(rest), settings.weight_decay), Group(trainable(means)), Group(trainable(log_stds))])


@final
class BlockStep:
    """One step: load a batch and its noise, then compute the loss, its gradient and the update."""

    def __init__(
        self,
        block: Block,
        loss: Loss,
        optimiser: Adam,
        images: ImageGroup,
        settings: FitSettings,
        runner: TrainingRunner,
    ):
        self.block = block
        self.loss = loss
        self.optimiser = optimiser
        self.runner = runner
        self.clip = settings.clip
        batch = min(settings.batch, len(images))
        processes = runner.processes
        self.batch_slice = processes.part(batch)
        device, image_shape = images.state.device, images.truth.shape[1:]

        def new(count: int, shape: Sequence[int]) -> Tensor:
            return torch.empty((count, *shape), dtype=dtype, device=device)

        count, dtype = batch // processes.size, images.state.dtype
        self.state, self.inputs = new(count, images.state.shape[1:]), new(count, images.inputs.shape[1:])
        self.truth = new(count, image_shape)
        self.all_noise = {layer: new(batch, image_shape) for layer in block.layers}  # the same in all processes
        self.noise = {layer: noise[self.batch_slice] for layer, noise in self.all_noise.items()}
        self.compute = Captured(self._compute, device, allowed=processes.size == 1)

    def load(self, images: ImageGroup, indices: Tensor, generator: torch.Generator) -> None:
        """Copies the images with these indices, and samples new noise; a process copies only its part of the batch."""
        indices = indices[self.batch_slice]
        copy_images(images.state, indices, self.state)
        copy_images(images.inputs, indices, self.inputs)
        copy_images(images.truth, indices, self.truth)
        for noise in self.all_noise.values():
            noise.normal_(generator=generator)

    def run(self, rate: float) -> Tensor:
        """Updates the block with this learning rate; gives the loss before the update."""
        self.optimiser.set_rate(rate)
        return self.compute()

    def _compute(self) -> Tensor:
        self.optimiser.forget_gradients()
        state = State.unstacked(self.state)
        prediction = self.runner.predict(self.block, state, self.inputs, self.noise, self.runner.step_type)
        value = self.loss(prediction, self.truth, self.block.kl())
        value.backward()
        gradients = self.optimiser.gradients()
        self.runner.processes.average(gradients)
        for part in gradient_parts(self.block):
            clip_gradients(part, self.clip)
        self.optimiser.step()
        return value.detach()


def gradient_parts(block: Block) -> list[list[Tensor]]:
    """The gradients of the variance network, and those of all other parameters: they are clipped apart.

    Together, one large error that the variance did not foresee would shrink the gradient of the image too. Adam would divide
    the next gradients by such small ones, and its large steps kill blocks.
    """
    of_variance = set(block.variance.parameters()) if block.variance is not None else set()
    parts: list[list[Tensor]] = [[], []]
    for parameter in block.parameters():
        if parameter.grad is not None:
            parts[parameter in of_variance].append(parameter.grad)
    return parts
