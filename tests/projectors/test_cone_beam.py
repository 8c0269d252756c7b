import math

import numpy as np
import pytest
import torch

from bayescade.errors import UserError
from bayescade.kernels._triton import available
from bayescade.physics.cone_beam import ConeBeam
from bayescade.physics.geometry import FanBeam
from bayescade.physics.linalg import adjoint_error
from bayescade.projectors import ray_transform
from bayescade.projectors.cone_beam import ConeBeamTransform, ConeKernels, ConeReference
from bayescade.testing import check_operator
from tests.conftest import skip

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def cone(views: int = 5, size: int = 8, rows: int = 7, slices: int = 6, **values: float) -> ConeBeam:
    angles = np.arange(views) * 2 * math.pi / views + 0.1
    distances = {"source_origin": 3.0 * size, "source_detector": 4.0 * size}
    fan = FanBeam(angles, 2 * size, 1.1, 0.3, image_shape=(size, size + 1), **distances)
    return ConeBeam(fan, rows, 1.3, slices=slices, **values)


SCANS = [cone(), cone(views=3, row_offset=1.7), cone(slices=1, rows=3), cone(rows=1, slices=4, views=2)]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_middle_slice_is_the_fan_beam() -> None:
    geometry = cone(rows=1, slices=1)
    operator, fan = ConeBeamTransform(geometry, dtype=torch.float64), ray_transform(geometry.fan, dtype=torch.float64)
    x = random(2, 1, *geometry.volume_shape)
    torch.testing.assert_close(operator(x)[:, :, :, 0], fan(x[:, :, 0]))
    y = random(2, 1, *geometry.data_shape)
    torch.testing.assert_close(operator.adjoint(y)[:, :, 0], fan.adjoint(y[:, :, :, 0]))


@pytest.mark.parametrize("geometry", SCANS)
def test_the_operator_conforms(geometry: ConeBeam) -> None:
    check_operator(ConeBeamTransform(geometry, dtype=torch.float64), dtype=torch.float64)


def ball_integrals(geometry: ConeBeam, centre: np.ndarray, radius: float) -> torch.Tensor:
    """Line integrals of a ball of value 1: 2 sqrt(r^2 - d^2), d the distance of the ray from its centre."""
    fan = geometry.fan
    data = np.empty(geometry.data_shape)
    for view, t in enumerate(fan.angles):
        source = fan.source_origin * np.array([math.sin(t), -math.cos(t), 0.0])
        bins = fan.bin_positions()[None, :, None] * np.array([math.cos(t), math.sin(t), 0.0])
        heights = geometry.row_heights()[:, None, None] * np.array([0.0, 0.0, 1.0])
        middle = (fan.source_origin - fan.source_detector) * np.array([math.sin(t), -math.cos(t), 0.0])
        direction = middle + bins + heights - source
        direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
        distance = np.linalg.norm(np.cross(centre - source, direction), axis=-1)
        data[view] = 2 * np.sqrt(np.maximum(radius**2 - distance**2, 0))
    return torch.tensor(data)[None, None]


def ball(geometry: ConeBeam, centre: np.ndarray, radius: float, fine: int = 4) -> torch.Tensor:
    """The ball's share of each voxel, by a finer grid."""
    p = geometry.fan.pixel_size
    axes = [(np.arange(n * fine) - (n * fine - 1) / 2) * p / fine for n in geometry.volume_shape]
    z, x, y = np.meshgrid(*axes, indexing="ij")
    inside = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 + (z - centre[2]) ** 2 < radius**2
    return torch.nn.functional.avg_pool3d(torch.tensor(inside, dtype=torch.float64)[None, None], fine)


BALL = np.array([2.0, -3.0, 1.0]), 7.0


def scan_of_a_ball(views: int, fine: int = 1) -> ConeBeam:
    angles = np.arange(views) * 2 * math.pi / views
    shape, p = (28 * fine, 28 * fine), 1 / fine
    fan = FanBeam(angles, 56 * fine, p, 0.0, p, shape, source_origin=90, source_detector=120)
    return ConeBeam(fan, 40 * fine, p, slices=24 * fine)


