"""Total variation by a convergent primal-dual iteration.

    minimise  D(y, A x) / (h ||A||^2) + w TV(x)   over images x >= 0,

D is the data fidelity and h its mean curvature (1 for least squares). TV is the isotropic total variation for pixel
size 1: the mean over four gradients, one per corner of a pixel (`finite_differences`). So the weight w has the same
meaning for every scanner. The algorithm is that of Chambolle and Pock (2011) with over-relaxation (Condat 2013). If the
duality gap for the box 0 <= z <= 2 max x is small relative to the objective, the objective of every image z in that box is at
least the objective of x minus the gap.
"""

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

from bayescade.physics.fidelity import Fidelity
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

RELAXATION = 1.9
# Primal step / dual step, in units of (RMS of the image) / weight. The iteration converges for any positive value; with this
# value the gap of most scans is small soon.
BALANCE = 0.2


class Projector(Protocol):
    """Line integrals of images and their transpose."""

    def forward(self, x: Tensor) -> Tensor:
        """A x."""

    def adjoint(self, y: Tensor) -> Tensor:
        """A' y."""


def batch_last(tensor: Tensor) -> Tensor:
    """The same values with the batch as the fastest dimension in memory, the layout that `MatrixProjector` needs."""
    return tensor.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Data and step sizes of a batch; the first dimension of each tensor is the batch."""

    operator: Projector
    norm: float | Tensor  # ||A||, or one for each image, (batch, 1, 1, 1)
    fidelity: Fidelity
    sinogram: Tensor
    weight: Tensor  # (batch, 1, 1, 1)
    curvature: Tensor  # (batch, 1, 1, 1) mean curvature h of the fidelity
    start: Tensor  # first images, not negative
    primal_step: Tensor  # (batch, 1, 1, 1)
    dual_step: Tensor  # (batch, 1, 1, 1), for the data; for the gradients: dual_step / 32

    @classmethod
    def with_steps(
        cls,
        operator: Projector,
        operator_norm: float | Tensor,
        fidelity: Fidelity,
        sinogram: Tensor,
        weight: Tensor,
        start: Tensor,
        balance: float = BALANCE,
    ) -> "Problem":
        """Chooses the primal step t and the dual step s.

        The iteration converges if t s ||K||^2 < 1 for K = (A / norm, gradients / sqrt(32)). ||K||^2 <= 2, because
        ||A / norm|| = 1 and ||gradients||^2 / 32 <= 1; so 2 t s = 0.999. `balance` determines t / s.
        """
        back_projection = operator.adjoint(sinogram) / operator_norm**2  # for images whose FBP is nowhere positive
        image_rms = torch.maximum(_rms(start), 0.01 * _rms(back_projection)).clamp_min(1e-12)
        ratio = balance * image_rms / weight
        dual_step = (1 / (2 * ratio)).sqrt()
        curvature = fidelity.curvature(sinogram).mean((1, 2, 3), keepdim=True)
        return cls(
            operator, operator_norm, fidelity, sinogram, weight, curvature, start, 0.999 * ratio * dual_step, dual_step
        )

    def select(self, selected: Tensor) -> "Problem":
        """The problem of the selected images."""
        return Problem(
            self.operator,
            self.norm if isinstance(self.norm, float) else select_images(self.norm, selected),
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


@torch.no_grad()
def after_iterations(problem: Problem, iterations: int) -> Tensor:
    """The images after a fixed number of iterations, converged or not."""
    point = first_point(problem)
    image = problem.start
    for _ in range(iterations):
        new_point = step(problem, point)
        image, point = new_point.image, point.relaxed(new_point)
    return image


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
    scale = 1 / (problem.curvature * problem.norm**2).flatten()
    misfit = problem.fidelity.value(problem.sinogram, problem.operator.forward(point.image))
    primal = scale * misfit + problem.weight.flatten() * total_variation(point.image)
    slope = problem.adjoint(point.data) + corner_gradients_adjoint(point.corners)
    box_term = 2 * point.image.amax((1, 2, 3)) * (-slope).clamp_min(0).sum((1, 2, 3))
    conjugate = problem.fidelity.conjugate(problem.sinogram, point.data * problem.curvature * problem.norm)
    return (primal + scale * conjugate + box_term) / primal.clamp_min(torch.finfo(primal.dtype).tiny)
