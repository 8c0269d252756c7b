"""Learned primal-dual: steps in data and image, unrolled and trained end to end."""

import dataclasses
from functools import partial

import torch

from bayescade.errors import UserError
from bayescade.methods import _network
from bayescade.methods._cascade_settings import DataSettings
from bayescade.networks.primal_dual import PrimalDual
from bayescade.physics.problem import InverseProblem
from bayescade.training.end_to_end import EndToEndSettings
from bayescade.training.optimiser import check_whole

ANY_GEOMETRY = False  # weights are valid only for the problem of the training


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """Shape of the network; the defaults are those of Adler and Oktem (2018)."""

    steps: int = 10
    memory: int = 5  # channels, in the image and in the data
    channels: int = 32  # of the hidden layers

    def __post_init__(self) -> None:
        check_whole(self, "steps", "memory", "channels", most=1024)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of learned primal-dual."""

    network: NetworkSettings
    fit: EndToEndSettings
    data: DataSettings


def preset(name: str, views: int | None = None, arc_degrees: float = 180.0) -> Settings:
    """The settings of that name, the same for every scan."""
    _network.check_preset(name)
    fit = EndToEndSettings(epochs=16, batch=8)  # a learning rate of 3e-3 is too high: NaN loss
    return Settings(NetworkSettings(), fit, DataSettings(images=8000))


def build(settings: Settings, problem: InverseProblem, generator: torch.Generator) -> PrimalDual:
    """The network with fresh weights."""
    shape = settings.network
    data = problem.operator.range_shape
    if len(data) != 3 or data[0] != 1:
        raise UserError(
            f"lpd: expected data of shape (1, rows, columns), which it convolves, got {data}; use bdgd-plus"
        )
    return PrimalDual(problem, shape.steps, shape.memory, shape.channels, generator)


train = partial(_network.train, build)
load = partial(_network.load, build, Settings)
