"""What only matrix-free projectors do: derivatives with respect to angles and offset, and the Triton kernels."""

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescade.errors import UserError
from bayescade.kernels._triton import available
from bayescade.physics.fbp import BackProjection, FilteredBackProjection, fbp_weights, interpolated_back_projection
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.physics.ray_transform import RayTransform
from bayescade.projectors import MatrixFreeProjector, _cpu, _gpu, ray_transform
from bayescade.projectors._lines import scan_lines
from bayescade.projectors.matrix_free import LinePair
from tests.conftest import skip
from tests.geometries import geometries

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STEP = 1e-6
# No ray meets a pixel centre or has two dominant axes.
SCANS = [
    ParallelBeam([0.313, 1.2, 2.7, 4.1], bins=9, bin_width=0.83, offset=0.137, pixel_size=1.3, image_shape=(7, 6)),
    FanBeam([0.21, 2.93, 4.4], 16, 1.1, 0.071, 1.2, (5, 7), source_origin=9, source_detector=14),
]


def reference_fbp(operator: RayTransform, y: torch.Tensor) -> torch.Tensor:
    """FBP of fan beams without compiled kernels."""

    def back(geometry: Geometry) -> BackProjection:
        assert isinstance(geometry, FanBeam)
        return functools.partial(interpolated_back_projection, geometry)

    fbp = FilteredBackProjection(operator.geometry, back, "band-limited", operator.device, operator.dtype)
    return fbp(y, "ram-lak", operator.adjoint)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("geometry", SCANS, ids=["parallel", "fan"])
