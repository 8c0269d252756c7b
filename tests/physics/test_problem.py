"""Inverse problems: the gradient for data of any shape, planes of samples, and what cannot be a problem."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.fidelity import PoissonLikelihood
from bayescade.physics.operator import LinearOperator
from bayescade.physics.problem import InverseProblem


class Matrix(LinearOperator):
    """Images of 3 x 4 pixels to data of any shape."""

    domain_shape = (1, 3, 4)
    dtype = torch.float64

    def __init__(self, range_shape: tuple[int, ...] = (1, 2, 5)):
        self.range_shape = range_shape
        size = torch.Size(range_shape).numel()
        self.matrix = torch.rand(size, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(-3) @ self.matrix.T).unflatten(-1, self.range_shape)

    def adjoint(self, y: Tensor) -> Tensor:
        return (y.flatten(-len(self.range_shape)) @ self.matrix).unflatten(-1, self.domain_shape)


@pytest.mark.parametrize("range_shape", [(7,), (1, 2, 5), (2, 1, 3, 2)])
@pytest.mark.parametrize("samples", [1, 3])
def test_the_gradient_for_data_of_any_shape(range_shape: tuple[int, ...], samples: int) -> None:
    """Of every image and sample as by itself."""
    problem = InverseProblem(Matrix(range_shape), PoissonLikelihood(1000.0, 0.05), scale=2.0)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand((samples * 3, 1, 3, 4), generator=generator, dtype=torch.float64)
    y = 5 * torch.rand((3, *range_shape), generator=generator, dtype=torch.float64)
    alone = torch.cat([problem.gradient(x[i : i + 1], y[i % 3 : i % 3 + 1]) for i in range(len(x))])
    torch.testing.assert_close(problem.gradient(x, y), alone)


def test_a_plane_of_the_data_is_that_of_every_sample() -> None:
    operator = Matrix()
    problem = InverseProblem(operator, planes=[lambda x, y: operator.adjoint(y)])  # type: ignore[arg-type]
    assert problem.planes == tuple(problem.planes)
    y = torch.rand((2, 1, 2, 5), dtype=torch.float64)
    inputs = problem.inputs(torch.rand((6, 1, 3, 4), dtype=torch.float64), y)
    torch.testing.assert_close(inputs[:, 1:], operator.adjoint(y).repeat(3, 1, 1, 1))


class Flat(Matrix):
    domain_shape = (3, 4)


class Single(Matrix):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).float()


class Named(Matrix):
    device = "cpu"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InverseProblem(torch.ones(3)), "expected a LinearOperator, got Tensor"),
        (lambda: InverseProblem(Flat()), r"expected images of shape \(1, height, width\), got domain_shape \(3, 4\)"),
        (lambda: InverseProblem(Single()), "expected forward to give shape .* torch.float64 .* got .* torch.float32"),
        (lambda: InverseProblem(Named()), "expected a torch.device"),
        (lambda: InverseProblem(Matrix(), scale="2"), "scale: expected a number, got '2'"),
        (lambda: InverseProblem(Matrix(), scale=-1.0), "scale: expected a positive number"),
        (lambda: InverseProblem(Matrix(), planes=lambda x, y: x), r"expected a tuple of functions, e.g. planes=\(f,\)"),
        (
            lambda: InverseProblem(Matrix(), planes=(lambda x, y: y,)).inputs(
                torch.rand(2, 1, 3, 4, dtype=torch.float64), torch.rand(2, 1, 2, 5, dtype=torch.float64)
            ),
            r"expected a plane of shape \(2, 1, 3, 4\), got \(2, 1, 2, 5\)",
        ),
        (
            lambda: InverseProblem(Matrix(), initial_image=lambda y: y[:1]).initial(torch.rand(2, 1, 2, 5)),
            r"expected first images of shape \(2, 1, 3, 4\), got \(1, 1, 2, 5\)",
        ),
    ],
)
def test_what_cannot_be_a_problem_is_named(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
