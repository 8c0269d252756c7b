import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bayescade.errors import UserError
from bayescade.phantoms._raster import raster
from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.physics.linalg import adjoint_error, dense, norm
from bayescade.projectors import ray_transform
from bayescade.testing import check_operator
from tests.geometries import geometries, touches_little

# The spectral norms of the paper's eight operators, measured independently.
PROJECTORS = ("matrix", "matrix-free")
both = pytest.mark.parametrize("projector", PROJECTORS)
NORMS = dict(zip(PAPER_CASES, [31.60, 44.71, 63.23, 89.42, 126.46, 108.74, 123.47, 137.04], strict=True))


def joseph_by_hand(geometry: Geometry) -> np.ndarray:
    """The matrix, entry by entry, from the symmetric form of Joseph's weights: max(0, 1 - |x - x_i| / p) p / |d|."""
    height, width = geometry.image_shape
    points, directions = geometry.rays(0, geometry.views)
    p = geometry.pixel_size
    matrix = np.zeros((geometry.views * geometry.bins, height * width))
    for row, (point, direction) in enumerate(zip(points.reshape(-1, 2), directions.reshape(-1, 2), strict=True)):
        major = 1 if abs(direction[1]) >= abs(direction[0]) else 0
        for i in range(height):
            for j in range(width):
                centre = np.array([(i - (height - 1) / 2) * p, (j - (width - 1) / 2) * p])
                t = (centre[major] - point[major]) / direction[major]
                distance = abs(point[1 - major] + t * direction[1 - major] - centre[1 - major])
                matrix[row, i * width + j] = max(0, 1 - distance / p) * p / abs(direction[major])
    return matrix


@given(geometries)
@settings(max_examples=60, deadline=None)
def test_the_entries_are_josephs(geometry: Geometry) -> None:
    expected = joseph_by_hand(geometry)
    for projector in PROJECTORS:
        operator = ray_transform(geometry, dtype=torch.float64, projector=projector)
        np.testing.assert_allclose(dense(operator).numpy(), expected, atol=1e-10)


