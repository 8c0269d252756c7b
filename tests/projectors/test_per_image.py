import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bayescade.errors import UserError
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.physics.linalg import adjoint_error, norm
from bayescade.projectors import PerImageProjector, ray_transform
from bayescade.projectors.per_image import Room
from tests.geometries import geometries, touches_little
from tests.projectors.test_matrix_free import reference_fbp

SHAPE = (24, 20)
SCANS: list[Geometry] = [
    ParallelBeam(np.arange(9) * math.pi / 9, 33, image_shape=SHAPE),
    ParallelBeam(np.arange(12) * math.pi / 6, 25, 1.3, 5.2, image_shape=SHAPE),  # displaced, all around
    FanBeam(np.arange(15) * 2 * math.pi / 15, 40, image_shape=SHAPE, source_origin=50, source_detector=60),
    FanBeam(np.arange(11) * 0.33, 31, 1.4, 3.1, 0.9, SHAPE, source_origin=40, source_detector=70),
]


def padded(sinogram: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    result = sinogram.new_zeros((*sinogram.shape[:-2], *shape[-2:]))
    result[..., : sinogram.shape[-2], : sinogram.shape[-1]] = sinogram
    return result


@pytest.mark.parametrize("repeats", [1, 3])
def test_every_image_has_its_scan(repeats: int) -> None:
    operator = PerImageProjector(SCANS, dtype=torch.float64)
    x = torch.rand(repeats * len(SCANS), *operator.domain_shape, dtype=torch.float64)
    sinograms = operator(x)
    images, first = operator.adjoint(sinograms), operator.fbp(sinograms)
    for number in range(len(x)):
        geometry = SCANS[number % len(SCANS)]
        single = ray_transform(geometry, dtype=torch.float64)
        y = single(x[number : number + 1])
        torch.testing.assert_close(sinograms[number : number + 1], padded(y, operator.range_shape))
        torch.testing.assert_close(images[number : number + 1], single.adjoint(y))
        torch.testing.assert_close(first[number : number + 1], single.fbp(y), rtol=1e-11, atol=1e-11)


@given(st.lists(geometries, min_size=1, max_size=4), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_the_adjoint_is_the_exact_transpose(scans: list[Geometry], seed: int) -> None:
    scans = [scan for scan in scans if scan.image_shape == scans[0].image_shape]
    generator = torch.Generator().manual_seed(seed)
    operator = PerImageProjector(scans, dtype=torch.float64)
    x = torch.randn(len(scans), *operator.domain_shape, generator=generator, dtype=torch.float64)
    y = torch.randn(len(scans), *operator.range_shape, generator=generator, dtype=torch.float64)
    assume(not touches_little(operator, x.abs(), max(scan.pixel_size for scan in scans)))
    assert adjoint_error(operator, x, y) < 1e-12
    assert adjoint_error(PerImageProjector(scans), x.abs().float(), y.float()) < 1e-6


def test_fbp_is_differentiable_and_takes_leading_dimensions() -> None:
    operator = PerImageProjector(SCANS, dtype=torch.float64)
    y = torch.rand(3, len(SCANS), *operator.range_shape, dtype=torch.float64, requires_grad=True)
    image = operator.fbp(y)
    assert image.shape == (3, len(SCANS), *operator.domain_shape)
    torch.testing.assert_close(image, operator.fbp(y.detach()))
    (gradient,) = torch.autograd.grad(image.sum(), y)
    assert bool((gradient.flatten(2).abs().sum(2) > 0).all())


def test_the_gradient_of_fbp_is_that_of_every_scan() -> None:
    operator = PerImageProjector(SCANS, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(len(SCANS), *operator.range_shape, generator=generator, dtype=torch.float64, requires_grad=True)
    x = torch.rand(len(SCANS), *operator.domain_shape, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((operator.fbp(y) * x).sum(), y)
    for number, geometry in enumerate(SCANS):
        single = ray_transform(geometry, dtype=torch.float64)
        views, bins = geometry.sinogram_shape
        leaf = y.detach()[[number], :, :views, :bins].clone().requires_grad_()
        image = reference_fbp(single, leaf) if isinstance(geometry, FanBeam) else single.fbp(leaf)
        (expected,) = torch.autograd.grad((image * x[[number]]).sum(), leaf)
        torch.testing.assert_close(gradient[[number], :, :views, :bins], expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("scans", [SCANS[:2], SCANS[2:]], ids=["parallel", "fan"])
def test_an_operator_takes_over_the_scans_of_another(scans: list[Geometry]) -> None:
    """It then computes as an operator that was made of these scans."""
    room = Room.of(scans)
    operator, other = (PerImageProjector(chosen, dtype=torch.float64, room=room) for chosen in (scans[1:] * 3, scans))
    y = torch.rand(3, *operator.range_shape, dtype=torch.float64)
    operator.fbp(y)
    for indices in ([1, 0, 1], [0, 1, 1]):
        operator.load(other, torch.tensor(indices))
        expected = PerImageProjector([scans[index] for index in indices], dtype=torch.float64)
        views, bins = expected.range_shape[1:]
        x = torch.rand(3, *operator.domain_shape, dtype=torch.float64)
        data = expected(x)
        torch.testing.assert_close(operator(x), padded(data, operator.range_shape))
        measured = padded(data, operator.range_shape)
        torch.testing.assert_close(operator.adjoint(y), expected.adjoint(y[..., :views, :bins]))
        torch.testing.assert_close(operator.fbp(measured), expected.fbp(data), rtol=1e-11, atol=1e-11)


def test_norms_are_those_of_the_scans() -> None:
    expected = [norm(ray_transform(geometry, dtype=torch.float64), 1e-9) for geometry in SCANS]
    np.testing.assert_allclose(PerImageProjector(SCANS, dtype=torch.float64).norms, expected, rtol=1e-4)
    assert PerImageProjector(SCANS).norm == pytest.approx(max(expected), rel=1e-3)


def test_the_paper_ramp_needs_one_number_of_bins() -> None:
    operator = PerImageProjector(SCANS)
    with pytest.raises(UserError, match="one number of bins"):
        operator.fbp(torch.zeros(4, *operator.range_shape), ramp="shifted")
    alike = [ParallelBeam([0.1, turn], 33, image_shape=SHAPE) for turn in (1.0, 2.0)]
    y = torch.rand(2, 1, 2, 33)
    expected = torch.cat([ray_transform(g).fbp(y[[n]], ramp="shifted") for n, g in enumerate(alike)])
    torch.testing.assert_close(PerImageProjector(alike).fbp(y, ramp="shifted"), expected, rtol=1e-4, atol=1e-5)


def test_bad_batches_are_named() -> None:
    with pytest.raises(UserError, match="one image shape"):
        PerImageProjector([SCANS[0], ParallelBeam([0.0], 9, image_shape=(8, 8))])
    with pytest.raises(UserError, match="at least one"):
        PerImageProjector([])
    with pytest.raises(UserError, match="multiple of 4"):
        PerImageProjector(SCANS)(torch.zeros(3, 1, *SHAPE))
