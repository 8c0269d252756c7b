"""The common code of DGD, BDGD and BDGD+: training into a run folder, and the trained cascade as a method.

The three methods differ only in their block (`bayescade.blocks`), and therefore in the uncertainties that they give.
"""

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor

from bayescade.blocks.block import Block
from bayescade.blocks.convolution import channels_last
from bayescade.blocks.settings import BlockSettings
from bayescade.config import load_settings, settings_from
from bayescade.errors import UserError
from bayescade.inference.moments import Estimate
from bayescade.inference.monte_carlo import InferenceSettings, Sampler, passes_at_once
from bayescade.methods._cascade_settings import JointlyTrained, Settings, with_possible_runners
from bayescade.networks.cascade import Cascade
from bayescade.physics.problem import InverseProblem
from bayescade.progress import progress
from bayescade.results import Reconstruction, Reconstructor, as_data
from bayescade.storage.manifest import JointRecord, Manifest
from bayescade.storage.runs import Run
from bayescade.storage.weights import INNER, Tensors
from bayescade.training.distributed import ALONE, ProcessGroup
from bayescade.training.greedy import Record, Training, train_cascade
from bayescade.training.joint import Saved, start_blocks, train_jointly
from bayescade.training.sets import TrainingData
from bayescade.training.stage import Stage, first_stage, next_stage

JITTER = 1e-6  # added to the variance of activations, as in the authors' code; makes the epistemic map nearly constant
# (settings, generator, number of input planes of the problem) -> block
Build = Callable[[BlockSettings, torch.Generator, int], Block]


def train(
    build: Build,
    data: TrainingData,
    settings: Settings,
    run: Run,
    *,
    seed: int,
    report: Callable[[Record], None],
    processes: ProcessGroup = ALONE,
) -> None:
    """Trains a cascade and saves its blocks to the run folder; blocks that are already saved are not trained again."""
    together = isinstance(settings, JointlyTrained) and settings.joint.epochs > 0
    if together and processes.size > 1:
        raise UserError("setting joint.epochs: joint training runs in one process; start it without torchrun")
    if not together and not settings.fit.epochs:
        raise UserError("setting fit.epochs: expected at least 1, or joint training (joint.epochs), got 0")
    settings, problem = with_possible_runners(settings), data.problem
    saved = [load_block(build, settings, problem, tensors).to(problem.device) for tensors in run.blocks()]
    for block in saved:
        channels_last(block)
    training = Training(
        lambda generator: new_block(build, settings, problem, generator),
        settings.greedy,
        settings.fit,
        seed,
        report,
        save=lambda index, block, record: run.save_block(index, block.state_dict(), record),
        end=run.end,
        processes=processes,
        initial=[{key: value.float() for key, value in tensors.items()} for tensors in data.initial],
    )
    memory, batch = settings.block.memory_channels, settings.fit.batch
    stage = first_stage(data.training_sets, batch, memory)
    validation = first_stage(data.validation_sets, batch, memory)
    blocks = saved
    if run.manifest.joint is None and together and (data.initial or not settings.fit.epochs):
        blocks = start_blocks(training, (stage, validation), saved)
        set_start_psnr(run, run.manifest.blocks[-1].validation_psnr)
    elif run.manifest.joint is None:
        if data.initial and not saved:
            set_start_psnr(run, start_psnr(build, settings, training, validation))
        slower = run.manifest.blocks[-1].slower if saved else 0
        first = with_mean_weights(training) if together else training
        blocks = train_cascade(first, stage, validation, saved, slower=slower)
    if together and blocks:
        assert isinstance(settings, JointlyTrained)
        train_together(blocks, (stage, validation), settings, training, run)


def with_mean_weights(training: Training) -> Training:
    """The greedy training without standard deviations: joint training sets them at its end."""
    return dataclasses.replace(
        training, settings=dataclasses.replace(training.settings, refit="none", sampling="mean", resample=0)
    )


