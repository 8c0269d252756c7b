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
    tolerance: float = 1e-6,
    most: int = 100,  # largest number of iterations
) -> Tensor:
    """Spectral norms of an operator without negative entries whose batch of `count` images goes through as many scans.

    (count,), float64. Power iteration on A'A from a constant image. The entries of A'A are not negative, so it has an
    eigenvector of the largest eigenvalue without negative entries, and a constant image is not orthogonal to it (Perron and
    Frobenius). Stops when all norms change by less than `tolerance` of themselves.
    """
    vectors = torch.ones((count, *operator.domain_shape), dtype=operator.dtype, device=operator.device)
    largest = torch.zeros(count, dtype=torch.float64, device=operator.device)
    for _ in range(most):
        products = operator.adjoint(operator.forward(vectors))
        before = largest
        largest = (products.flatten(1).double().norm(dim=1) / vectors.flatten(1).double().norm(dim=1)).sqrt()
        if bool(((largest - before).abs() <= tolerance * largest).all()):
            break
        peaks = products.flatten(1).amax(1).clamp_min(torch.finfo(products.dtype).tiny)
        vectors = products / peaks.reshape(-1, *[1] * len(operator.domain_shape))
    return largest.cpu()


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
