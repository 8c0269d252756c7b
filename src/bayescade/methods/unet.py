"""FBP followed by a U-Net: a network that corrects the image, trained end to end."""

import dataclasses
from functools import partial

import torch

from bayescade.methods import _network
from bayescade.methods._cascade_settings import DataSettings
from bayescade.networks.unet import UNet
from bayescade.physics.problem import InverseProblem
from bayescade.training.end_to_end import EndToEndSettings
from bayescade.training.optimiser import check_whole

ANY_GEOMETRY = False  # weights are valid only for the problem of the training


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """Shape of the network."""

    channels: int = 16  # of the largest scale; each smaller scale has twice as many, up to most_channels
    most_channels: int = 48
    scales: int = 5

    def __post_init__(self) -> None:
        check_whole(self, "channels", "most_channels", most=4096)
        check_whole(self, "scales", most=8)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of FBP followed by a U-Net."""

    network: NetworkSettings
    fit: EndToEndSettings
    data: DataSettings


def preset(name: str, views: int | None = None, arc_degrees: float = 180.0) -> Settings:
    """The settings of that name, the same for every scan."""
    _network.check_preset(name)
    return Settings(NetworkSettings(), EndToEndSettings(epochs=20), DataSettings(images=16_000))


def build(settings: Settings, problem: InverseProblem, generator: torch.Generator) -> UNet:
    """The network with fresh weights."""
    shape = settings.network
    return UNet(shape.channels, shape.most_channels, shape.scales, generator)


train = partial(_network.train, build)
load = partial(_network.load, build, Settings)
