"""Learned primal-dual reconstruction (Adler and Oktem 2018): alternating steps in data and image space, trained end to end.

A dual step sees the dual memory, the residual of the projected image, and the data; a primal step sees the primal memory and
the back-projection of the dual. A memory has a few channels, one of which is projected. The operator is divided by its norm.
Two things shorten training: the image starts at FBP, and the outputs of the operator are scaled once to the size of the other
inputs.
"""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from bayescade.networks._conv import convolution
from bayescade.physics.operator import LinearOperator
from bayescade.physics.problem import InverseProblem

LEVEL = 0.3  # standard deviation of residuals and of their back-projections, as steps see them at the start
START = 0.1  # factor on He's initial weights of the last layer: a step starts small


@final
class PrimalDual(nn.Module):
    """(image, sinogram) -> image."""

    residual_gain: Tensor
    back_gain: Tensor

    def __init__(
        self,
        problem: InverseProblem,
        steps: int,
        memory: int,  # channels, in the image and in the data
        channels: int,  # of the hidden layers
        generator: torch.Generator,
    ):
        super().__init__()
        self._problem = (problem,)  # in a tuple: an operator that is a module is not a part of the network
        self.norm, self.scale = problem.norm, problem.scale
        self.memory = memory
        self.dual = nn.ModuleList([step(memory + 2, channels, memory, generator) for _ in range(steps)])
        self.primal = nn.ModuleList([step(memory + 1, channels, memory, generator) for _ in range(steps)])
        self.register_buffer("residual_gain", torch.ones(()))
        self.register_buffer("back_gain", torch.ones(()))

    @property
    def operator(self) -> LinearOperator:
        """The operator, as it is."""
        return self._problem[0].operator

    @torch.no_grad()
    def prepare(self, image: Tensor, sinogram: Tensor) -> None:
        """Sets the gains, so that the outputs of the operator are as large as the other inputs."""
        residual = self._apply_operator(self.operator.forward, image) - sinogram / (self.norm * self.scale)
        self.residual_gain.fill_(LEVEL / float(residual.std().clamp_min(1e-12)))
        back = self._apply_operator(self.operator.adjoint, self.residual_gain * residual)
        self.back_gain.fill_(LEVEL / float(back.std().clamp_min(1e-12)))

    def forward(self, image: Tensor, sinogram: Tensor) -> Tensor:
        measured = sinogram / (self.norm * self.scale)
        primal = image.repeat(1, self.memory, 1, 1)
        dual = torch.zeros_like(measured).repeat(1, self.memory, 1, 1)
        for dual_step, primal_step in zip(self.dual, self.primal, strict=True):
            residual = self._apply_operator(self.operator.forward, primal[:, -1:]) - measured
            seen = torch.cat([dual, self.residual_gain * residual, measured], 1)
            dual = dual + dual_step(seen).to(dual.dtype)
            back = self._apply_operator(self.operator.adjoint, dual[:, :1])
            primal = primal + primal_step(torch.cat([primal, self.back_gain * back], 1)).to(primal.dtype)
        return primal[:, :1]

    def _apply_operator(self, apply: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The operator or its adjoint over the norm, in the precision of x, also under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            return apply(x.contiguous()) / self.norm

    def clipped(self, image: Tensor, sinogram: Tensor) -> Tensor:
        """The image with negative values set to 0."""
        return relu(self(image, sinogram))


def step(into: int, channels: int, out: int, generator: torch.Generator) -> nn.Sequential:
    """Three convolutions with learned slopes below zero between them."""
    last = convolution(channels, out, generator)
    last.weight.data *= START
    return nn.Sequential(
        convolution(into, channels, generator),
        nn.PReLU(channels),
        convolution(channels, channels, generator),
        nn.PReLU(channels),
        last,
    )
