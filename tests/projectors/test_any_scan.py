"""Scans in their own units: levels, planes and the problem of a batch with one scan per image."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from bayescade.errors import UserError
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.projectors import PerImageProjector, ray_transform
from bayescade.projectors.any_scan import (
    PLANES,
    any_scan_problem,
    averaged,
    coverage_planes,
    image_levels,
    image_units,
    in_pixels,
    plane_names,
)

SHAPE = (24, 20)
SCANS: list[Geometry] = [
    ParallelBeam(np.arange(12) * math.pi / 12, 35, image_shape=SHAPE),
    ParallelBeam(0.3 + np.arange(7) * 0.2, 31, 1.1, 0.4, image_shape=SHAPE),
    FanBeam(np.arange(16) * math.pi / 8, 41, 1.5, image_shape=SHAPE, source_origin=50.0, source_detector=80.0),
]


def disc(value: float = 1.0) -> torch.Tensor:
    x, y = torch.arange(24.0) - 11.5, torch.arange(20.0) - 9.5
    return value * ((x[:, None] + 2) ** 2 + y[None, :] ** 2 <= 36).float()[None, None]


def test_lengths_in_pixels() -> None:
    fan = dataclasses.replace(SCANS[2], pixel_size=0.5)
    scaled = in_pixels(fan)
    assert isinstance(scaled, FanBeam)
    assert (scaled.pixel_size, scaled.bin_width, scaled.source_origin) == (1.0, 3.0, 100.0)
    image = disc()
    torch.testing.assert_close(ray_transform(scaled)(image) * 0.5, ray_transform(fan)(image), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("geometry", SCANS[::2], ids=["parallel", "fan"])
def test_the_level_is_the_value_of_the_object(geometry: Geometry) -> None:
    arc = math.pi if geometry.kind == "parallel" else 2 * math.pi
    larger = dataclasses.replace(
        geometry,
        angles=tuple(np.arange(90) * arc / 90),
        bins=181,
        image_shape=(96, 80),
        **({"source_origin": 200.0, "source_detector": 320.0} if geometry.kind == "fan" else {}),
    )
    operator = ray_transform(larger)
    y = operator(interpolate(disc(0.7), scale_factor=4))
    level = image_levels(operator, y)
    assert float(level) == pytest.approx(0.7, rel=0.1)
    torch.testing.assert_close(image_levels(operator, 1000 * y), 1000 * level, rtol=1e-5, atol=0)


def test_data_without_an_object_have_level_one() -> None:
    operator = ray_transform(SCANS[0])
    assert float(image_levels(operator, torch.zeros(1, 1, 12, 35))) == 1


@pytest.mark.parametrize("geometry", SCANS, ids=["parallel", "arc", "fan"])
def test_the_unit_is_about_the_error_and_the_plane_leads_back_to_the_level(geometry: Geometry) -> None:
    operator = ray_transform(geometry)
    problem = any_scan_problem(operator, ["noise", "level"], tv_iterations=50)
    assert problem.levelled
    generator = torch.Generator().manual_seed(0)
    y = operator(disc(0.7)) + 0.05 * torch.randn(1, 1, *geometry.sinogram_shape, generator=generator)
    unit = image_units(problem, y)
    error = (problem.initial(y) - disc(0.7)).square().mean().sqrt()
    assert 0.2 < float(unit / error) < 5
    torch.testing.assert_close(image_units(problem, 1000 * y), 1000 * unit, rtol=1e-4, atol=0)
    plane = problem.data_planes[0](y / unit)
    torch.testing.assert_close(10**plane, (unit / image_levels(operator, y)).reshape(1, 1, 1, 1).expand_as(plane))
    without = any_scan_problem(operator, ["noise"])
    torch.testing.assert_close(image_units(without, y), image_levels(operator, y))


@pytest.mark.parametrize("planes", [[], list(PLANES)], ids=["none", "all"])
def test_a_batch_of_scans_is_its_scans_one_by_one(planes: list[str]) -> None:
    """Inputs, first images and gradients, also for two samples of every image."""
    many = any_scan_problem(PerImageProjector(SCANS), planes)
    x = torch.rand(6, 1, *SHAPE)  # two samples of three images
    y = torch.zeros(3, *many.operator.range_shape)
    inputs, initial = [], []
    for number, geometry in enumerate(SCANS):
        one = any_scan_problem(ray_transform(geometry), planes)
        own = ray_transform(geometry)(disc()) + torch.randn(1, 1, *geometry.sinogram_shape) * 0.1
        y[number, :, : geometry.views, : geometry.bins] = own[0]
        inputs.append(one.inputs(x[number::3], own))
        initial.append(one.initial(own))
    assert many.scans == 3
    torch.testing.assert_close(many.initial(y), torch.cat(initial), rtol=1e-4, atol=1e-5)
    expected = torch.stack(inputs, 1).flatten(0, 1)
    torch.testing.assert_close(many.inputs(x, y), expected, rtol=2e-3, atol=2e-4)
    assert many.inputs(x, y).shape[1] == many.input_planes


def test_coverage_of_a_full_arc_has_no_direction_and_that_of_one_view_has_one() -> None:
    full = ParallelBeam(np.arange(30) * math.pi / 30, 41, image_shape=SHAPE)
    narrow = ParallelBeam([0.4], 41, image_shape=SHAPE)
    count, cosine, sine = (plane(disc()) for plane in coverage_planes(ray_transform(full)))
    middle = (..., slice(8, 16), slice(6, 14))
    torch.testing.assert_close(2 ** count[middle], torch.full_like(count[middle], 30), rtol=0.04, atol=0)
    assert float(cosine[middle].abs().max()) < 0.05
    assert float(sine[middle].abs().max()) < 0.05
    _, cosine, sine = (plane(disc()) for plane in coverage_planes(ray_transform(narrow)))
    torch.testing.assert_close(cosine[middle], torch.full_like(cosine[middle], math.cos(0.8)))
    torch.testing.assert_close(sine[middle], torch.full_like(sine[middle], math.sin(0.8)))


def test_the_noise_plane_is_about_the_noise_of_fbp() -> None:
    """It is that of FBP without interpolation, which lowers the noise."""
    geometry = ParallelBeam(np.arange(90) * math.pi / 90, 101, 0.8, image_shape=(64, 64))
    operator = ray_transform(geometry)
    noise = 0.3 * torch.randn(4, 1, 90, 101, generator=torch.Generator().manual_seed(0))
    problem = any_scan_problem(operator, ["noise"])
    plane = problem.data_planes[0](noise)
    found = operator.fbp(noise)[..., 16:48, 16:48].std()
    assert 1 < float(10 ** plane.mean()) / float(found) < 2
    assert float(plane.flatten(1).std(1).max()) == 0


def test_an_average_over_squares_keeps_constants_at_any_size() -> None:
    ones = torch.ones(1, 1, 21, 13)
    torch.testing.assert_close(averaged(8, ones, ones), ones)


def test_unknown_planes_are_named() -> None:
    assert plane_names(" noise,coarse ,") == ["noise", "coarse"]
    with pytest.raises(UserError, match=r"filtered-residual.*'colour'"):
        plane_names("colour")