@pytest.mark.parametrize("transposed", [False, True])
def test_derivatives_by_angles_and_offset_are_the_numerical_ones(geometry: Geometry, transposed: bool) -> None:
    x, y = random(3, 1, *geometry.image_shape), random(3, 1, *geometry.sinogram_shape, seed=1)
    still = MatrixFreeProjector(geometry, dtype=torch.float64)

    def inner(angles: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        moved = still.moved(angles, offset)
        return (moved.adjoint(y) * x).sum() if transposed else (moved(x) * y).sum()

    angles = torch.tensor(geometry.angles, dtype=torch.float64, requires_grad=True)
    offset = torch.tensor(geometry.offset, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(inner, (angles, offset), eps=STEP, atol=1e-5)


def test_a_gradient_finds_the_centre_of_rotation() -> None:
    """The misfit of a scan with a displaced detector is minimised from 0.4 bins away."""
    angles = np.arange(24) * math.pi / 24
    truth = ParallelBeam(angles, 40, 1.0, 0.4, image_shape=(24, 24))
    i, j = np.indices((24, 24)) - 11.5
    image = torch.tensor(np.exp(-((i - 2) ** 2 + (j + 3) ** 2) / 18))[None, None]
    data = MatrixFreeProjector(truth, dtype=torch.float64)(image)
    still = MatrixFreeProjector(ParallelBeam(angles, 40, image_shape=(24, 24)), dtype=torch.float64)
    offset = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([offset], line_search_fn="strong_wolfe")

    def misfit() -> torch.Tensor:
        optimiser.zero_grad()
        loss = ((still.moved(offset=offset)(image) - data) ** 2).sum()
        loss.backward()
        return loss

    optimiser.step(misfit)
    assert offset.item() == pytest.approx(0.4, abs=1e-3)


def test_a_moved_scan_follows_its_tensors_and_earlier_moves() -> None:
    geometry = SCANS[0]
    still, x = MatrixFreeProjector(geometry, dtype=torch.float64), random(1, 1, *geometry.image_shape)
    offset = torch.zeros((), dtype=torch.float64, requires_grad=True)
    moved = still.moved(offset=offset)
    before = moved(x).detach()
    with torch.no_grad():
        offset += 0.7
    assert not torch.allclose(moved(x), before)
    torch.testing.assert_close(moved(x), still.moved(offset=offset)(x))
    angles = torch.tensor(geometry.angles, dtype=torch.float64) + 0.1
    torch.testing.assert_close(still.moved(angles).moved(offset=offset)(x), still.moved(angles, offset)(x))
    y = still(x)
    torch.testing.assert_close(moved.fbp(y), still.fbp(y))  # FBP uses the unmoved geometry


def test_derivatives_that_are_not_there_are_errors() -> None:
    still, x = MatrixFreeProjector(SCANS[0], dtype=torch.float64), random(1, 1, *SCANS[0].image_shape)
    offset = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad((still.moved(offset=offset)(x) ** 2).sum(), offset, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(gradient, offset)
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(lambda o: still.moved(offset=o)(x), (offset.detach(),), (torch.ones_like(offset),))


def test_large_batches_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels count in 32 bits."""
    if not available():
        skip("Triton is not installed")
    geometry = SCANS[1]
    lines = scan_lines([geometry]).to(DEVICE, torch.float64)
    x, y = (random(9, 1, *shape).to(DEVICE) for shape in (geometry.image_shape, geometry.sinogram_shape))
    calls = [
        (_gpu.forward, x),
        (_gpu.adjoint, y),
        (_gpu.interpolated, y),
        (_gpu.interpolated_transpose, x),
        (_gpu.derivatives, x),
    ]
    whole = [call(lines, value) for call, value in calls]
    monkeypatch.setattr(_gpu, "MOST_NUMBERS", 4 * 60)
    for (call, value), expected in zip(calls, whole, strict=True):
        torch.testing.assert_close(call(lines, value), expected)


def test_a_pose_of_another_shape_or_type_is_named() -> None:
    operator = MatrixFreeProjector(SCANS[0])
    with pytest.raises(UserError, match=r"angles: expected a tensor of shape \(4,\) in float64, got \(3,\)"):
        operator.moved(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(UserError, match="offset: expected"):
        operator.moved(offset=torch.zeros(1))


@pytest.mark.parametrize("offset", [0.0, 3.3])
def test_the_interpolation_of_fbp_is_the_reference(offset: float) -> None:
    geometry = FanBeam(np.arange(9) * 0.7, 21, 1.1, offset, image_shape=(9, 12), source_origin=30, source_detector=40)
    filtered = random(2, 1, 9, 21) - 0.5
    expected = interpolated_back_projection(geometry, filtered)
    back = MatrixFreeProjector(geometry, dtype=torch.float64).back_projector(geometry)
    assert back is not None
    computed = back(filtered)
    torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-12)


# Of different numbers of views and bins; in the last one many pixels are outside the detector.
FANS: list[Geometry] = [
    FanBeam(np.arange(9) * 0.7, 21, 1.1, 3.3, image_shape=(9, 12), source_origin=30, source_detector=40),
    FanBeam([0.21, 2.93, 4.4], 26, 0.9, 0.071, 1.2, (9, 12), source_origin=19, source_detector=24),
    FanBeam(np.arange(11) * 0.4, 6, 1.3, -1.9, image_shape=(9, 12), source_origin=25, source_detector=25),
]


@pytest.mark.parametrize("scans", [FANS[:1], FANS], ids=["one", "several"])
def test_the_interpolation_of_fbp_has_its_exact_transpose(scans: list[Geometry]) -> None:
    """<B q, x> = <q, B' x> of every image; q is not zero where sinograms are padded."""
    pair = LinePair(scan_lines(scans).to(torch.device("cpu"), torch.float64), interpolate=True)
    q = random(2, len(scans), 1, *pair.lines.sinogram_shape) - 0.5
    x = random(2, len(scans), 1, 9, 12, seed=1) - 0.5
    images, sinograms = pair.apply(q, True), pair.apply(x, False)
    assert bool((sinograms.flatten(2).norm(dim=2) > 1).all())
    left, right = ((one * two).flatten(2).sum(2) for one, two in ((images, x), (q, sinograms)))
    torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("projector", ["matrix", "matrix-free"])
@pytest.mark.parametrize("offset", [0.071, 3.3])
def test_the_gradient_of_fbp_is_that_of_the_reference(projector: str, offset: float) -> None:
    """Also with a displaced detector, where FBP adds bins."""
    geometry = FanBeam(np.arange(9) * 0.7, 21, 1.1, offset, image_shape=(9, 12), source_origin=30, source_detector=40)
    y, x = random(2, 1, 9, 21).requires_grad_(), random(2, 1, 9, 12, seed=1)
    operator = ray_transform(geometry, dtype=torch.float64, projector=projector)
    assert any(fbp_weights(geometry).added) == (offset > 1)
    (gradient,) = torch.autograd.grad((operator.fbp(y) * x).sum(), y)
    (expected,) = torch.autograd.grad((reference_fbp(operator, y) * x).sum(), y)
    torch.testing.assert_close(gradient, expected, rtol=1e-11, atol=1e-12)


def test_fbp_of_a_fan_is_differentiable_twice() -> None:
    operator = MatrixFreeProjector(FANS[1], dtype=torch.float64)
    y = random(2, *operator.range_shape).requires_grad_()

    def nonlinear(y: torch.Tensor) -> torch.Tensor:
        return (operator.fbp(y) ** 3).sum((2, 3))

    assert torch.autograd.gradcheck(nonlinear, y, fast_mode=True)
    assert torch.autograd.gradgradcheck(nonlinear, y, fast_mode=True)


def test_one_thread_and_two_give_the_same_bits() -> None:
    operator, x = MatrixFreeProjector(SCANS[1]), random(2, 1, *SCANS[1].image_shape).float()
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            y = operator(x)
            results.append((y, operator.adjoint(y)))
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


NAMES = ("forward", "adjoint", "interpolated", "interpolated_transpose", "derivatives")
OF_IMAGES = ("forward", "interpolated_transpose", "derivatives")


@pytest.mark.parametrize("geometry", SCANS, ids=["parallel", "fan"])
def test_kernels_of_derivatives_equal_the_cpu(geometry: Geometry) -> None:
    """Away from the rays through pixel centres, where there is no derivative."""
    if not available():
        skip("Triton is not installed")
    lines = scan_lines([geometry])
    x = random(2, 1, *geometry.image_shape)
    expected = _cpu.derivatives(lines.to(torch.device("cpu"), torch.float64), x)
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 3e-5)):
        computed = _gpu.derivatives(lines.to(DEVICE, dtype), x.to(DEVICE, dtype))
        for a, b in zip(computed, expected, strict=True):
            assert float((a.cpu().double() - b).abs().max()) <= tolerance * float(b.abs().max())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "derivatives"])
