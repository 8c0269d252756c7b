"""Learned primal-dual reconstruction (Adler and Oktem 2018), trained end to end.

Steps in data space (dual) and in image space (primal) alternate. The inputs of a dual step are the dual memory, the
residual (projected image minus data) and the data. The inputs of a primal step are the primal memory and the
back-projection of the dual memory. A memory has a few channels; only one channel is projected or back-projected. The
operator is divided by its norm. Two changes make training shorter: the first image is FBP, and the outputs of the
operator are multiplied by constant factors (gains), which are set once, before training.
"""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from bayescade.networks._conv import convolution
from bayescade.physics.operator import LinearOperator
from bayescade.physics.problem import InverseProblem

LEVEL = 0.3  # the gains give the first residuals and their back-projections this standard deviation
START = 0.1  # factor on the initial weights of the last layer of a step, so that the first changes are small


@final
class PrimalDual(nn.Module):
    """(image, sinogram) -> image."""

    residual_gain: Tensor
    back_gain: Tensor

    def __init__(
        self,
        problem: InverseProblem,
        steps: int,
        memory: int,  # channels of the primal memory, and of the dual memory
        channels: int,  # of the hidden layers
        generator: torch.Generator,
    ):
        super().__init__()
        self._problem = (problem,)  # a tuple, so that torch does not add an operator that is a module to the network
        self.norm, self.scale = problem.norm, problem.scale
        self.memory = memory
        self.dual = nn.ModuleList([step_network(memory + 2, channels, memory, generator) for _ in range(steps)])
        self.primal = nn.ModuleList([step_network(memory + 1, channels, memory, generator) for _ in range(steps)])
        self.register_buffer("residual_gain", torch.ones(()))
        self.register_buffer("back_gain", torch.ones(()))

    @property
    def operator(self) -> LinearOperator:
        """The operator, not divided by its norm."""
        return self._problem[0].operator

    @torch.no_grad()
    def prepare(self, image: Tensor, sinogram: Tensor) -> None:
        """Sets the gains: for these images the outputs of the operator then have the standard deviation LEVEL."""
        residual = self._apply_operator(self.operator.forward, image) - sinogram / (self.norm * self.scale)
        self.residual_gain.fill_(LEVEL / float(residual.std().clamp_min(1e-12)))
        back_projection = self._apply_operator(self.operator.adjoint, self.residual_gain * residual)
        self.back_gain.fill_(LEVEL / float(back_projection.std().clamp_min(1e-12)))

    def forward(self, image: Tensor, sinogram: Tensor) -> Tensor:
        data = sinogram / (self.norm * self.scale)
        primal = image.repeat(1, self.memory, 1, 1)
        dual = torch.zeros_like(data).repeat(1, self.memory, 1, 1)
        for dual_step, primal_step in zip(self.dual, self.primal, strict=True):
            residual = self._apply_operator(self.operator.forward, primal[:, -1:]) - data
            dual_inputs = torch.cat([dual, self.residual_gain * residual, data], 1)
            dual = dual + dual_step(dual_inputs).to(dual.dtype)
            back_projection = self._apply_operator(self.operator.adjoint, dual[:, :1])
            primal_inputs = torch.cat([primal, self.back_gain * back_projection], 1)
            primal = primal + primal_step(primal_inputs).to(primal.dtype)
        return primal[:, :1]

    def _apply_operator(self, apply: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The operator or its adjoint, applied to x and divided by the norm; autocast does not change its precision."""
        with torch.autocast(x.device.type, enabled=False):
            return apply(x.contiguous()) / self.norm

    def clipped(self, image: Tensor, sinogram: Tensor) -> Tensor:
        """The output of the network, with negative values set to 0."""
        return relu(self(image, sinogram))


def step_network(in_channels: int, channels: int, out_channels: int, generator: torch.Generator) -> nn.Sequential:
    """The network of one step: three convolutions, and between them ReLUs with learned slopes below zero (PReLU)."""
    last = convolution(channels, out_channels, generator)
    last.weight.data *= START
    return nn.Sequential(
        convolution(in_channels, channels, generator),
        nn.PReLU(channels),
        convolution(channels, channels, generator),
        nn.PReLU(channels),
        last,
    )
