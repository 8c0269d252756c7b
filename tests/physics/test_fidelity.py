import pytest
import scipy.special
import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.fidelity import Fidelity, LeastSquares, PoissonLikelihood, WeightedLeastSquares, wright_omega
from bayescade.physics.geometry import ParallelBeam
from bayescade.physics.operator import LinearOperator
from bayescade.physics.problem import InverseProblem
from bayescade.projectors import ray_transform
from bayescade.testing import check_fidelity

SINOGRAM = torch.rand(3, 1, 4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 20
FIDELITIES = [
    LeastSquares(),
    WeightedLeastSquares(torch.linspace(0, 2, 7, dtype=torch.float64)),
    PoissonLikelihood(photons=1000.0, attenuation=0.05),
]


@pytest.mark.parametrize("fidelity", FIDELITIES, ids=lambda f: type(f).__name__)
def test_value_and_gradient_conform(fidelity: Fidelity) -> None:
    check_fidelity(fidelity, SINOGRAM)


@pytest.mark.parametrize("fidelity", FIDELITIES, ids=lambda f: type(f).__name__)
def test_the_image_gradient_is_autograds(fidelity: Fidelity) -> None:
    geometry = ParallelBeam([0.1, 0.9, 1.7, 2.5], bins=7, image_shape=(5, 6))
    operator = ray_transform(geometry, dtype=torch.float64)
    for scale in (1.0, 50.0):
        problem = InverseProblem(operator, fidelity, scale=scale)
        x = torch.rand(3, 1, 5, 6, dtype=torch.float64, requires_grad=True)
        (expected,) = torch.autograd.grad(fidelity.value(SINOGRAM, scale * operator(x)).sum(), x)
        unit = (scale * operator.norm) ** 2 * fidelity.curvature(SINOGRAM).mean((1, 2, 3), keepdim=True)
        torch.testing.assert_close(problem.gradient(x.detach(), SINOGRAM), expected / unit)
        samples = torch.cat([x.detach(), 2 * x.detach()])  # of each image two, samples in front
        doubled = problem.gradient(2 * x.detach(), SINOGRAM)
        torch.testing.assert_close(problem.gradient(samples, SINOGRAM)[3:], doubled)


def test_least_squares_is_the_papers() -> None:
    """A'(A x - y) / ||A||^2, whatever the units."""
    geometry = ParallelBeam([0.1, 0.9, 1.7, 2.5], bins=7, image_shape=(5, 6))
    operator = ray_transform(geometry, dtype=torch.float64)
    x = torch.rand(3, 1, 5, 6, dtype=torch.float64)
    expected = operator.adjoint(operator(x) - SINOGRAM) / operator.norm**2
    torch.testing.assert_close(InverseProblem(operator).gradient(x, SINOGRAM), expected)
    scaled = InverseProblem(operator, scale=1e3)
    torch.testing.assert_close(scaled.gradient(x, 1e3 * SINOGRAM), expected)
    torch.testing.assert_close(scaled.initial(1e3 * SINOGRAM), InverseProblem(operator).initial(SINOGRAM))


def test_planes_come_after_the_gradient() -> None:
    geometry = ParallelBeam([0.1, 0.9, 1.7, 2.5], bins=7, image_shape=(5, 6))
    operator = ray_transform(geometry, dtype=torch.float64)
    problem = InverseProblem(operator, planes=(lambda x, y: 2 * x, lambda x, y: torch.ones_like(x)))
    x = torch.rand(3, 1, 5, 6, dtype=torch.float64)
    inputs = problem.inputs(x, SINOGRAM)
    assert inputs.shape[1] == problem.input_planes == 3
    torch.testing.assert_close(inputs[:, :1], problem.gradient(x, SINOGRAM))
    torch.testing.assert_close(inputs[:, 1:2], 2 * x)


class Halves(LinearOperator):
    """A x = x / 2."""

    domain_shape = range_shape = (1, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x / 2

    adjoint = forward


def test_any_operator_has_a_norm_and_a_first_image() -> None:
    """A'y / ||A||^2, which is the inverse of a multiple of the identity."""
    problem = InverseProblem(Halves())
    assert problem.norm == pytest.approx(0.5)
    y = torch.rand(2, 1, 2, 3)
    torch.testing.assert_close(problem.initial(y), 2 * y)
    other = InverseProblem(Halves(), initial_image=torch.zeros_like)
    assert not other.initial(y).any()
    for wrong in ({"scale": 0.0}, {"norm": -1.0}):
        with pytest.raises(UserError, match="expected a positive number"):
            InverseProblem(Halves(), **wrong)  # type: ignore[arg-type]


def test_poisson_is_the_negative_log_likelihood() -> None:
    """Differences of D are differences of -log p(N | z), for whole counts N, by torch.distributions."""
    photons, m = 500.0, 0.05
    counts = torch.tensor([[[[300.0, 120.0, 44.0, 7.0]]]], dtype=torch.float64)
    sinogram = -torch.log(counts / photons) / m
    z1, z2 = sinogram + 3.0, sinogram - 2.0
    fidelity = PoissonLikelihood(photons, m)

    def nll(z: torch.Tensor) -> torch.Tensor:
        return -torch.distributions.Poisson(photons * torch.exp(-m * z)).log_prob(counts).flatten(1).sum(1)

    torch.testing.assert_close(fidelity.value(sinogram, z1) - fidelity.value(sinogram, z2), nll(z1) - nll(z2))


def test_bad_weights_are_named() -> None:
    with pytest.raises(UserError, match="weights: expected"):
        WeightedLeastSquares(torch.tensor([1.0, -1.0]))
    with pytest.raises(UserError, match="photons: expected a positive count"):
        PoissonLikelihood(0)


def test_wright_omega_is_scipys() -> None:
    x = torch.cat([torch.linspace(-700, 700, 2001), torch.linspace(-3, 3, 1000)]).double()
    expected = torch.tensor(scipy.special.wrightomega(x.numpy()))
    torch.testing.assert_close(wright_omega(x), expected, rtol=1e-12, atol=0)


def test_a_dead_bin_bears_no_dual() -> None:
    fidelity = WeightedLeastSquares(torch.tensor([0.0, 1.0]))
    y, p = torch.tensor([[3.0, 3.0]]), torch.tensor([[2.0, 2.0]])
    assert fidelity.prox_conjugate(y, p, 0.5)[0, 0] == 0
    assert fidelity.conjugate(y, p).item() == float("inf")
    assert fidelity.conjugate(y, torch.tensor([[0.0, 2.0]])).item() == 2.0 * (1 + 3)
