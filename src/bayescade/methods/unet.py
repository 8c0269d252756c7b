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

ANY_GEOMETRY = False  # the weights are valid only for the problem for which they were trained


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """Size of the network."""

    channels: int = 16  # channels at full resolution; doubled at each coarser scale, up to most_channels
    most_channels: int = 48
    scales: int = 5  # number of resolutions; each has half the pixels per axis of the previous resolution

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
    """The settings of the preset of that name, the same for every scan."""
    _network.check_preset(name)
    return Settings(NetworkSettings(), EndToEndSettings(epochs=20), DataSettings(images=16_000))


def build(settings: Settings, problem: InverseProblem, generator: torch.Generator) -> UNet:
    """The network with new random weights."""
    sizes = settings.network
    return UNet(sizes.channels, sizes.most_channels, sizes.scales, generator)


train = partial(_network.train, build)
load = partial(_network.load, build, Settings)
