"""Functions of any linear operator: norm, test of the adjoint, dense matrix."""

from typing import Protocol

import torch
from torch import Tensor


class LinearMap(Protocol):
    """The attributes and methods of an operator that the functions of this file use."""

    domain_shape: tuple[int, ...]
    range_shape: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype

    def forward(self, x: Tensor) -> Tensor:
        """A x."""

    def adjoint(self, y: Tensor) -> Tensor:
        """A' y."""


def norm(
    operator: LinearMap,
    tolerance: float = 1e-5,
    most: int = 300,  # largest number of iterations
) -> float:
    """Spectral norm ||A|| = max ||A x|| / ||x|| to a relative `tolerance`; never its square.

    Lanczos iteration on A'A with full reorthogonalisation from a fixed start vector, so the same operator always gives the
    same number. It stops when the residual ||A'A v - s^2 v|| of the largest Ritz pair is below `tolerance` s^2. Then A has a
    singular value within `tolerance` s / 2 of s. If the two largest singular values differ by less than the tolerance, the
    result may be the second largest.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(operator.domain_shape, generator=generator, dtype=torch.float64)
    shape = operator.domain_shape
    vectors = [(start / start.norm()).flatten().to(operator.device)]
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    largest = 0.0
    for _ in range(min(most, start.numel())):
        product = operator.adjoint(operator.forward(vectors[-1].to(operator.dtype).reshape(1, *shape)))
        w = product.flatten().to(torch.float64)
        diagonal.append(float(vectors[-1] @ w))
        basis = torch.stack(vectors)
        for _ in range(2):  # twice is enough (Parlett)
            w = w - basis.T @ (basis @ w)
        remainder = float(w.norm())
        values, ritz = torch.linalg.eigh(_tridiagonal(diagonal, off_diagonal))
        largest = float(values[-1])
        residual = remainder * abs(float(ritz[-1, -1]))
        if largest <= 0 or residual <= tolerance * largest:
            break
        off_diagonal.append(remainder)
        vectors.append(w / remainder)
    return max(largest, 0.0) ** 0.5


def norms(
    operator: LinearMap,
    count: int,
    tolerance: float = 1e-5,
    most: int = 100,
) -> Tensor:
    """Spectral norms of a block-diagonal operator whose batch of `count` images goes through as many blocks, (count,), float64.

    Lanczos iteration as in `norm`, for all blocks at once, until the residuals of all are below `tolerance` s^2.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(operator.domain_shape, generator=generator, dtype=torch.float64).flatten().to(operator.device)
    vectors = [(start / start.norm()).expand(count, -1)]  # (count, pixels) each
    matrix = torch.zeros(count, most, most, dtype=torch.float64)
    largest = torch.zeros(count, dtype=torch.float64)
    for number in range(min(most, len(start))):
        batch = vectors[-1].to(operator.dtype).reshape(count, *operator.domain_shape)
        w = operator.adjoint(operator.forward(batch)).flatten(1).to(torch.float64)
        matrix[:, number, number] = (vectors[-1] * w).sum(1).cpu()
        basis = torch.stack(vectors, 1)  # (count, vectors, pixels)
        for _ in range(2):
            w = w - torch.einsum("nkp,nk->np", basis, torch.einsum("nkp,np->nk", basis, w))
        rest = w.norm(dim=1)
        values, ritz = torch.linalg.eigh(matrix[:, : number + 1, : number + 1])
        largest = values[:, -1].clamp_min(0)
        residual = rest.cpu() * ritz[:, -1, -1].abs()
        if number + 1 == most or bool((residual <= tolerance * largest).all()):
            break
        matrix[:, number, number + 1] = matrix[:, number + 1, number] = rest.cpu()
        vectors.append(torch.where(rest[:, None] > 0, w / rest.clamp_min(torch.finfo(rest.dtype).tiny)[:, None], 0.0))
    return largest.sqrt()


def _tridiagonal(diagonal: list[float], off_diagonal: list[float]) -> Tensor:
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if off_diagonal:
        off = torch.tensor(off_diagonal, dtype=torch.float64)
        matrix = matrix + torch.diag(off, 1) + torch.diag(off, -1)
    return matrix


def adjoint_error(
    operator: LinearMap,
    x: Tensor,  # (batch, *domain_shape)
    y: Tensor,  # (batch, *range_shape)
) -> float:
    """|<A x, y> - <x, A' y>| / (||A x|| ||y||), with each batch as one vector; the inner products are in float64."""
    forward, adjoint = operator.forward(x), operator.adjoint(y)
    left, right = _dot(forward, y), _dot(x, adjoint)
    scale = (_dot(forward, forward) * _dot(y, y)) ** 0.5
    return abs(left - right) / scale if scale > 0 else abs(left - right)


def _dot(a: Tensor, b: Tensor) -> float:
    return float(a.flatten().to(torch.float64) @ b.flatten().to(torch.float64))


def dense(
    operator: LinearMap,
) -> Tensor:
    """The matrix of the operator, (range size, domain size): for small operators, in tests."""
    size = torch.Size(operator.domain_shape).numel()
    basis = torch.eye(size, dtype=operator.dtype, device=operator.device).reshape(size, *operator.domain_shape)
    return operator.forward(basis).reshape(size, -1).T
