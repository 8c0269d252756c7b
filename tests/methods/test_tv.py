import math

import numpy as np
import pytest
import torch

from bayescade.data.noise import Noise, add_noise, common_noise
from bayescade.data.sources import image_source
from bayescade.errors import UserError
from bayescade.methods import tv
from bayescade.metrics.psnr import psnr
from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.physics.fidelity import LeastSquares, PoissonLikelihood, WeightedLeastSquares
from bayescade.physics.finite_differences import (
    CORNERS_NORM_SQUARED,
    corner_gradients,
    corner_gradients_adjoint,
    total_variation,
)
from bayescade.physics.geometry import FanBeam, ParallelBeam
from bayescade.physics.linalg import dense, norm
from bayescade.physics.tv_weight import (
    CONSTANTS,
    constant,
    default_weight,
    gradient_noise,
    mean_entry,
)
from bayescade.projectors import ray_transform
from bayescade.testing import check_method

SMALL = ParallelBeam(np.arange(12) * math.pi / 12, bins=24, image_shape=(16, 16))


def square(size: int = 16) -> torch.Tensor:
    image = torch.zeros(1, 1, size, size)
    image[..., size // 4 : size // 2 + 2, size // 3 : size - 3] = 1
    return image


def test_conforms() -> None:
    check_method(tv.build(SMALL, tv.Settings(iterations=50)), SMALL)


def test_the_gradient_and_its_transpose() -> None:
    x, q = torch.randn(2, 1, 5, 7).double(), torch.randn(4, 2, 2, 1, 5, 7).double()
    corners = tuple((down, right) for down, right in q)
    left = sum((g[0] * p[0] + g[1] * p[1]).sum() for g, p in zip(corner_gradients(x), corners, strict=True))
    torch.testing.assert_close(left, (x * corner_gradients_adjoint(corners)).sum())


def test_total_variation_does_not_mind_how_an_image_is_turned() -> None:
    x = torch.rand(1, 1, 9, 9)
    for other in (x.flip(-1), x.flip(-2), x.transpose(-1, -2), x.rot90(1, (-2, -1))):
        torch.testing.assert_close(total_variation(other), total_variation(x))
    assert float(total_variation(square())[0]) == pytest.approx(2 * (6 + 8), abs=1), "about the length of the edge"


def test_the_norm_of_the_gradients_is_below_its_bound() -> None:
    x = torch.randn(1, 1, 40, 40).double()
    for _ in range(200):
        x = corner_gradients_adjoint(corner_gradients(x))
        size = float(x.norm())
        x = x / size
    assert 0.95 * CORNERS_NORM_SQUARED < size < CORNERS_NORM_SQUARED


def objective(method: tv.TV, fidelity, sinogram: torch.Tensor, weight: float, image: torch.Tensor) -> torch.Tensor:
    scale = 1 / (fidelity.curvature(sinogram).mean((1, 2, 3)) * method.norm**2)
    return scale * fidelity.value(sinogram, method.operator(image)) + weight * total_variation(image)


FIDELITIES = {
    "least-squares": LeastSquares(),
    "weighted": WeightedLeastSquares(torch.linspace(0.5, 2, 24)),
    "poisson": PoissonLikelihood(2000.0, 0.05),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIDELITIES)
def test_no_image_nearby_is_better(name: str) -> None:
    """The objective at the solution is the least among many perturbed images, and the gap bounds how far it can fall."""
    fidelity = FIDELITIES[name]
    method = tv.build(SMALL, tv.Settings())
    sinogram = add_noise(method.operator(square()), common_noise(0.02), seed=0)
    weight = 3e-4
    weights = torch.full((1, 1, 1, 1), weight)
    image, gap = tv.solve(method.operator, method.norm, fidelity, sinogram, weights, tolerance=1e-4, iterations=20000)
    assert float(gap) < 1e-4
    least = objective(method, fidelity, sinogram, weight, image)
    generator = torch.Generator().manual_seed(0)
    for size in (1e-3, 1e-2, 1e-1):
        others = (image + size * torch.randn(200, 1, 16, 16, generator=generator)).clamp_min(0)
        values = objective(method, fidelity, sinogram.expand(200, -1, -1, -1), weight, others)
        assert float(values.min()) > float(least) * (1 - 2e-4)
    smoother = objective(method, fidelity, sinogram, weight, 0.98 * image + 0.02 * square())
    assert float(smoother) > float(least) * (1 - 2e-4)


@pytest.mark.slow
def test_without_weight_it_is_non_negative_least_squares() -> None:
    """As the weight goes to 0, the solution fits the data as well as the exact non-negative solution does."""
    method = tv.build(SMALL, tv.Settings())
    sinogram = add_noise(method.operator(square()), common_noise(0.05), seed=0)
    matrix = dense(ray_transform(SMALL, dtype=torch.float64)).numpy()
    from scipy.optimize import nnls

    _, residual = nnls(matrix, sinogram.flatten().double().numpy())
    weights = torch.full((1, 1, 1, 1), 1e-7)
    image, _ = tv.solve(
        method.operator, method.norm, LeastSquares(), sinogram, weights, tolerance=1e-4, iterations=30000
    )
    ours = float((method.operator(image) - sinogram).norm())
    assert ours == pytest.approx(float(residual), rel=2e-3)


def test_a_constant_is_denoised_to_its_mean() -> None:
    """A is the identity (one view of aligned bins); a ramp of 1 to 9 is flat from a weight of 4 + 3 + 2 + 1 on."""
    geometry = ParallelBeam([0.0], bins=9, image_shape=(9, 1))
    method = tv.build(geometry, tv.Settings(weight=12.0, tolerance=1e-5, iterations=20000))
    data = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8, 9]).reshape(1, 1, 1, 9)
    torch.testing.assert_close(method(data).image, torch.full((1, 1, 9, 1), 5.0), rtol=1e-3, atol=1e-3)


