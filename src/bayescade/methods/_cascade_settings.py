"""Settings of DGD, BDGD and BDGD+, and their presets."""

import dataclasses
from typing import TypeVar

from bayescade import plugins
from bayescade.blocks.settings import BlockSettings, PyramidSettings, scales_of
from bayescade.errors import UserError
from bayescade.inference.monte_carlo import InferenceSettings
from bayescade.training.fit import FitSettings
from bayescade.training.greedy import GreedySettings
from bayescade.training.joint import JointSettings

AnySettings = TypeVar("AnySettings", bound="Settings")

RAMPS = ("band-limited", "shifted")


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Training and validation images."""

    images: int = 4000  # training images
    validation_images: int = 100  # images of the validation split, which measure the gain of a block
    paper_set: bool = False  # use the 4000 training ellipses of the paper, not new random ellipses
    memory: float = 0.0  # GB for training images; if they need more, files are used; 0 means half of the free memory
    ramp: str = "band-limited"  # filter of the FBP for the first image: band-limited, or shifted (the paper)

    def __post_init__(self) -> None:
        if self.ramp not in RAMPS:
            raise UserError(f"setting ramp: expected {' or '.join(RAMPS)}, got '{self.ramp}'")
        if not 0 <= self.memory < 1e6:
            raise UserError(f"setting memory: expected a number of gigabytes of at least 0, got {self.memory}")
        for name in ("images", "validation_images"):
            if not 1 <= getattr(self, name) <= 10_000_000:
                raise UserError(f"setting {name}: expected a whole number of at least 1, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a cascade, in parts; `preset` returns complete settings."""

    block: BlockSettings
    greedy: GreedySettings
    fit: FitSettings
    data: DataSettings
    inference: InferenceSettings


@dataclasses.dataclass(frozen=True)
class JointlyTrained(Settings):
    """Settings of a cascade whose blocks are trained together after their greedy training."""

    block: PyramidSettings
    joint: JointSettings


def with_possible_runners(settings: AnySettings) -> AnySettings:
    """The settings with runners that can compute the blocks: several scales are computed by torch layers."""
    if scales_of(settings.block) == 1:
        return settings
    fit = dataclasses.replace(settings.fit, runner=possible_runner(settings.fit.runner))
    inference = dataclasses.replace(settings.inference, runner=possible_runner(settings.inference.runner))
    return dataclasses.replace(settings, fit=fit, inference=inference)


def possible_runner(requested: str) -> str:
    """The runner of blocks of several scales: `auto` is plain."""
    return "plain" if requested == "auto" else requested


_RECOMMENDED = Settings(
    block=BlockSettings(variance="features"),
    greedy=GreedySettings(),
    fit=FitSettings(),
    data=DataSettings(),
    inference=InferenceSettings(),
)

_PAPER = Settings(
    block=BlockSettings(),
    greedy=GreedySettings(loss="elbo", resample=0, refit="none", sampling="activations", start="fresh", restarts=0),
    fit=FitSettings(
        epochs=150, batch=128, learning_rate=1e-3, final_learning_rate=1e-4, warm_up=0.0, weight_decay=1e-3, clip=0.0
    ),
    data=DataSettings(paper_set=True, ramp="shifted"),
    inference=InferenceSettings(sampling="activations"),
)

_ANY = JointlyTrained(
    block=PyramidSettings(channels=16, memory_channels=8, variance="features", scales=4),
    greedy=GreedySettings(blocks=8, restarts=0),
    fit=FitSettings(epochs=0, batch=32),  # no greedy training: the blocks gain together
    data=DataSettings(images=8000, validation_images=300),
    inference=InferenceSettings(),
    joint=JointSettings(epochs=100, batch=16, rounds=20),
)

PRESETS: dict[str, Settings] = {
    "recommended": _RECOMMENDED,
    "any": _ANY,  # for any scan, or for one scan with the same objects, noise and errors of the scanner
    "paper": _PAPER,  # as in the text of the paper
    # As in the authors' code, which also adds a jitter (`_cascade.new_block`).
    "as-released": dataclasses.replace(_PAPER, greedy=dataclasses.replace(_PAPER.greedy, loss="elbo-as-released")),
}

FULL = 175  # degrees: a larger arc is treated as the full arc of 180 degrees
NARROW = 105  # degrees: for a smaller arc the rounding of half precision is visible in the image
FEW_VIEWS = 24  # with fewer views a cascade overfits 4000 images, so it is trained on more images for fewer epochs


def preset(
    name: str,
    views: int | None = None,  # None for a problem that is not a scan: it gets the settings for many views
    arc_degrees: float = 180.0,  # measured arc of the scan, at most 180
) -> Settings:
    """The settings of the preset of that name, adapted to the scan: blocks, images, epochs, precision."""
    if name not in PRESETS:
        raise UserError(plugins.unknown("preset", name, list(PRESETS)))
    settings = PRESETS[name]
    view_count = views if views is not None else 10**6
    if name == "any":
        return settings
    if name != "recommended":
        return with_blocks(settings, paper_blocks(view_count, arc_degrees))
    if arc_degrees > FULL and view_count < FEW_VIEWS:
        data, fit = dataclasses.replace(settings.data, images=16_000), dataclasses.replace(settings.fit, epochs=3)
        settings = dataclasses.replace(settings, data=data, fit=fit)
    if arc_degrees < NARROW:
        inference = dataclasses.replace(settings.inference, precision="single")
        settings = dataclasses.replace(settings, inference=inference)
    return with_blocks(settings, recommended_blocks(view_count, arc_degrees))


def with_blocks(settings: Settings, blocks: int) -> Settings:
    """The settings with that number of blocks."""
    return dataclasses.replace(settings, greedy=dataclasses.replace(settings.greedy, blocks=blocks))


def paper_blocks(views: int, arc_degrees: float) -> int:
    """Number of blocks K in the paper.

    Full arc: 10 for 32 or more views, 20 for fewer views. Limited arc: 20 for [0, 150) degrees, 30 for smaller arcs.
    """
    if arc_degrees > FULL:
        return 10 if views >= 32 else 20
    return 20 if arc_degrees > 135 else 30


def recommended_blocks(views: int, arc_degrees: float) -> int:
    """Number of blocks K of the recommended preset: more blocks if more data are missing."""
    if arc_degrees <= FULL:
        return 18
    if views < FEW_VIEWS:
        return 24 if views < 12 else 20
    return 16 if views < 48 else 12
