"""The first image of a model for any scan, by total variation."""

import math

import numpy as np
import pytest
import torch

from bayescade.metrics.psnr import psnr
from bayescade.phantoms import ellipses
from bayescade.physics.fidelity import LeastSquares
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.physics.linalg import norms
from bayescade.physics.total_variation import Problem, after_iterations, first_point, relative_gap, step
from bayescade.physics.tv_weight import default_weight
from bayescade.projectors import PerImageProjector, ray_transform
from bayescade.projectors.any_scan import any_scan_problem
from bayescade.projectors.first_image import ARC_DEGREES, BALANCE, CONSTANTS, FirstImage, constant

SHAPE = (24, 20)
SCANS: list[Geometry] = [
    ParallelBeam(np.arange(14) * math.pi / 14, 35, image_shape=SHAPE),
    ParallelBeam(0.3 + np.arange(9) * math.pi / 20, 31, 1.1, 0.4, image_shape=SHAPE),
    FanBeam(np.arange(16) * math.pi / 8, 41, 1.6, image_shape=SHAPE, source_origin=60.0, source_detector=90.0),
]


def scan(geometry: Geometry, noise: float = 0.05) -> tuple[torch.Tensor, torch.Tensor]:
    """A sinogram with white noise, and its truth."""
    truth = ellipses.generate(2, SHAPE, seed=3)
    clean = ray_transform(geometry)(truth)
    return clean + noise * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1)), truth


@pytest.mark.parametrize("geometry", SCANS, ids=["full", "arc", "fan"])
def test_the_weight_is_that_of_the_method(geometry: Geometry) -> None:
    """c times the noise of the gradient, as `tv` computes it."""
    operator = ray_transform(geometry)
    y, _ = scan(geometry)
    weight = default_weight(operator, operator.norm, LeastSquares(), y, constant(geometry)).reshape(-1, 1, 1, 1)
    start = operator.fbp(y).clamp_min(0)
    problem = Problem.with_steps(operator, operator.norm, LeastSquares(), y, weight, start, BALANCE)
    found = FirstImage(operator, operator.norm, 30)(y)
    torch.testing.assert_close(found, after_iterations(problem, 30), rtol=1e-3, atol=1e-4)


def test_many_scans_are_computed_as_one_by_one() -> None:
    operator = PerImageProjector(SCANS)
    y = torch.zeros(6, *operator.range_shape)  # two images of each scan
    expected = torch.zeros(6, 1, *SHAPE)
    for number, geometry in enumerate(SCANS):
        own, _ = scan(geometry)
        y[number::3, :, : geometry.views, : geometry.bins] = own
        alone = ray_transform(geometry)
        expected[number::3] = FirstImage(alone, alone.norm, 40)(own)
    found = FirstImage(operator, norms(operator, 3), 40)(y)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("geometry", SCANS, ids=["full", "arc", "fan"])
def test_it_is_nearer_to_the_truth_than_fbp(geometry: Geometry) -> None:
    y, truth = scan(geometry)
    operator = ray_transform(geometry)
    problem = any_scan_problem(operator, [], tv_iterations=150)
    gain = psnr(problem.initial(y), truth, 1.0) - psnr(operator.fbp(y), truth, 1.0)
    assert float(gain.min()) > 1
    assert torch.equal(any_scan_problem(operator, []).initial(y), operator.fbp(y))


def test_values_times_a_thousand_give_a_thousand_times_the_image() -> None:
    operator = ray_transform(SCANS[0])
    y, _ = scan(SCANS[0])
    first = FirstImage(operator, operator.norm, 50)
    torch.testing.assert_close(first(1000 * y), 1000 * first(y), rtol=1e-3, atol=1e-1)


def test_data_without_an_object_give_an_empty_image() -> None:
    operator = ray_transform(SCANS[0])
    assert float(FirstImage(operator, operator.norm, 20)(torch.zeros(1, 1, 14, 35)).abs().max()) == 0


def test_the_constant_falls_with_the_arc() -> None:
    arcs = [ParallelBeam(np.arange(20) * math.radians(arc) / 20, 35, image_shape=SHAPE) for arc in (60, 90, 105, 180)]
    found = [constant(geometry) for geometry in arcs]
    assert found[0] == found[1] == pytest.approx(CONSTANTS[0])
    assert found[2] == pytest.approx(math.sqrt(CONSTANTS[0] * CONSTANTS[1]))
    assert found[3] == pytest.approx(CONSTANTS[1])
    assert sum(ARC_DEGREES) / 2 == 105


def test_a_norm_for_each_image_is_that_norm() -> None:
    """Steps and gap of several images with their own norms are those of each image alone."""
    operator = ray_transform(SCANS[0])
    y, _ = scan(SCANS[0])
    weight, start = torch.full((2, 1, 1, 1), 0.01), operator.fbp(y).clamp_min(0)
    column = torch.full((2, 1, 1, 1), operator.norm)
    one, many = (
        Problem.with_steps(operator, norm, LeastSquares(), y, weight, start) for norm in (operator.norm, column)
    )
    torch.testing.assert_close(after_iterations(many, 10), after_iterations(one, 10))
    chosen = torch.tensor([False, True])
    point = step(many.select(chosen), step(many.select(chosen), first_point(many.select(chosen))))
    alone = step(one.select(chosen), step(one.select(chosen), first_point(one.select(chosen))))
    torch.testing.assert_close(relative_gap(many.select(chosen), point), relative_gap(one.select(chosen), alone))
