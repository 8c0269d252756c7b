"""Seen and unseen parts against the explicit matrix, and for a limited arc."""

import math

import pytest
import torch

from bayescade.physics.geometry import ParallelBeam
from bayescade.projectors import ray_transform
from bayescade.uncertainty.seen import seen, shares

SHAPE = (16, 16)


def arc(degrees: float, views: int = 16) -> ParallelBeam:
    return ParallelBeam([math.radians(degrees) * (i + 0.5) / views for i in range(views)], 25, 1.0, image_shape=SHAPE)


def test_the_seen_part_is_that_of_the_matrix() -> None:
    operator = ray_transform(arc(90))
    unit = torch.eye(256).reshape(256, 1, *SHAPE)
    matrix = operator(unit).reshape(256, -1).T.double()
    normal = matrix.T @ matrix
    images = torch.randn(3, 1, *SHAPE, generator=torch.Generator().manual_seed(0))
    for ratio in (0.1, 10.0):
        expected = normal @ torch.linalg.solve(normal + ratio * torch.eye(256), images.double().reshape(3, 256).T)
        found = seen(operator, images, ratio)
        torch.testing.assert_close(found.double(), expected.T.reshape(images.shape), atol=5e-3, rtol=0)


def test_shares_sum_to_one_and_follow_the_ratio() -> None:
    operator = ray_transform(arc(60))
    images = torch.randn(2, 1, *SHAPE, generator=torch.Generator().manual_seed(1))
    little, much = (shares(operator, images, ratio) for ratio in (0.1, 10.0))
    for a, b in zip(little, much, strict=True):
        assert a.seen + a.unseen + a.cross == pytest.approx(1, abs=1e-4)
        assert b.unseen > a.unseen


def test_an_arc_sees_edges_along_its_rays_only() -> None:
    """Angles around 0: rays run along y and measure the profile in x, so stripes that change with x are seen."""
    operator = ray_transform(ParallelBeam([0.05 * (i - 8) for i in range(17)], 25, 1.0, image_shape=SHAPE))
    wave = torch.cos(math.pi * torch.arange(16) / 2)
    along_x, along_y = wave[:, None].expand(SHAPE), wave[None, :].expand(SHAPE)
    one, other = shares(operator, torch.stack([along_x, along_y])[:, None], 1.0)
    assert one.seen > 0.9
    assert other.unseen > 0.7
