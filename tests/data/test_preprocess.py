"""Measured data to line integrals, against closed forms: discs of value 1 and their exact line integrals."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bayescade.data.preprocess import (
    average_bins,
    average_views,
    every_view,
    flat_and_dark,
    minus_log,
    other_views,
    with_centre,
)
from bayescade.errors import UserError
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam

SHAPE = (64, 64)


def parallel(bins: int, offset: float = 0.0, views: int = 7) -> ParallelBeam:
    angles = [0.1 + k * math.pi / views for k in range(views)]
    return ParallelBeam(angles, bins, bin_width=0.5, offset=offset, image_shape=SHAPE)


def fan(bins: int, offset: float = 0.0, views: int = 7) -> FanBeam:
    angles = [0.1 + k * 2 * math.pi / views for k in range(views)]
    return FanBeam(
        angles, bins, bin_width=0.5, offset=offset, image_shape=SHAPE, source_origin=200.0, source_detector=300.0
    )


def disc(geometry: Geometry, radius: float, x: float, y: float) -> torch.Tensor:
    """Line integrals of a disc of value 1, (views, bins): 2 sqrt(r^2 - d^2), d the distance of the ray from its centre."""
    points, directions = geometry.rays(0, geometry.views)
    distance = (x - points[..., 0]) * directions[..., 1] - (y - points[..., 1]) * directions[..., 0]
    return torch.tensor(2 * np.sqrt(np.maximum(radius**2 - distance**2, 0)))


def first_moment(sinogram: torch.Tensor, geometry: Geometry) -> np.ndarray:
    """Mean detector position of every view, weighted by the line integrals."""
    values = sinogram.numpy()
    return (values * geometry.bin_positions()).sum(1) / values.sum(1)


def test_transmission_and_line_integrals_of_known_counts() -> None:
    integrals = disc(parallel(120), 20.0, 3.0, -4.0) / 20
    beam = torch.linspace(900.0, 1100.0, 120, dtype=torch.float64)
    darks = torch.stack([torch.full((120,), 90.0), torch.full((120,), 110.0)]).double()
    flats = torch.stack([beam + 100 - 7, beam + 100 + 7, beam + 100])
    counts = beam * torch.exp(-integrals) + 100
    result = minus_log(flat_and_dark(counts, flats, darks))
    torch.testing.assert_close(result.sinogram, integrals)
    assert result.replaced == 0
    single = minus_log(flat_and_dark(counts, beam + 100, darks.mean(0)))
    torch.testing.assert_close(single.sinogram, integrals)


def test_flats_of_several_slices_and_whole_numbers() -> None:
    counts = torch.tensor([[[60, 35]], [[110, 20]]], dtype=torch.uint16)  # (slices, views, bins)
    flats = torch.tensor([[[110, 60], [110, 60]], [[210, 30], [210, 30]]], dtype=torch.uint16)
    darks = torch.tensor([10, 10], dtype=torch.uint16)
    transmission = flat_and_dark(counts, flats, darks)
    torch.testing.assert_close(transmission, torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]]))


@pytest.mark.parametrize(
    ("counts", "flats", "darks", "message"),
    [
        (torch.ones(3, 4), torch.tensor([2.0, 1.0, 0.5, 2.0]), torch.ones(4), "2 of 4 bins.*the first is bin 1"),
        (torch.ones(3, 4), torch.ones(5), torch.zeros(4), r"flats: expected shape \(4,\)"),
        (torch.ones(3, 4), torch.ones(4), torch.zeros(4, 1), "the bins are the last axis"),
        (torch.ones(2, 3, 4), torch.ones(3, 2, 4), torch.zeros(4), r"\(2, number, 4\)"),
        (torch.ones(3, 4), torch.ones(0, 4), torch.zeros(4), "at least one"),
        (torch.ones(4), torch.ones(4), torch.zeros(4), "views, bins"),
        (torch.full((3, 4), torch.nan), torch.ones(4), torch.zeros(4), "12 that are NaN"),
        (torch.ones(3, 4, dtype=torch.bool), torch.ones(4), torch.zeros(4), "real numbers"),
    ],
)
def test_bad_fields_are_named(counts: torch.Tensor, flats: torch.Tensor, darks: torch.Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        flat_and_dark(counts, flats, darks)


def test_values_without_a_logarithm_are_replaced_and_counted() -> None:
    transmission = torch.tensor([[[1.0, 0.5, 0.0], [0.25, -0.1, 1.0]], [[0.1, 1.0, 1.0], [1.0, 1.0, 1.0]]])
    before = transmission.clone()
    result = minus_log(transmission)
    assert result.replaced == 2
    assert float(result.sinogram[0, 0, 2]) == float(result.sinogram[0, 1, 1]) == pytest.approx(math.log(4))
    torch.testing.assert_close(result.sinogram[1], -transmission[1].log())
    assert torch.equal(transmission, before)


def test_a_sinogram_without_a_positive_value_is_an_error() -> None:
    with pytest.raises(UserError, match="without any"):
        minus_log(torch.stack([torch.ones(2, 3), -torch.ones(2, 3)]))


@pytest.mark.parametrize("build", [parallel, fan])
@pytest.mark.parametrize("bins", [240, 241, 242, 243, 247])
@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_means_of_bins_are_where_the_geometry_says(build: Callable[..., Geometry], bins: int, factor: int) -> None:
    """The positions of the new bins are the means of the positions of the old ones; dropped bins are the last ones."""
    geometry = build(bins, offset=0.37)
    sinogram = torch.tensor(geometry.bin_positions()).expand(geometry.views, bins)
    means, coarse = average_bins(sinogram, geometry, factor)
    assert coarse.sinogram_shape == (geometry.views, bins // factor)
    assert coarse.bin_width == factor * geometry.bin_width
    np.testing.assert_allclose(coarse.bin_positions(), means[0].numpy(), atol=1e-12)
    assert dataclasses.replace(coarse, bins=bins, bin_width=0.5, offset=0.37) == geometry, "nothing else changes"


@pytest.mark.parametrize("build", [parallel, fan])
@pytest.mark.parametrize("bins", [240, 241, 243])
def test_means_of_bins_keep_the_first_moment_of_a_disc(build: Callable[..., Geometry], bins: int) -> None:
    geometry = build(bins, offset=-1.3)
    sinogram = disc(geometry, 9.0, 8.0, -5.0)
    means, coarse = average_bins(sinogram[None, None], geometry, 4)
    # Up to the variation inside a group, which cancels over a view but for the ends; half an old bin is 0.25.
    np.testing.assert_allclose(first_moment(means[0, 0], coarse), first_moment(sinogram, geometry), atol=0.02)
    # They are close to the line integrals of the coarse rays.
    smooth = disc(coarse, 9.0, 8.0, -5.0)
    assert float((means[0, 0] - smooth).abs().median()) < 0.02


@pytest.mark.parametrize("build", [parallel, fan])
def test_a_disc_at_the_centre_is_projected_to_the_given_bin(build: Callable[..., Geometry]) -> None:
    for position in (119.5, 100.0, 131.25):
        geometry = with_centre(build(240, offset=5.0), position)
        moments = first_moment(disc(geometry, 9.0, 0.0, 0.0), geometry) / geometry.bin_width + (240 - 1) / 2
        centre = moments - geometry.offset / geometry.bin_width  # in bins, counted from 0
        np.testing.assert_allclose(centre, position, atol=0.05)
        assert np.interp(position, range(240), geometry.bin_positions()) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("position", [math.nan, math.inf])
def test_a_bad_centre_is_named(position: float) -> None:
    with pytest.raises(UserError, match="bin_position"):
        with_centre(parallel(20), position)
    with pytest.raises(UserError, match="no ray meets the image"):
        with_centre(parallel(20), 1e6)


def degrees(*values: float) -> ParallelBeam:
    return ParallelBeam(np.deg2rad(values), 8, image_shape=(4, 4))


@pytest.mark.parametrize(
    ("before", "factor", "after"),
    [
        ((10, 11, 12, 13, 14, 15, 16), 3, (11, 14)),
        ((358, 359, 0, 1), 4, (359.5,)),
        ((357, 359, 1, 3), 2, (358, 362)),
        ((3, 1, -1, -3, 355, 353), 2, (2, -2, 354)),
        ((20, 30), 1, (20, 30)),
    ],
)
def test_means_of_views_are_at_the_mean_angles(before: tuple, factor: int, after: tuple) -> None:
    geometry = degrees(*before)
    sinogram = torch.arange(len(before) * 8.0).reshape(1, 1, len(before), 8)
    means, coarse = average_views(sinogram, geometry, factor)
    turns = (np.rad2deg(coarse.angles) - after) / 360
    np.testing.assert_allclose(turns, np.round(turns), atol=1e-12)
    expected = torch.stack([sinogram[0, 0, k * factor : (k + 1) * factor].mean(0) for k in range(len(after))])
    torch.testing.assert_close(means[0, 0], expected)


@pytest.mark.parametrize("build", [parallel, fan])
def test_a_disc_of_averaged_views_is_near_the_disc_at_the_mean_angles(build: Callable[..., Geometry]) -> None:
    geometry = build(240, views=720)
    means, coarse = average_views(disc(geometry, 9.0, 8.0, -5.0), geometry, 4)
    exact = first_moment(disc(coarse, 9.0, 8.0, -5.0), coarse)
    np.testing.assert_allclose(first_moment(means, coarse), exact, atol=0.03)
    late = dataclasses.replace(coarse, angles=[angle + math.pi / 720 for angle in coarse.angles])
    assert abs(first_moment(disc(late, 9.0, 8.0, -5.0), late) - exact).max() > 0.035, "a quarter of a degree is seen"


def test_views_that_are_no_neighbours_are_not_averaged() -> None:
    with pytest.raises(UserError, match="179 degrees apart"):
        average_views(torch.zeros(4, 8), degrees(178, 179, 0, 1), 4)
    golden = degrees(*(111.246 * k % 360 for k in range(6)))
    with pytest.raises(UserError, match="sort the views"):
        average_views(torch.zeros(6, 8), golden, 2)


@pytest.mark.parametrize("build", [parallel, fan])
def test_every_view_and_the_others_are_all_views(build: Callable[..., Geometry]) -> None:
    geometry = build(240, views=11)
    sinogram = disc(geometry, 9.0, 8.0, -5.0)[None, None]
    chosen, chosen_geometry = every_view(sinogram, geometry, 4, first=1)
    others, others_geometry = other_views(sinogram, geometry, 4, first=1)
    assert chosen_geometry.angles == tuple(geometry.angles[k] for k in (1, 5, 9))
    assert sorted([*chosen_geometry.angles, *others_geometry.angles]) == sorted(geometry.angles)
    torch.testing.assert_close(chosen[0, 0], disc(chosen_geometry, 9.0, 8.0, -5.0))
    torch.testing.assert_close(others[0, 0], disc(others_geometry, 9.0, 8.0, -5.0))
    assert type(chosen_geometry) is type(others_geometry) is type(geometry)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, g: average_bins(s, g, 0), "from 1 to 8, the number of bins"),
        (lambda s, g: average_bins(s, g, 9), "got 9"),
        (lambda s, g: average_bins(s, g, 2.0), "whole number"),
        (lambda s, g: average_views(s, g, 4), "from 1 to 3, the number of views"),
        (lambda s, g: average_bins(s[:, :7], g, 2), "3 views and 8 bins"),
        (lambda s, g: every_view(s.T, g, 2), "3 views and 8 bins"),
        (lambda s, g: every_view(s, g, 0), "1 or more"),
        (lambda s, g: every_view(s, g, 2, first=2), "from 0 to 1"),
        (lambda s, g: every_view(s, g, 5, first=3), "from 0 to 2"),
        (lambda s, g: other_views(s, g, 1), "step 1 takes all 3"),
    ],
)
def test_bad_numbers_are_named(call: Callable[..., object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(torch.zeros(3, 8), degrees(0, 10, 20))


def test_the_measured_tooth_from_its_counts(data_folder: Path) -> None:
    """Counts, flats and darks give the line integrals that are stored with them."""
    file = np.load(data_folder / "sino_tooth.npz")
    counts, flats, darks = (torch.from_numpy(file[name]).transpose(0, 1) for name in ("raw", "flat", "dark"))
    result = minus_log(flat_and_dark(counts, flats, darks))
    assert result.replaced == 0
    difference = (result.sinogram - torch.from_numpy(file["sino"])).abs()
    assert float(difference.median()) < 2e-3