@given(geometries, st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_the_adjoint_is_the_exact_transpose(geometry: Geometry, seed: int) -> None:
    """Single precision is asked about images of one sign: with both, a lone ray can sum to nearly nothing, and the mismatch,
    which is relative to |A x|, then shows how single precision cancels and not how A and A' differ."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 1, *geometry.image_shape, generator=generator, dtype=torch.float64)
    y = torch.randn(2, 1, *geometry.sinogram_shape, generator=generator, dtype=torch.float64)
    assume(not touches_little(ray_transform(geometry, dtype=torch.float64), x.abs(), geometry.pixel_size))
    for projector in PROJECTORS:
        assert adjoint_error(ray_transform(geometry, dtype=torch.float64, projector=projector), x, y) < 1e-12
        assert adjoint_error(ray_transform(geometry, projector=projector), x.abs().float(), y.float()) < 1e-6


@both
@pytest.mark.parametrize("case", ["sparse-8", "limited-90"])
def test_paper_geometries_conform(case: str, projector: str) -> None:
    check_operator(ray_transform(case_geometry(case), projector=projector))


@both
@pytest.mark.parametrize(
    "geometry",
    [
        ParallelBeam([0.0, 0.4, math.pi / 4, 2.0], bins=9, image_shape=(6, 6)),
        ParallelBeam([1.1], bins=5, bin_width=0.8, offset=0.3, pixel_size=1.5, image_shape=(3, 7)),
        FanBeam([0.2, 2.9], bins=6, image_shape=(4, 5), source_origin=9, source_detector=14),
    ],
)
def test_small_geometries_conform_with_numerical_derivatives(geometry: Geometry, projector: str) -> None:
    check_operator(
        ray_transform(geometry, dtype=torch.float64, projector=projector), dtype=torch.float64, gradients=True
    )


@both
def test_works_under_function_transforms(projector: str) -> None:
    geometry = ParallelBeam([0.1, 1.2], bins=6, image_shape=(4, 4))
    operator = ray_transform(geometry, dtype=torch.float64, projector=projector)
    x = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(operator.forward)(x), operator(x))
    _, tangent = torch.func.jvp(operator.forward, (x,), (x + 1,))
    torch.testing.assert_close(tangent, operator(x + 1))


@pytest.mark.parametrize("case", PAPER_CASES)
def test_norm_of_the_papers_operators(case: str) -> None:
    assert norm(ray_transform(case_geometry(case))) == pytest.approx(NORMS[case], abs=0.01)


@given(geometries)
@settings(max_examples=50, deadline=None)
def test_norm_is_the_dense_one(geometry: Geometry) -> None:
    operator = ray_transform(geometry, dtype=torch.float64)
    exact = float(torch.linalg.matrix_norm(dense(operator), 2))
    assert norm(operator, 1e-9) == pytest.approx(exact, rel=1e-6, abs=1e-12)
    assert norm(operator) == pytest.approx(exact, rel=1e-2, abs=1e-12)  # or the one beside it
    assert norm(operator) == norm(operator)


def analytic_sinogram(ellipse: np.ndarray, geometry: Geometry, radius: float) -> np.ndarray:
    """Line integrals of an ellipse: 2 v a b sqrt(r^2 - d^2) / r^2, r^2 = (a cos)^2 + (b sin)^2 in the ellipse's frame."""
    value, a, b, x, y, rotation = ellipse * np.array([1, radius, radius, radius, radius, 1])
    angle, position = np.asarray(geometry.angles)[:, None], geometry.bin_positions()[None]
    if isinstance(geometry, FanBeam):
        fan = np.arctan(position / geometry.source_detector)
        angle, position = angle - fan, geometry.source_origin * np.sin(fan)
    distance = position - x * np.cos(angle) - y * np.sin(angle)
    r2 = (a * np.cos(angle - rotation)) ** 2 + (b * np.sin(angle - rotation)) ** 2
    return value * 2 * a * b * np.sqrt(np.maximum(r2 - distance**2, 0)) / r2


BASE = case_geometry("sparse-32")


@both
@pytest.mark.parametrize(
    "geometry",
    [
        BASE,
        case_geometry("limited-120"),
        ParallelBeam(BASE.angles, BASE.bins, BASE.bin_width, 1.7),
        FanBeam(np.arange(50) * 0.12, 220, source_origin=200, source_detector=300),
        FanBeam(np.arange(50) * 0.12, 300, 0.9, 2.3, source_origin=120, source_detector=140),
    ],
)
def test_line_integrals_are_those_of_ellipses(geometry: Geometry, projector: str) -> None:
    """Against the closed form, within 1 % in relative L2; the raster is supersampled, so that it is the area average."""
    ellipses = np.array([[0.8, 0.7, 0.5, 0.1, -0.2, 0.5], [0.5, 0.4, 0.6, -0.3, 0.3, 1.3]])
    fine = raster(ellipses[None], (128, 128), supersample=8)
    image = torch.nn.functional.avg_pool2d(fine, 8)
    computed = ray_transform(geometry, dtype=torch.float64, projector=projector)(image)[0, 0].numpy()
    radius = 127 / 2  # the grid's coordinate 1 is the centre of the last pixel
    exact = sum(analytic_sinogram(ellipse, geometry, radius) for ellipse in ellipses)
    assert np.linalg.norm(computed - exact) / np.linalg.norm(exact) < 0.01


def test_the_axes_are_those_of_the_convention() -> None:
    """One bright pixel shows in the bin at x cos t + y sin t."""
    geometry = ParallelBeam([0.0, math.pi / 2], bins=11, image_shape=(11, 7))
    image = torch.zeros(1, 1, 11, 7)
    image[0, 0, 8, 1] = 1  # x = 3, y = -2
    sinogram = ray_transform(geometry)(image)[0, 0]
    assert sinogram[0].argmax() == 5 + 3
    assert sinogram[1].argmax() == 5 - 2


def test_a_distant_source_makes_a_parallel_beam() -> None:
    angles, distance = np.arange(7) * 0.8, 1e7
    far = FanBeam(angles, 61, 0.9, 0.4, source_origin=distance, source_detector=distance, image_shape=(40, 33))
    fan = ray_transform(far, dtype=torch.float64)
    parallel = ray_transform(ParallelBeam(angles, 61, 0.9, 0.4, image_shape=(40, 33)), dtype=torch.float64)
    x = torch.rand(1, 1, 40, 33, dtype=torch.float64)
    torch.testing.assert_close(fan(x), parallel(x), rtol=1e-4, atol=1e-3)


def test_offset_moves_the_detector() -> None:
    image = torch.rand(1, 1, 9, 9)
    plain = ray_transform(ParallelBeam([0.3], bins=21, image_shape=(9, 9)))(image)
    moved = ray_transform(ParallelBeam([0.3], bins=21, offset=2.0, image_shape=(9, 9)))(image)
    torch.testing.assert_close(moved[..., :-2], plain[..., 2:])


@both
def test_wrong_shapes_and_types_are_named(projector: str) -> None:
    operator = ray_transform(case_geometry("sparse-8"), projector=projector)
    with pytest.raises(UserError, match=r"image: expected shape \(batch, 1, 128, 128\), got \(1, 1, 64, 64\)"):
        operator(torch.zeros(1, 1, 64, 64))
    with pytest.raises(UserError, match=r"sinogram: expected shape"):
        operator.adjoint(torch.zeros(1, 1, 8, 5))
    with pytest.raises(UserError, match="float64"):
        operator(torch.zeros(1, 1, 128, 128, dtype=torch.float64))
    with pytest.raises(UserError, match="expected a torch tensor"):
        operator(np.zeros((1, 1, 128, 128)))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="expected shape"):
        operator(torch.zeros(0, 1, 128, 128))
    with pytest.raises(UserError, match="expected shape"):
        operator.fbp(torch.zeros(1, 1, 8, 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sparse-32",), "expected a geometry"),
        ((case_geometry("sparse-8"), "tpu"), "expected auto, cpu or cuda"),
        ((case_geometry("sparse-8"), "cuda:99"), "no such GPU"),
        ((case_geometry("sparse-8"), "cpu", torch.float16), "float32 or torch.float64"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ray_transform(*arguments)


@pytest.mark.gpu
@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "geometry",
    [BASE, case_geometry("limited-90"), FanBeam(np.arange(60) * 0.1, 190, source_origin=200, source_detector=300)],
    ids=["sparse", "limited", "fan"],
)
def test_cuda_equals_cpu(geometry: Geometry, dtype: torch.dtype, projector: str) -> None:
    gpu = ray_transform(geometry, "cuda", dtype, projector=projector)
    cpu = ray_transform(geometry, "cpu", torch.float64, projector="matrix")
    check_operator(gpu, dtype=dtype, device="cuda")
    x = torch.rand(5, 1, 128, 128, dtype=torch.float64)
    expected = cpu(x)
    for result, reference, single in (
        (gpu(x.to("cuda", dtype)), expected, 1e-6),
        (gpu.adjoint(expected.to("cuda", dtype)), cpu.adjoint(expected), 1e-6),
        (gpu.fbp(expected.to("cuda", dtype)), cpu.fbp(expected), 1e-4),  # filters and interpolates in single precision
    ):
        error = (result.cpu().double() - reference).norm() / reference.norm()
        assert error < (single if dtype == torch.float32 else 1e-12)
