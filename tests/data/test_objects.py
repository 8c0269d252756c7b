"""Objects to train on: kinds in turn, stored images moved at random, and scans of many geometries."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from bayescade.data.noise import common_noise, noise_model
from bayescade.data.objects import (
    PHANTOMS,
    WITH_STORED,
    measured_with_border,
    mixed_source,
    moved_images,
    rank_in_kind,
    seen_whole,
    within_circle,
)
from bayescade.data.random_scans import RandomScans, radius_seen, random_geometry
from bayescade.data.scanner import Scanner
from bayescade.data.training_scans import SMALL_ERRORS, scan_groups
from bayescade.phantoms import ellipses
from bayescade.physics.geometry import ParallelBeam
from bayescade.projectors import ray_transform
from bayescade.seeds import derived_seed

STORED = torch.rand(5, 1, 20, 20, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("stored", [None, STORED], ids=["phantoms", "stored"])
def test_an_object_depends_on_its_index_only(stored: Tensor | None) -> None:
    source = mixed_source((16, 16), 3, stored)
    together = source.images(0, 20, 2)
    assert together.shape == (20, 1, 32, 32)
    assert float(together.min()) >= 0
    assert float(together.max()) <= 1.0001
    torch.testing.assert_close(together[7:12], source.images(7, 5, 2))
    other = mixed_source((16, 16), 4, stored).images(0, 20, 2)
    assert not torch.equal(together, other)


def test_kinds_follow_their_pattern() -> None:
    source = mixed_source((16, 16), 3)
    first = [index for index, kind in enumerate(PHANTOMS * 2) if kind == "ellipses"]
    expected = ellipses.generate(len(first), (16, 16), seed=derived_seed(3, "ellipses"))
    torch.testing.assert_close(source.images(0, 2 * len(PHANTOMS), 1)[first], expected)
    ranks = [
        rank_in_kind(WITH_STORED, index) for index in range(3 * len(WITH_STORED)) if WITH_STORED[index % 15] == "stored"
    ]
    assert ranks == list(range(len(ranks)))


def test_kept_out_kinds_are_not_among_them() -> None:
    assert not {"text", "bars", "shepp-logan", "random-shepp-logan", "discs-with-holes"} & {*PHANTOMS, *WITH_STORED}


def test_what_is_seen_whole_does_not_depend_on_the_unit_of_length() -> None:
    images = torch.ones(1, 1, 32, 32)
    pixels = ParallelBeam([0.0, 1.0], 20, image_shape=(32, 32))
    millimetres = dataclasses.replace(pixels, bin_width=0.5, pixel_size=0.5)
    cut = seen_whole(images, [pixels])
    assert 0.25 < float(cut.mean()) < 0.35  # a circle of radius 10
    assert torch.equal(seen_whole(images, [millimetres]), cut)
    smaller = measured_with_border(images, pixels, 3)
    assert float(smaller.mean()) == pytest.approx(float(cut.mean()) * (7 / 10) ** 2, rel=0.05)
    assert float(ray_transform(pixels)(smaller)[..., :2].abs().max()) == 0


def test_all_around_a_displaced_detector_measures_out_to_its_further_end() -> None:
    images = torch.ones(1, 1, 32, 32)
    half = ParallelBeam([math.pi * i / 16 for i in range(16)], 20, offset=4.0, image_shape=(32, 32))
    around = dataclasses.replace(half, angles=[2 * math.pi * i / 16 for i in range(16)])
    areas = [float(measured_with_border(images, scan, 1).sum()) for scan in (half, around)]
    assert areas == pytest.approx([math.pi * 5**2, math.pi * 13**2], rel=0.05)


def test_moved_images_keep_their_mass_up_to_the_zoom() -> None:
    """A small disc far from the border: its area changes by the square of the zoom, its value hardly."""
    axis = torch.arange(64.0) - 31.5
    disc = (axis[:, None] ** 2 + axis[None, :] ** 2 <= 144).float()[None, None]
    moved = moved_images(disc, (64, 64), 1, range(20))
    areas = moved.sum((1, 2, 3)) / disc.sum()
    assert 0.75**2 * 0.98 < float(areas.min()) < float(areas.max()) < 1.15**2 * 1.02
    assert float(areas.std()) > 0.1
    assert float(moved.max()) == pytest.approx(1)
    only = mixed_source((64, 64), 1, disc, only_stored=True)
    assert torch.equal(only.images(0, 3, 1), moved_images(disc, (64, 64), derived_seed(1, "stored"), range(3)))


def test_nothing_is_left_outside_the_circle() -> None:
    cut = within_circle(torch.ones(2, 1, 20, 30), [0.5, 2.0])
    assert float(cut[0].mean()) == pytest.approx(np.pi * 25 / 600, rel=0.05)
    assert float(cut[1].mean()) == 1


def test_groups_hold_every_scan_once_and_their_data_are_those_of_its_geometry() -> None:
    geometries = [random_geometry(RandomScans(most_views=20), (16, 16), 2, index) for index in range(7)]
    source = mixed_source((16, 16), 2)
    groups = list(scan_groups(source, geometries, Scanner(grid_factor=2), common_noise(0.0), seed=0, group=3))
    found = [geometry for group in groups for geometry in group.geometries]
    assert sorted(found, key=repr) == sorted(geometries, key=repr)
    assert [len(group.truth) for group in groups] == [3, 3, 1]
    for group in groups:
        for geometry, sinogram, truth in zip(group.geometries, group.sinogram, group.truth, strict=True):
            views, bins = geometry.sinogram_shape
            own = sinogram[:, :views, :bins]
            assert float(sinogram.abs().sum()) == pytest.approx(float(own.abs().sum()), rel=1e-6)
            coarse = ray_transform(geometry)(truth[None])[0]
            assert float((own - coarse).norm() / coarse.norm()) < 0.15  # the truth is the mean of the finer pixels
    expected = within_circle(source.images(0, 7, 2), [radius_seen(geometry) / 8 for geometry in geometries])
    truths = {repr(g): truth for group in groups for g, truth in zip(group.geometries, group.truth, strict=True)}
    for geometry, truth in zip(geometries, avg_pool2d(expected, 2), strict=True):
        torch.testing.assert_close(truths[repr(geometry)], truth)


def test_scans_do_not_depend_on_their_groups() -> None:
    geometries = [random_geometry(RandomScans(most_views=20), (16, 16), 2, index) for index in range(6)]

    def scans(group: int) -> dict[str, Tensor]:
        groups = scan_groups(
            mixed_source((16, 16), 2), geometries, SMALL_ERRORS, noise_model("mixed"), seed=0, group=group
        )
        return {
            repr(geometry): sinogram[:, : geometry.views, : geometry.bins]
            for part in groups
            for geometry, sinogram in zip(part.geometries, part.sinogram, strict=True)
        }

    one, three = scans(1), scans(3)
    for name, sinogram in one.items():
        torch.testing.assert_close(sinogram, three[name], rtol=1e-4, atol=1e-4)
