"""Total variation: the piecewise constant image that fits the data, by a convergent primal-dual iteration.

    minimise  D(y, A x) / (h ||A||^2) + w TV(x)   over images x >= 0,

D is the data fidelity and h its mean curvature (1 for least squares). TV is the isotropic total variation for pixel
size 1: the mean over four gradients, one per corner of a pixel (`finite_differences`). So the weight w has the same
meaning for every scanner. The algorithm is that of Chambolle and Pock (2011) with over-relaxation (Condat 2013). It
stops when the duality gap for the box 0 <= z <= 2 max x is small relative to the objective. Then the objective of every
image z in that box is at least the objective of x minus the gap.
"""

import dataclasses
import json
from typing import final

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.methods._tv_weight import default_weight
from bayescade.physics.fidelity import (
    Fidelity,
    LeastSquares,
    PoissonLikelihood,
    WeightedLeastSquares,
    check_photons,
)
from bayescade.physics.finite_differences import (
    CORNERS,
    CORNERS_NORM_SQUARED,
    Corners,
    Pair,
    corner_gradients,
    corner_gradients_adjoint,
    magnitude,
    total_variation,
)
from bayescade.physics.geometry import Geometry
from bayescade.physics.ray_transform import RayTransform
from bayescade.progress import progress
from bayescade.projectors import ray_transform
from bayescade.results import Reconstruction, Reconstructor

ANY_GEOMETRY = True  # the method works for any geometry; nothing is trained

CHECK_EVERY = 50  # iterations between checks of the gap
RELAXATION = 1.9
# Primal step / dual step, in units of (RMS of the image) / weight. The iteration converges for any positive value; this
# value makes it fast.
BALANCE = 0.2


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of TV."""

    weight: float = 0.0  # w; 0 means c times the noise, by the rule of `default_weight`
    constant: float = 0.0  # c; 0 means the constant of the geometry (`_tv_weight`)
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


def batch_last(tensor: Tensor) -> Tensor:
    """The same values with the batch as the fastest dimension in memory, the layout that `MatrixProjector` needs."""
    return tensor.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)


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
    problem = Problem.with_steps(operator, operator_norm, fidelity, sinogram, weight)
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


@dataclasses.dataclass(frozen=True)
class Problem:
    """Data and step sizes of a batch; the first dimension of each tensor is the batch."""

    operator: RayTransform
    norm: float
    fidelity: Fidelity
    sinogram: Tensor
    weight: Tensor  # (batch, 1, 1, 1)
    curvature: Tensor  # (batch, 1, 1, 1) mean curvature h of the fidelity
    start: Tensor  # FBP, clipped at 0
    primal_step: Tensor  # (batch, 1, 1, 1)
    dual_step: Tensor  # (batch, 1, 1, 1), for the data; for the gradients: dual_step / 32

    @classmethod
    def with_steps(
        cls, operator: RayTransform, operator_norm: float, fidelity: Fidelity, sinogram: Tensor, weight: Tensor
    ) -> "Problem":
        """Chooses the start image, the primal step t and the dual step s.

        The iteration converges if t s ||K||^2 < 1 for K = (A / norm, gradients / sqrt(32)). ||K||^2 <= 2, because
        ||A / norm|| = 1 and ||gradients||^2 / 32 <= 1; so 2 t s = 0.999. BALANCE determines t / s.
        """
        start = operator.fbp(sinogram, ramp="shifted").clamp_min(0)
        back_projection = operator.adjoint(sinogram) / operator_norm**2  # for images whose FBP is nowhere positive
        image_rms = torch.maximum(_rms(start), 0.01 * _rms(back_projection)).clamp_min(1e-12)
        ratio = BALANCE * image_rms / weight
        dual_step = (1 / (2 * ratio)).sqrt()
        curvature = fidelity.curvature(sinogram).mean((1, 2, 3), keepdim=True)
        return cls(
            operator, operator_norm, fidelity, sinogram, weight, curvature, start, 0.999 * ratio * dual_step, dual_step
        )

    def select(self, selected: Tensor) -> "Problem":
        """The problem of the selected images."""
        return Problem(
            self.operator,
            self.norm,
            self.fidelity.select(selected),
            sinogram=select_images(self.sinogram, selected),
            weight=select_images(self.weight, selected),
            curvature=select_images(self.curvature, selected),
            start=select_images(self.start, selected),
            primal_step=select_images(self.primal_step, selected),
            dual_step=select_images(self.dual_step, selected),
        )

    def forward(self, x: Tensor) -> Tensor:
        """A x / norm."""
        return self.operator.forward(x) / self.norm

    def adjoint(self, p: Tensor) -> Tensor:
        """A' p / norm."""
        return self.operator.adjoint(p) / self.norm


