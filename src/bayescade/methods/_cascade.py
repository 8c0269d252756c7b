"""What DGD, BDGD and BDGD+ share: settings and presets, training into a run folder, and the trained cascade as a method.

The three differ in their block only (`bayescade.blocks`), and so in what they can say about their doubt.
"""

import dataclasses
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from bayescade import plugins
from bayescade.blocks.block import Block, BlockSettings, channels_last
from bayescade.config import load_settings, settings_from
from bayescade.devices import choose_device
from bayescade.errors import UserError
from bayescade.inference.moments import Estimate
from bayescade.inference.monte_carlo import InferenceSettings, draw_images, estimate, passes_at_once, sampler_of
from bayescade.methods import fbp
from bayescade.networks.cascade import Cascade, Data
from bayescade.physics.geometry import Geometry
from bayescade.progress import progress
from bayescade.projectors import ray_transform
from bayescade.results import Reconstruction, Reconstructor, as_sinograms
from bayescade.storage.image_store import ImageStore, store_like
from bayescade.storage.runs import INNER, Run, Tensors
from bayescade.training.distributed import ALONE, Team
from bayescade.training.fit import FitSettings
from bayescade.training.greedy import GreedySettings, Report, slower_behind, train_cascade
from bayescade.training.stage import Stage, batches


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """What is trained on."""

    images: int = 4000  # training images
    validation_images: int = 100  # of the validation split: what a block's gain is measured on
    paper_set: bool = False  # the paper's own 4000 training ellipses instead of fresh ones
    memory: float = 0.0  # GB for training images; more are kept in files and read as needed; 0 = half of what is free

    def __post_init__(self) -> None:
        if not 0 <= self.memory < 1e6:
            raise UserError(f"setting memory: expected a number of gigabytes of at least 0, got {self.memory}")
        for name in ("images", "validation_images"):
            if not 1 <= getattr(self, name) <= 10_000_000:
                raise UserError(f"setting {name}: expected a whole number of at least 1, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a cascade, in parts; `PRESETS` has them ready."""

    block: BlockSettings
    greedy: GreedySettings
    fit: FitSettings
    data: DataSettings
    inference: InferenceSettings


_RECOMMENDED = Settings(
    block=BlockSettings(variance_input="features", variance_channels=16, variance_depth=2, variance_floor=1e-9),
    greedy=GreedySettings(),
    fit=FitSettings(),
    data=DataSettings(),
    inference=InferenceSettings(),
)


_PAPER = Settings(
    block=BlockSettings(),
    greedy=GreedySettings(
        loss="elbo",
        balance=0.0,
        redraw=0,
        refit="none",
        sampling="activations",
        warm_start=False,
        revive=0.0,
        gradient_level=0.0,
        output_level=0.0,
        restarts=0,
    ),
    fit=FitSettings(
        epochs=150, batch=128, learning_rate=1e-3, final_learning_rate=1e-4, warm_up=0.0, weight_decay=1e-3, clip=0.0
    ),
    data=DataSettings(paper_set=True),
    inference=InferenceSettings(draws="activations", analytic=False),
)

FULL = 175  # degrees that views cover, above which nothing is missing but between them
NARROW = 105  # degrees below which an image rests on so little that half precision in every block can be seen in it
FEW_VIEWS = 24  # below which 4000 images are learned by heart: there are more, each seen less often

PRESETS: dict[str, Settings] = {
    "recommended": _RECOMMENDED,
    "paper": _PAPER,  # the text of the paper
    "as-released": dataclasses.replace(  # what its authors' code does differently
        _PAPER,
        block=dataclasses.replace(_PAPER.block, jitter=1e-6),
        greedy=dataclasses.replace(_PAPER.greedy, loss="elbo-as-released"),
    ),
}


def preset(name: str, geometry: Geometry) -> Settings:
    """The settings of that name, with the number of blocks and images that go with the geometry."""
    if name not in PRESETS:
        raise UserError(plugins.unknown("preset", name, list(PRESETS)))
    settings = PRESETS[name]
    number = paper_blocks(geometry)
    if name == "recommended":
        number = recommended_blocks(geometry)
        if covered(geometry) > FULL and geometry.views < FEW_VIEWS:
            settings = dataclasses.replace(
                settings,
                data=dataclasses.replace(settings.data, images=16_000),
                fit=dataclasses.replace(settings.fit, epochs=3),
            )
        if covered(geometry) < NARROW:
            settings = dataclasses.replace(
                settings, inference=dataclasses.replace(settings.inference, features="single")
            )
    return dataclasses.replace(settings, greedy=dataclasses.replace(settings.greedy, blocks=number))


def paper_blocks(geometry: Geometry) -> int:
    """K of the paper: 10 from 32 views on, 20 below and for [0, 150) degrees, 30 for smaller arcs."""
    if covered(geometry) > FULL:
        return 10 if geometry.views >= 32 else 20
    return 20 if covered(geometry) > 135 else 30


def recommended_blocks(geometry: Geometry) -> int:
    """More blocks where more is missing."""
    if covered(geometry) <= FULL:
        return 18
    if geometry.views < FEW_VIEWS:
        return 24 if geometry.views < 12 else 20
    return 16 if geometry.views < 48 else 12


def covered(geometry: Geometry) -> float:
    """Degrees that the views cover, each standing for the arc around it."""
    angles = torch.tensor(geometry.angles, dtype=torch.float64).rad2deg()
    return float(angles.max() - angles.min()) * geometry.views / max(geometry.views - 1, 1)


def train(
    kind: str,  # of block
    geometry: Geometry,
    training: tuple[ImageStore, ImageStore],  # sinograms and truths
    validation: tuple[ImageStore, ImageStore],
    settings: Settings,
    run: Run,
    *,
    seed: int,
    report: Report,
    team: Team = ALONE,
) -> None:
    """Trains a cascade into the run folder, behind the blocks that are there."""
    device = training[0].device
    start = Physics(geometry, device)
    done = [load_block(kind, settings, tensors).to(device) for tensors in run.blocks()]
    for block in done:
        channels_last(block)

    def make(generator: torch.Generator) -> Block:
        return build_block(kind, settings.block, generator)

    def keep(place: int, block: Block, record: dict[str, Any]) -> None:
        run.keep(place, block.state_dict(), record)

    train_cascade(
        make,
        start.stage(*training, settings.fit.batch),
        start.stage(*validation, settings.fit.batch),
        settings.greedy,
        settings.fit,
        seed=seed,
        done=done,
        slower=slower_behind(run.manifest["blocks"][-1], settings.greedy) if done else 0,
        keep=keep,
        end=run.end,
        report=report,
        team=team,
    )


def load(
    kind: str,  # of block
    name: str,
    geometry: Geometry,
    manifest: Mapping[str, Any],
    weights: Sequence[Tensors],
    overrides: Sequence[str],  # "inference.key=value"
    device: torch.device | str,
) -> "TrainedCascade":
    """A trained cascade, ready to be called with sinograms."""
    settings = manifest["settings"]
    parts = [field.name for field in dataclasses.fields(Settings)]
    if any(part not in settings for part in parts):
        raise UserError(
            f"{name}: its manifest is damaged: expected the settings {', '.join(parts)}, got {', '.join(settings)}"
        )
    trained = settings_from(Settings, {part: settings[part] for part in parts})
    if not weights:
        raise UserError(f"{name}: no block is trained yet; go on with the same train command")
    for text in overrides:
        if not text.startswith("inference."):
            raise UserError(
                f"--set {text}: what was trained cannot be set any more; there are: "
                + ", ".join(f"inference.{field.name}" for field in dataclasses.fields(InferenceSettings))
            )
    chosen = load_settings(Settings, overrides=overrides, base=trained)
    *inner, last = weights
    cascade = Cascade(
        [*(load_block(kind, trained, tensors, inner=True) for tensors in inner), load_block(kind, trained, last)]
    )
    warning = None
    if manifest.get("status") != "done":
        warning = f"{name} is not trained to its end: {len(weights)} of {trained.greedy.blocks} blocks"
    return TrainedCascade(name, cascade, geometry, chosen, choose_device(device), warning)


def build_block(kind: str, settings: BlockSettings, generator: torch.Generator) -> Block:
    """A block of that kind with fresh weights."""
    block: Block = importlib.import_module(f"bayescade.blocks.{kind}").build(settings, generator)
    return block


def load_block(kind: str, settings: Settings, tensors: Tensors, inner: bool = False) -> Block:
    """A block with stored weights; one that another follows may come without its variance."""
    block = build_block(kind, settings.block, torch.Generator())
    fresh = {key: value for key, value in block.state_dict().items() if inner and key.startswith(INNER)}
    try:
        block.load_state_dict({**fresh, **{key: value.float() for key, value in tensors.items()}})
    except RuntimeError as error:
        raise UserError(f"the weights do not fit their settings: {' '.join(str(error).split()):.200}") from None
    return block


@final
class Physics:
    """The operator of a geometry, its norm and its first image."""

    def __init__(self, geometry: Geometry, device: torch.device):
        self.device = device
        self.operator = ray_transform(geometry, device)
        self.norm = self.operator.norm
        self.back_projection = fbp.build(geometry, fbp.Settings(), device)

    def first(self, sinogram: Tensor) -> Tensor:
        """The first image: FBP, not clipped."""
        return self.back_projection.apply(sinogram, self.back_projection.settings.window)

    def data(self, sinogram: ImageStore) -> Data:
        """What a cascade knows of some sinograms."""
        return Data(self.operator, self.norm, sinogram)

    def first_images(self, sinogram: ImageStore, truth: ImageStore, batch: int) -> ImageStore:
        """The first image of every sinogram, kept as the truths are."""
        first = store_like(truth)
        for some in batches(len(truth), batch):
            first[some] = self.first(sinogram[some])
        return first

    def stage(self, sinogram: ImageStore, truth: ImageStore, batch: int) -> Stage:
        """The first stage of training."""
        return Stage.first(self.data(sinogram), truth, self.first_images(sinogram, truth, batch), batch)


@final
class TrainedCascade(Reconstructor):
    """A trained cascade: the image, and the data's and the model's doubt where its blocks know them."""

    def __init__(
        self,
        name: str,
        cascade: Cascade,
        geometry: Geometry,
        settings: Settings,
        device: torch.device,
        warning: str | None = None,
    ):
        self.name = name
        self.cascade = cascade.to(device).eval().requires_grad_(False)
        channels_last(self.cascade)
        self.geometry = geometry
        self.settings = settings
        self.device = device
        self.warning = warning
        self.sinogram_shape = geometry.sinogram_shape
        self.physics = Physics(geometry, device)
        self.fast = sampler_of(self.cascade, settings.inference)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.cascade.parameters())

    def reconstruct(self, sinogram: Tensor, *, samples: int, seed: int) -> Reconstruction:
        found: list[Estimate] = []
        label = "samples, at most" if self.settings.inference.tolerance else "samples"
        parts = list(self._parts(sinogram))
        with progress(label, samples * len(parts)) as advance:
            for place, part in parts:
                found.append(
                    estimate(
                        self.cascade,
                        self.physics.data(part),
                        self.physics.first(part),
                        self.settings.inference,
                        samples=samples,
                        seed=seed,
                        place=place,
                        fast=self.fast,
                        advance=advance,
                    )
                )
        doubts = self.cascade.block(0).variance is not None
        errors = doubts and all(part.has_errors for part in found)

        def joined(name: str) -> Tensor:
            return torch.cat([getattr(part, name) for part in found]).float()

        return Reconstruction(
            image=joined("image"),
            model=self.name,
            geometry=self.geometry.to_json(),
            aleatoric=joined("aleatoric") if doubts else None,
            epistemic=joined("epistemic") if doubts else None,
            mc_standard_error=joined("epistemic_std_error") if errors else None,
            image_standard_error=joined("image_error") if errors else None,
            aleatoric_standard_error=joined("aleatoric_error") if errors else None,
            samples=max(part.samples for part in found) if doubts else 0,
            seed=seed,
            settings=json.dumps(dataclasses.asdict(self.settings)),
            warning=self.warning,
        )

    def draws(
        self,
        sinogram: Any,  # as for a call
        *,
        samples: int,
        seed: int,
        aleatoric: bool = False,
    ) -> Tensor:
        """Draws of the image, (samples, batch, 1, height, width); with `aleatoric` as the data could also have it."""
        found = [
            draw_images(
                self.cascade,
                self.physics.data(part),
                self.physics.first(part),
                self.settings.inference,
                samples=samples,
                seed=seed,
                place=place,
                aleatoric=aleatoric,
                fast=self.fast,
            )
            for place, part in self._parts(as_sinograms(sinogram, self.sinogram_shape))
        ]
        return torch.cat(found, 1)

    def _parts(self, sinogram: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Runs of sinograms that fit memory, each with the place of its first; alone where each decides when it is done."""
        number = 1
        if not self.settings.inference.tolerance:
            number = passes_at_once(self.cascade, self.geometry.image_shape, self.device)
        for place in range(0, len(sinogram), number):
            yield place, sinogram[place : place + number].to(self.device)
