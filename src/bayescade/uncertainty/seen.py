"""Which part of an image the data see, and which part only the prior says.

With data y = A x + n, noise of variance s^2 and image values of variance t^2, both white, the seen part of x is

    P x,    P = A'A (A'A + lambda)^-1,    lambda = s^2 / t^2:

directions with A'A >> lambda are seen, those with A'A << lambda are not. P is the matrix with which the linear estimate
answers a change of the object. lambda is a choice, so results are shown over a decade of it. The seen and the unseen part are
not orthogonal: |x|^2 = |P x|^2 + |x - P x|^2 + 2 <P x, x - P x>; the cross term is reported too.
"""

import dataclasses

from torch import Tensor

from bayescade.physics.operator import LinearOperator

MOST_ITERATIONS = 500
TOLERANCE = 1e-4  # of the residual, relative


def seen(
    operator: LinearOperator,
    images: Tensor,  # (batch, 1, height, width)
    ratio: float,  # lambda
) -> Tensor:
    """P x for every image: x - lambda z with (A'A + lambda) z = x, by conjugate gradients."""
    z = images * 0
    residual = images.clone()
    direction = residual.clone()
    energy = dot(residual, residual)
    first = energy.clone()
    for _ in range(MOST_ITERATIONS):
        if bool((energy <= TOLERANCE**2 * first).all()):
            break
        product = operator.adjoint(operator(direction)) + ratio * direction
        step = energy / dot(direction, product).clamp_min(1e-30)
        z = z + step * direction
        residual = residual - step * product
        after = dot(residual, residual)
        direction = residual + after / energy.clamp_min(1e-30) * direction
        energy = after
    return images - ratio * z


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The scalar product of every image, (batch, 1, 1, 1)."""
    return (a * b).sum((1, 2, 3), keepdim=True)


@dataclasses.dataclass(frozen=True)
class Shares:
    """How the energy of an image divides; the three sum to 1."""

    seen: float
    unseen: float
    cross: float  # 2 <P x, x - P x>


def shares(operator: LinearOperator, images: Tensor, ratio: float) -> list[Shares]:
    """The shares of every image."""
    part = seen(operator, images, ratio)
    rest = images - part
    total = dot(images, images).clamp_min(1e-30)
    energies = [
        (values / total).flatten().tolist() for values in (dot(part, part), dot(rest, rest), 2 * dot(part, rest))
    ]
    return [Shares(*values) for values in zip(*energies, strict=True)]