def train_together(
    blocks: list[Block],
    stages: tuple[Stage, Stage],  # training and validation, before the first block
    settings: JointlyTrained,
    training: Training,
    run: Run,
) -> None:
    """Trains all blocks together, from the last saved round on."""
    joint = run.manifest.joint
    if joint is not None and joint.done:
        return

    def save(blocks: list[Block], records: list[Record] | None, saved: Saved) -> None:
        record = JointRecord(saved.rounds, saved.seconds, done=records is not None)
        run.save_together([block.state_dict() for block in blocks], record, dict(saved.optimiser), records)

    saved = Saved(joint.rounds, joint.seconds, run.optimiser()) if joint is not None else Saved()
    train_jointly(blocks, stages, settings.joint, training, saved, save)


def set_start_psnr(run: Run, psnr: float) -> None:
    """Records the mean PSNR of the validation images by the model from which the training starts."""
    if run.manifest.start is not None:
        run.set_start({**run.manifest.start, "validation_psnr": psnr})


def start_psnr(build: Build, settings: Settings, training: Training, validation: Stage) -> float:
    """Mean PSNR of the validation images by the cascade from which a training starts, with mean weights."""
    problem, runner = validation.groups[0].measured[0].problem, training.runner(validation)
    for tensors in training.initial:
        block = load_block(build, settings, problem, dict(tensors), inner=True).to(problem.device)
        channels_last(block)
        validation = next_stage(block, validation, "mean", runner, batch=settings.fit.batch)
    return training.processes.value_of_first(validation.psnr(), validation.example.device)


def load(
    build: Build,
    name: str,
    problem: InverseProblem,
    manifest: Manifest,
    weights: Sequence[Tensors],
    overrides: Sequence[str],  # "inference.key=value"
) -> "TrainedCascade":
    """A trained cascade, ready to be called with data."""
    stored = manifest.settings
    kind = JointlyTrained if "joint" in stored else Settings
    parts = [field.name for field in dataclasses.fields(kind)]
    if any(part not in stored for part in parts):
        raise UserError(
            f"{name}: its manifest is damaged: expected the settings {', '.join(parts)}, got {', '.join(stored)}"
        )
    trained_settings = settings_from(kind, {part: stored[part] for part in parts})
    if not weights:
        raise UserError(f"{name}: no block is trained yet; run the same train command again")
    for text in overrides:
        if not text.startswith("inference."):
            known = [f"inference.{field.name}" for field in dataclasses.fields(InferenceSettings)]
            known += ["blocks"] if manifest.joint is not None else []
            known += ["symmetries"] if "scans" in stored else []
            raise UserError(
                f"--set {text}: settings of the training cannot change after the training; you can set: {', '.join(known)}"
            )
    settings = with_possible_runners(load_settings(kind, overrides=overrides, base=trained_settings))
    inner = [load_block(build, trained_settings, problem, tensors, inner=True) for tensors in weights[:-1]]
    cascade = Cascade([*inner, load_block(build, trained_settings, problem, weights[-1])])
    warning = None
    if manifest.status != "done":
        warning = f"the training of {name} is not finished: {progress_of(manifest, trained_settings)}"
    return TrainedCascade(name, cascade, problem, settings, manifest.geometry, warning)


def progress_of(manifest: Manifest, settings: Settings) -> str:
    """How far a training is, in words."""
    if manifest.joint is not None:
        joint = manifest.settings["joint"]
        return f"{manifest.joint.rounds} of {min(joint['rounds'], joint['epochs'])} rounds of joint training are done"
    return f"{len(manifest.blocks)} of {settings.greedy.blocks} blocks are trained"


def new_block(build: Build, settings: Settings, problem: InverseProblem, generator: torch.Generator) -> Block:
    """A block with new weights; for the loss of the authors' code also with the jitter of that code."""
    block = build(settings.block, generator, problem.input_planes)
    if problem.levelled:
        block.use_levels()
    for layer in block.layers if settings.greedy.loss == "elbo-as-released" else ():
        layer.jitter = JITTER
    return block


def load_block(
    build: Build, settings: Settings, problem: InverseProblem, tensors: Tensors, inner: bool = False
) -> Block:
    """A block with stored weights. A block that is not the last (`inner`) may be stored without its variance."""
    block = new_block(build, settings, problem, torch.Generator())
    initial_variance = {key: value for key, value in block.state_dict().items() if inner and key.startswith(INNER)}
    try:
        block.load_state_dict({**initial_variance, **{key: value.float() for key, value in tensors.items()}})
    except RuntimeError as error:
        raise UserError(f"the weights do not match their settings: {' '.join(str(error).split()):.200}") from None
    return block