@dataclasses.dataclass(frozen=True)
class Point:
    """An image and the dual variables, of a batch."""

    image: Tensor
    data: Tensor  # dual variable of A x / norm
    corners: Corners  # dual variables of the four gradients

    def select(self, selected: Tensor) -> "Point":
        """The point of the selected images."""
        a, b, c, d = ((select_images(down, selected), select_images(right, selected)) for down, right in self.corners)
        return Point(select_images(self.image, selected), select_images(self.data, selected), (a, b, c, d))

    def relaxed(self, new: "Point") -> "Point":
        """Over-relaxation: this point + RELAXATION (new - this point)."""
        a, b, c, d = (
            (torch.lerp(start[0], end[0], RELAXATION), torch.lerp(start[1], end[1], RELAXATION))
            for start, end in zip(self.corners, new.corners, strict=True)
        )
        return Point(
            torch.lerp(self.image, new.image, RELAXATION), torch.lerp(self.data, new.data, RELAXATION), (a, b, c, d)
        )


def select_images(tensor: Tensor, selected: Tensor) -> Tensor:
    """The selected images of a batch, in the layout of the projector."""
    return batch_last(tensor[selected])


def first_point(problem: Problem) -> Point:
    """The clipped FBP, with dual variables of zero."""
    zero = torch.zeros_like(problem.start)
    pair: Pair = (zero, zero)
    return Point(problem.start, torch.zeros_like(problem.sinogram), (pair, pair, pair, pair))


def step(problem: Problem, point: Point) -> Point:
    """One iteration without relaxation. The new point is feasible: image >= 0 and |corner| <= weight / 4."""
    slope = problem.adjoint(point.data) + corner_gradients_adjoint(point.corners)
    image = (point.image - problem.primal_step * slope).clamp_min(0)
    extrapolated = 2 * image - point.image

    data = prox_data(problem, point.data + problem.dual_step * problem.forward(extrapolated))
    corner_step = problem.dual_step / CORNERS_NORM_SQUARED
    bound = problem.weight / CORNERS
    a, b, c, d = (
        project(dual[0] + corner_step * gradient[0], dual[1] + corner_step * gradient[1], bound)
        for dual, gradient in zip(point.corners, corner_gradients(extrapolated), strict=True)
    )
    return Point(image, data, (a, b, c, d))


def _rms(x: Tensor) -> Tensor:
    return x.square().mean((1, 2, 3), keepdim=True).sqrt()


def project(down: Tensor, right: Tensor, bound: Tensor) -> Pair:
    """Projects the vectors (down, right) onto the vectors of length at most `bound`."""
    shrink = bound / torch.maximum(magnitude((down, right)), bound)
    return down * shrink, right * shrink


def prox_data(problem: Problem, dual: Tensor) -> Tensor:
    """The proximal map of the conjugate of D(y, norm z) / (h norm^2), computed with the proximal map of D*."""
    unit = 1 / (problem.curvature * problem.norm)
    return unit * problem.fidelity.prox_conjugate(problem.sinogram, dual / unit, problem.dual_step * problem.curvature)


def relative_gap(problem: Problem, point: Point) -> Tensor:
    """The duality gap for the box 0 <= z <= 2 max x, divided by the objective, (batch,).

    gap = primal - dual,  primal = D(y, A x) / (h norm^2) + w TV(x),
    dual = -D*(h norm p) / (h norm^2) - 2 max x sum max(0, -s),
    s = A^T p / norm + grad^T q, with p = point.data and q = point.corners.
    """
    scale = 1 / (problem.curvature.flatten() * problem.norm**2)
    misfit = problem.fidelity.value(problem.sinogram, problem.operator.forward(point.image))
    primal = scale * misfit + problem.weight.flatten() * total_variation(point.image)
    slope = problem.adjoint(point.data) + corner_gradients_adjoint(point.corners)
    box_term = 2 * point.image.amax((1, 2, 3)) * (-slope).clamp_min(0).sum((1, 2, 3))
    conjugate = problem.fidelity.conjugate(problem.sinogram, point.data * problem.curvature * problem.norm)
    return (primal + scale * conjugate + box_term) / primal.clamp_min(torch.finfo(primal.dtype).tiny)
