"""Settings of a block."""

import dataclasses

from bayescade.errors import UserError

VARIANCES = ("inputs", "features")
MOST_SCALES = 6


@dataclasses.dataclass(frozen=True)
class BlockSettings:
    """Channels of a block, and the input of its variance network; the defaults are those of the paper."""

    channels: int = 16  # c
    memory_channels: int = 0  # m: number of features that a block passes to the next block
    # Input of the variance network. inputs: image, memory and input planes of the problem; the network has 4 channels and 1
    # convolution before its last layer (the paper). features: also the common features, which are detached (no gradient
    # flows back through them); 16 channels and 2 convolutions.
    variance: str = "inputs"

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= 1024:
            raise UserError(f"setting channels: expected a whole number from 1 to 1024, got {self.channels}")
        if not 0 <= self.memory_channels <= self.channels:
            raise UserError(
                f"setting memory_channels: expected 0 to {self.channels} (the setting channels), "
                f"got {self.memory_channels}"
            )
        if self.variance not in VARIANCES:
            raise UserError(f"setting variance: expected {' or '.join(VARIANCES)}, got '{self.variance}'")


@dataclasses.dataclass(frozen=True)
class PyramidSettings(BlockSettings):
    """The settings of a block that may compute on several image sizes."""

    scales: int = 1  # number of image sizes, the full size included (`pyramid`); 1: the block of the paper

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.scales <= MOST_SCALES:
            raise UserError(f"setting scales: expected a whole number from 1 to {MOST_SCALES}, got {self.scales}")


def scales_of(settings: BlockSettings) -> int:
    """The number of image sizes of a block."""
    return settings.scales if isinstance(settings, PyramidSettings) else 1
