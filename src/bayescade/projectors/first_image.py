"""The first image of a model for any scan: a fixed number of iterations of total variation, from FBP.

It costs as much as a few samples and is much nearer to the truth than FBP, above all for limited arcs, where the blocks of a
cascade would have to find the missing directions from their neighbourhood alone. The weight is c times the noise of the data by
the rule of `physics/tv_weight`. c falls with the arc: a strong total variation removes what few directions have seen.
"""

import math
from typing import final

import numpy as np
import torch
from torch import Tensor

from bayescade.physics.fidelity import LeastSquares
from bayescade.physics.geometry import Geometry, measured_arc
from bayescade.physics.noise_level import noise_std
from bayescade.physics.total_variation import Problem, after_iterations
from bayescade.physics.tv_weight import LEAST, mean_entry
from bayescade.projectors.per_image import Operator, geometries_of, shapes_of

# c at these arcs, and between them with log(c) linear: about the best for validation scans of 16 to 180 views.
ARC_DEGREES, CONSTANTS = (90.0, 120.0), (0.3, 1.5)
# As in `physics/total_variation`: with this value the image of a limited arc is right sooner, but its gap is small later.
BALANCE = 3.0


@final
class FirstImage:
    """Data -> first images, in the units of the data."""

    def __init__(
        self,
        operator: Operator,
        norm: float | Tensor,  # one number, or one for each scan, (scans,)
        iterations: int,
    ):
        self.operator = operator
        self.iterations = iterations
        geometries = geometries_of(operator)
        self.shapes = shapes_of(operator)
        scans = len(geometries)
        self.norms = torch.as_tensor(norm, dtype=torch.float64).expand(scans).to(operator.device, operator.dtype)
        ones = torch.ones((scans, *operator.range_shape), dtype=operator.dtype, device=operator.device)
        rays = operator.adjoint(ones).flatten(1)
        rays = torch.where(rays > 0, rays, torch.nan).nanmedian(1).values.nan_to_num(1.0)
        entries = torch.tensor([mean_entry(geometry) for geometry in geometries]).to(rays)
        self.constants = torch.tensor([constant(geometry) for geometry in geometries]).to(rays)
        self.noise_factors = torch.sqrt(rays * entries) / self.norms**2  # of the gradient, for noise 1 of the data

    def __call__(
        self,
        y: Tensor,  # (batch, 1, views, bins)
    ) -> Tensor:
        times = len(y) // len(self.norms)
        norms, factors, constants = (each.repeat(times) for each in (self.norms, self.noise_factors, self.constants))
        noise = noise_std(y, list(self.shapes) * times if self.shapes is not None else None) * factors
        least = LEAST * y.square().mean((1, 2, 3)).sqrt() / norms
        weight = constants * torch.maximum(noise, least.clamp_min(torch.finfo(y.dtype).tiny ** 0.5))
        start = self.operator.fbp(y).clamp_min(0)
        column = (-1, 1, 1, 1)
        problem = Problem.with_steps(
            self.operator, norms.reshape(column), LeastSquares(), y, weight.reshape(column), start, BALANCE
        )
        return after_iterations(problem, self.iterations)


def constant(geometry: Geometry) -> float:
    """c for a geometry."""
    logs = [math.log(value) for value in CONSTANTS]
    return math.exp(float(np.interp(measured_arc(geometry), ARC_DEGREES, logs)))