@final
class TrainedCascade(Reconstructor):
    """A trained cascade: gives the image, and its aleatoric and epistemic variance if the blocks have variances."""

    def __init__(
        self,
        name: str,
        cascade: Cascade,
        problem: InverseProblem,
        settings: Settings,
        geometry: str | None = None,  # JSON text
        warning: str | None = None,
    ):
        self.name = name
        self.cascade = cascade.to(problem.device).eval().requires_grad_(False)
        channels_last(self.cascade)
        self.problem = problem
        self.settings = settings
        self.geometry = geometry
        self.warning = warning
        self.data_shape = problem.operator.range_shape
        self.data_name = "sinogram" if geometry is not None else "data"
        self.sampler = Sampler(self.cascade, settings.inference)
        self.has_variance = self.cascade.block(0).variance is not None

    def for_problem(self, problem: InverseProblem) -> "TrainedCascade":
        """The same cascade for another problem."""
        other = copy.copy(self)
        other.problem, other.data_shape = problem, problem.operator.range_shape
        return other

    def with_mean_weights(self) -> "TrainedCascade":
        """The same cascade with the mean of its weights, of which one sample is all there is."""
        other = copy.copy(self)
        other.sampler = Sampler(self.cascade, dataclasses.replace(self.settings.inference, sampling="mean"))
        return other

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.cascade.parameters())

    def reconstruct(self, data: Tensor, *, samples: int, seed: int, index: int) -> Reconstruction:
        estimates: list[Estimate] = []
        label = "samples, at most" if self.settings.inference.tolerance else "samples"
        batches = list(self._batches(data))
        with progress(label, samples * len(batches)) as advance:
            for first, batch in batches:
                estimates.append(
                    self.sampler.estimate(
                        self.problem, batch, samples=samples, seed=seed, index=index + first, advance=advance
                    )
                )
        has_variance = self.has_variance
        has_errors = has_variance and all(estimate.has_errors for estimate in estimates)
        scale = self.problem.scale

        def joined(name: str, power: int = 1) -> Tensor:
            """A map of all batches, in physical units: `power` is 1 for image values and 2 for variances."""
            return torch.cat([getattr(estimate, name) for estimate in estimates]).float() * scale**power

        return Reconstruction(
            image=joined("image"),
            model=self.name,
            geometry=self.geometry,
            aleatoric=joined("aleatoric", 2) if has_variance else None,
            epistemic=joined("epistemic", 2) if has_variance else None,
            mc_standard_error=joined("epistemic_std_error") if has_errors else None,
            image_standard_error=joined("image_error") if has_errors else None,
            aleatoric_standard_error=joined("aleatoric_error", 2) if has_errors else None,
            samples=max(estimate.samples for estimate in estimates) if has_variance else 0,
            seed=seed,
            settings=json.dumps(dataclasses.asdict(self.settings)),
            warning=self.warning,
        )

    def sample_images(
        self,
        data: Any,  # as for `__call__`
        *,
        samples: int,
        seed: int,
        index: int = 0,
        aleatoric: bool = False,
    ) -> Tensor:
        """Samples of the image, (samples, batch, 1, height, width); `aleatoric` adds aleatoric noise."""
        images = [
            self.sampler.images(
                self.problem, batch, samples=samples, seed=seed, index=index + first, aleatoric=aleatoric
            )
            for first, batch in self._batches(as_data(data, self.data_shape, self.data_name))
        ]
        return torch.cat(images, 1) * self.problem.scale

    def _batches(self, data: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Splits the data into batches that fit in memory; with a tolerance, into batches of one image.

        Gives (index of the batch's first image, batch).
        """
        for first in range(0, len(data), self.images_at_once):
            yield first, data[first : first + self.images_at_once].to(self.problem.device)

    @property
    def images_at_once(self) -> int:
        """How many images a batch has."""
        if self.settings.inference.tolerance:
            return 1
        height, width = self.problem.operator.domain_shape[-2:]
        return passes_at_once(self.cascade, (height, width), self.problem.device)
