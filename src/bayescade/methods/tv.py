"""Total variation: the piecewise constant image that fits the data (`physics/total_variation`).

The iteration stops when the duality gap is small relative to the objective.
"""

import dataclasses
import json
from typing import final

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.fidelity import (
    Fidelity,
    LeastSquares,
    PoissonLikelihood,
    WeightedLeastSquares,
    check_photons,
)
from bayescade.physics.geometry import Geometry
from bayescade.physics.ray_transform import RayTransform
from bayescade.physics.total_variation import Problem, batch_last, first_point, relative_gap, step
from bayescade.physics.tv_weight import default_weight
from bayescade.progress import progress
from bayescade.projectors import ray_transform
from bayescade.results import Reconstruction, Reconstructor

CHECK_EVERY = 50  # iterations between checks of the gap
ANY_GEOMETRY = True  # the method works for any geometry; nothing is trained


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of TV."""

    weight: float = 0.0  # w; 0 means c times the noise, by the rule of `default_weight`
    constant: float = 0.0  # c; 0 means the constant of the geometry (`physics/tv_weight`)
    fidelity: str = "least-squares"  # least-squares, weighted (by photon statistics) or poisson
    photons: float = 1e5  # photons per bin without an object; only for weighted and poisson
    attenuation: float = 0.02  # attenuation per unit length where the image is 1; only for weighted and poisson
    tolerance: float = 1e-3  # relative duality gap at which the iteration of an image stops
    iterations: int = 10000  # largest number of iterations

    def __post_init__(self) -> None:
        if self.fidelity not in FIDELITIES:
            raise UserError(f"setting fidelity: expected {', '.join(FIDELITIES)}, got '{self.fidelity}'")
        for name in ("weight", "constant"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(
                    f"setting {name}: expected a positive number, or 0 for the default, got {getattr(self, name)}"
                )
        if not 0 < self.tolerance < 1:
            raise UserError(f"setting tolerance: expected a number between 0 and 1, got {self.tolerance}")
        if self.iterations < 1:
            raise UserError(f"setting iterations: expected at least 1, got {self.iterations}")
        check_photons(self.photons, self.attenuation)


FIDELITIES = ("least-squares", "weighted", "poisson")


def build(geometry: Geometry, settings: Settings, device: torch.device | str = "cpu") -> "TV":
    """TV for a geometry."""
    return TV(ray_transform(geometry, device), settings)


@final
class TV(Reconstructor):
    """Total variation, without uncertainty; the `warning` of a result says how many images did not converge."""

    name = "tv"

    def __init__(self, operator: RayTransform, settings: Settings):
        self.operator = operator
        self.settings = settings
        self.data_shape = operator.range_shape
        self.norm = operator.norm

    def reconstruct(self, data: Tensor, *, samples: int, seed: int, index: int) -> Reconstruction:
        sinogram = batch_last(data.to(self.operator.device))
        fidelity = self._fidelity(sinogram)
        weight = self.settings.weight or default_weight(
            self.operator, self.norm, fidelity, sinogram, self.settings.constant
        )
        weights = torch.as_tensor(weight, dtype=sinogram.dtype, device=sinogram.device).reshape(-1, 1, 1, 1)
        image, gap = solve(
            self.operator,
            self.norm,
            fidelity,
            sinogram,
            weights.expand(len(sinogram), 1, 1, 1),
            tolerance=self.settings.tolerance,
            iterations=self.settings.iterations,
        )
        unconverged = len(gap) - int((gap <= self.settings.tolerance).sum())
        warning = (
            f"{unconverged} of {len(image)} images did not converge in {self.settings.iterations} iterations: relative duality "
            f"gap up to {float(gap.max()):.1e}, wanted {self.settings.tolerance:g}"
        )
        return Reconstruction(
            image=image.contiguous(),
            model=self.name,
            geometry=self.operator.geometry.to_json(),
            seed=seed,
            settings=json.dumps(dataclasses.asdict(self.settings)),
            warning=warning if unconverged else None,
        )

    def _fidelity(self, sinogram: Tensor) -> Fidelity:
        if self.settings.fidelity == "least-squares":
            return LeastSquares()
        poisson = PoissonLikelihood(self.settings.photons, self.settings.attenuation)
        return poisson if self.settings.fidelity == "poisson" else WeightedLeastSquares(poisson.curvature(sinogram))


@torch.no_grad()
def solve(
    operator: RayTransform,
    operator_norm: float,
    fidelity: Fidelity,
    sinogram: Tensor,  # (batch, 1, views, bins)
    weight: Tensor,  # (batch, 1, 1, 1)
    *,
    tolerance: float = 1e-3,
    iterations: int = 10000,
) -> tuple[Tensor, Tensor]:
    """The images (batch, 1, height, width) and their relative duality gaps (batch,).

    A converged image is removed from the iteration, so its result does not depend on the other images of the batch.
    """
    start = operator.fbp(sinogram, ramp="shifted").clamp_min(0)
    problem = Problem.with_steps(operator, operator_norm, fidelity, sinogram, weight, start)
    images = torch.zeros_like(problem.start)
    gaps = torch.full((len(sinogram),), torch.inf, dtype=sinogram.dtype, device=sinogram.device)
    active = torch.arange(len(sinogram), device=sinogram.device)
    point = first_point(problem)
    with progress("total variation (maximum iterations)", iterations) as advance:
        for iteration in range(1, iterations + 1):
            new_point = step(problem, point)
            point = point.relaxed(new_point)
            if iteration % CHECK_EVERY and iteration < iterations:
                continue
            advance((iteration - 1) % CHECK_EVERY + 1)
            gap = relative_gap(problem, new_point)
            images[active], gaps[active] = new_point.image, gap
            unfinished = ~(gap <= tolerance)  # True also for a gap of NaN
            if not bool(unfinished.any()):
                break
            if not bool(unfinished.all()):
                problem, point, active = problem.select(unfinished), point.select(unfinished), active[unfinished]
    return images, gaps