def test_one_dimensional_denoising_in_closed_form() -> None:
    """min 1/2 ||x - y||^2 + w TV(x) of a noiseless step of heights 0 and 1 on n pixels each: they move w / n together."""
    geometry = ParallelBeam([0.0], bins=8, image_shape=(8, 1))
    step = torch.tensor([1.0] * 4 + [3.0] * 4).reshape(1, 1, 1, 8)
    image = tv.build(geometry, tv.Settings(weight=0.4, tolerance=1e-6, iterations=3000))(step).image.flatten()
    torch.testing.assert_close(image, torch.tensor([1.1] * 4 + [2.9] * 4), rtol=1e-3, atol=1e-3)


def test_a_result_does_not_depend_on_its_neighbours() -> None:
    method = tv.build(SMALL, tv.Settings(weight=2e-4))
    images = torch.cat([square(), 0.1 * square().transpose(-1, -2), torch.rand(1, 1, 16, 16)])
    sinogram = add_noise(method.operator(images), Noise(), seed=0)
    together = method(sinogram).image
    for index in range(3):
        alone = method(sinogram[index : index + 1]).image
        torch.testing.assert_close(together[index : index + 1], alone, rtol=1e-3, atol=1e-4)


def test_the_result_scales_with_the_data() -> None:
    method = tv.build(SMALL, tv.Settings(tolerance=1e-4, iterations=20000))
    sinogram = add_noise(method.operator(square()), Noise(), seed=0)
    torch.testing.assert_close(method(1000 * sinogram).image / 1000, method(sinogram).image, rtol=0, atol=2e-3)


def test_nothing_measured_gives_nothing() -> None:
    result = tv.build(SMALL, tv.Settings())(torch.zeros(2, 1, *SMALL.sinogram_shape))
    assert result.warning is None
    assert float(result.image.abs().max()) == 0


