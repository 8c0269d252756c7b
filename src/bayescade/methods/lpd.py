"""Learned primal-dual: alternating learned steps on the data and on the image, trained end to end."""

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

ANY_GEOMETRY = False  # the weights are valid only for the problem for which they were trained


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """Size of the network; the defaults are those of Adler and Oktem (2018)."""

    steps: int = 10  # pairs of a dual and a primal step
    memory: int = 5  # channels that are passed from step to step, for the image and for the data
    channels: int = 32  # channels of the hidden layers

    def __post_init__(self) -> None:
        check_whole(self, "steps", "memory", "channels", most=1024)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of learned primal-dual."""

    network: NetworkSettings
    fit: EndToEndSettings
    data: DataSettings


def preset(name: str, views: int | None = None, arc_degrees: float = 180.0) -> Settings:
    """The settings of the preset of that name, the same for every scan."""
    _network.check_preset(name)
    fit = EndToEndSettings(epochs=16, batch=8)  # with a learning rate of 3e-3 the loss becomes NaN
    return Settings(NetworkSettings(), fit, DataSettings(images=8000))


def build(settings: Settings, problem: InverseProblem, generator: torch.Generator) -> PrimalDual:
    """The network with new random weights."""
    sizes = settings.network
    data_shape = problem.operator.range_shape
    if len(data_shape) != 3 or data_shape[0] != 1:
        raise UserError(
            f"lpd: expected data of shape (1, rows, columns) for its convolutions, got {data_shape}; use bdgd-plus"
        )
    return PrimalDual(problem, sizes.steps, sizes.memory, sizes.channels, generator)


train = partial(_network.train, build)
load = partial(_network.load, build, Settings)