@given(scans=st.lists(geometries, min_size=1, max_size=3), images=st.sampled_from([1, 2, 5, 9]))
@settings(max_examples=8, deadline=None)
def test_kernels_equal_the_cpu(name: str, scans: list[Geometry], images: int) -> None:
    """On a CPU the Triton kernels run through the interpreter. Scans of one call may differ in all but the image shape."""
    if not available():
        skip("Triton is not installed")
    shape = scans[0].image_shape
    scans = [scan for scan in scans if scan.image_shape == shape]
    lines = scan_lines(scans)
    size = lines.image_shape if name in OF_IMAGES else lines.sinogram_shape
    x = random(images, len(scans), *size)
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 3e-5)):
        expected = getattr(_cpu, name)(lines.to(torch.device("cpu"), torch.float64), x)
        computed = getattr(_gpu, name)(lines.to(DEVICE, dtype), x.to(DEVICE, dtype))
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (computed, expected)), strict=True):
            assert float((a.cpu().double() - b).abs().max()) <= tolerance * max(float(b.abs().max()), 1e-30)


@pytest.mark.parametrize("images", [1, 5, 20])
def test_the_kernel_of_the_transposed_interpolation_equals_the_cpu(images: int) -> None:
    """Of fans with different numbers of views and bins, in several tiles of images and pixels."""
    if not available():
        skip("Triton is not installed")
    lines, x = scan_lines(FANS), random(images, len(FANS), 9, 12) - 0.5
    expected = _cpu.interpolated_transpose(lines.to(torch.device("cpu"), torch.float64), x)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        computed = _gpu.interpolated_transpose(lines.to(DEVICE, dtype), x.to(DEVICE, dtype))
        torch.testing.assert_close(computed.cpu().double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("images", [1, 3, 16, 40])
@pytest.mark.parametrize("name", NAMES)
def test_kernels_equal_the_cpu_at_full_size(name: str, images: int) -> None:
    scans: list[Geometry] = [
        ParallelBeam(np.arange(45) * 0.07, 150, 0.9, 0.3, image_shape=(96, 80)),
        FanBeam(np.arange(60) * 0.105, 170, 1.2, image_shape=(96, 80), source_origin=200, source_detector=260),
    ]
    lines = scan_lines(scans)
    size = lines.image_shape if name in OF_IMAGES else lines.sinogram_shape
    x = random(images, 2, *size)
    expected = getattr(_cpu, name)(lines.to(torch.device("cpu"), torch.float64), x)
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        computed = getattr(_gpu, name)(lines.to(DEVICE, dtype), x.to(DEVICE, dtype))
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (computed, expected)), strict=True):
            assert float((a.cpu().double() - b).norm() / b.norm()) <= tolerance