def test_says_when_it_did_not_converge() -> None:
    sinogram = ray_transform(SMALL)(square())
    result = tv.build(SMALL, tv.Settings(iterations=3))(sinogram)
    assert result.warning is not None
    assert "1 of 1 images did not converge in 3 iterations" in result.warning
    assert tv.build(SMALL, tv.Settings(weight=1e-3))(sinogram).warning is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": -1.0}, "weight: expected"),
        ({"fidelity": "huber"}, "least-squares, weighted, poisson"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"iterations": 0}, "iterations"),
    ],
)
def test_bad_settings_are_named(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tv.Settings(**change)


@pytest.mark.parametrize("geometry", [case_geometry("sparse-8"), case_geometry("limited-90"), SMALL])
def test_the_weight_is_the_noise_in_the_gradient(geometry: ParallelBeam) -> None:
    """median_j n_j with the exact columns of A, against the rule's estimate of them."""
    operator = ray_transform(geometry)
    matrix = operator._pair.transpose  # type: ignore[attr-defined]
    squares = torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), matrix.values() ** 2, matrix.shape)
    ones = torch.ones(geometry.views * geometry.bins)
    exact = (squares @ ones).sqrt().median()
    rule = (
        (operator.adjoint(torch.ones(1, 1, *geometry.sinogram_shape)) * mean_entry(operator.geometry)).sqrt().median()
    )
    assert float(rule) == pytest.approx(float(exact), rel=0.1)


def test_the_rule_follows_noise_and_units() -> None:
    operator = ray_transform(SMALL)
    sinogram = add_noise(operator(square()), common_noise(0.05), seed=0)
    unit = gradient_noise(operator, norm(operator), LeastSquares(), sinogram)
    torch.testing.assert_close(gradient_noise(operator, norm(operator), LeastSquares(), 7 * sinogram), 7 * unit)
    assert constant(SMALL) == 0.4
    near = ParallelBeam(np.deg2rad(np.arange(105) + 0.5), bins=183, image_shape=(128, 128))
    assert constant(near) == pytest.approx(0.14, abs=1e-3), "half way between 90 and 120 degrees"
    again = case_geometry("limited-90")
    rounded = ParallelBeam(np.array(again.angles) + 1e-14, again.bins, again.bin_width)
    assert constant(rounded) == CONSTANTS["limited-90"]
    constants = {"sparse-8": 0.4, "sparse-16": 0.2, "sparse-32": 0.4, "sparse-64": 0.6, "sparse-128": 0.6}
    constants |= {"limited-90": 0.12, "limited-120": 0.16, "limited-150": 0.3}
    assert {case: constant(case_geometry(case)) for case in PAPER_CASES} == constants
    poisson = PoissonLikelihood(1e4, 0.05)
    weighted = WeightedLeastSquares(poisson.curvature(sinogram))
    torch.testing.assert_close(*(default_weight(operator, norm(operator), f, sinogram) for f in (poisson, weighted)))


@pytest.mark.slow
def test_better_than_fbp_at_32_views() -> None:
    method = tv.build(case_geometry("sparse-32"), tv.Settings())
    truth = image_source("ellipses", (128, 128), seed=0, split="validation").images(0, 3, 1)
    sinogram = add_noise(method.operator(truth), Noise(), seed=0)
    scores = psnr(method(sinogram).image, truth, 1.0)
    assert float(scores.min()) > float(psnr(method.operator.fbp(sinogram), truth, 1.0).max()) + 5


@pytest.mark.parametrize("fidelity", tv.FIDELITIES)
def test_counted_photons_with_every_fidelity(fidelity: str) -> None:
    noise = common_noise(photons=1e5, attenuation=0.02)
    geometry = FanBeam(
        np.arange(60) * math.pi / 30, 80, 1.5, image_shape=(64, 64), source_origin=150, source_detector=220
    )
    method = tv.build(geometry, tv.Settings(fidelity=fidelity, photons=1e5, attenuation=0.02))
    truth = image_source("random-shepp-logan", (64, 64), seed=0, split="validation").images(0, 2, 1)
    result = method(add_noise(method.operator(truth), noise, seed=0))
    assert result.warning is None
    assert float(psnr(result.image, truth, 1.0).min()) > 27


@pytest.mark.gpu
def test_cuda_equals_cpu() -> None:
    truth = image_source("ellipses", (128, 128), seed=0, split="validation").images(0, 3, 1)
    geometry = case_geometry("sparse-16")
    sinogram = add_noise(ray_transform(geometry)(truth), Noise(), seed=0)
    cpu, gpu = (tv.build(geometry, tv.Settings(), device)(sinogram).image.cpu() for device in ("cpu", "cuda"))
    torch.testing.assert_close(psnr(gpu, truth, 1.0), psnr(cpu, truth, 1.0), rtol=0, atol=0.02)