def test_line_integrals_are_those_of_a_ball() -> None:
    """The sharp edge of the ball costs an error that halves with the voxels."""
    for fine, most in ((1, 0.062), (2, 0.031)):
        geometry = scan_of_a_ball(6, fine)
        computed = ConeBeamTransform(geometry, dtype=torch.float64)(ball(geometry, *BALL))
        exact = ball_integrals(geometry, *BALL)
        assert float((computed - exact).norm() / exact.norm()) < most
        assert float(computed.sum() / exact.sum()) == pytest.approx(1, abs=0.003)


def test_fdk_gives_back_a_ball() -> None:
    geometry = scan_of_a_ball(60)
    volume = ConeBeamTransform(geometry, dtype=torch.float64).fdk(ball_integrals(geometry, *BALL), "hann")[0, 0]
    z, x, y = np.indices(geometry.volume_shape) - np.array([11.5, 13.5, 13.5]).reshape(3, 1, 1, 1)
    distance = np.sqrt((x - 2) ** 2 + (y + 3) ** 2 + (z - 1) ** 2)
    assert float(volume[distance < 5].mean()) == pytest.approx(1, abs=0.01)
    assert float(volume[(distance > 9) & (np.hypot(x, y) < 13)].mean()) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(("bins", "offset"), [(40, 0.0), (24, 12.0), (24, -12.0)])
def test_fdk_of_one_row_is_the_fbp_of_the_fan(bins: int, offset: float) -> None:
    """Also for a detector that reaches past the axis on one side only."""
    angles = np.arange(60) * 2 * math.pi / 60
    fan = FanBeam(angles, bins, 1.25, offset, image_shape=(20, 20), source_origin=100, source_detector=125)
    y = random(1, 1, 60, bins)
    volume = ConeBeamTransform(ConeBeam(fan, 1, slices=1), dtype=torch.float64).fdk(y[:, :, :, None])
    torch.testing.assert_close(volume[:, :, 0], ray_transform(fan, dtype=torch.float64).fbp(y))


@pytest.mark.parametrize("geometry", SCANS)
def test_kernels_equal_the_reference(geometry: ConeBeam) -> None:
    """On a CPU the Triton kernels run through the interpreter."""
    if not available():
        skip("Triton is not installed")
    kernels, reference = ConeKernels(geometry, DEVICE), ConeReference(geometry)
    x, y = random(2, 1, *geometry.volume_shape), random(2, 1, *geometry.data_shape, seed=1)
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        for call, value in (
            (lambda pair, v: pair.apply(v, False), x),
            (lambda pair, v: pair.apply(v, True), y),
            (lambda pair, v: pair.interpolated(v), y),
        ):
            expected = call(reference, value)
            computed = call(kernels, value.to(DEVICE, dtype)).cpu().double()
            assert float((computed - expected).norm() / expected.norm()) < tolerance


@pytest.mark.gpu
def test_the_transpose_on_the_gpu_at_full_size() -> None:
    angles = np.arange(90) * 2 * math.pi / 90
    fan = FanBeam(angles, 180, 1.0, 0.4, image_shape=(96, 96), source_origin=300, source_detector=400)
    geometry = ConeBeam(fan, 100, 1.1, slices=64)
    x, y = random(1, 1, *geometry.volume_shape).cuda(), random(1, 1, *geometry.data_shape).cuda()
    assert adjoint_error(ConeBeamTransform(geometry, "cuda", torch.float64), x, y) < 1e-12
    assert adjoint_error(ConeBeamTransform(geometry, "cuda"), x.float(), y.float()) < 1e-6


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rows": 0}, "detector_rows: expected"),
        ({"slices": 0}, "slices: expected"),
        ({"rows": 100}, "cone angle"),
        ({"row_offset": math.nan}, "row_offset"),
    ],
)
def test_bad_cones_are_named(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        cone(**values)


def test_wrong_shapes_are_named() -> None:
    operator = ConeBeamTransform(cone())
    with pytest.raises(UserError, match=r"volume: expected shape \(batch, 1, 6, 8, 9\)"):
        operator(torch.zeros(1, 1, 8, 8))
