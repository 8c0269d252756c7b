"""Moved images have the data of moved scans."""

import math

import numpy as np
import pytest
import torch

from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.physics.symmetries import SYMMETRIES, Symmetry
from bayescade.projectors import ray_transform

SCANS: list[Geometry] = [
    ParallelBeam(0.3 + np.arange(7) * 0.31, 27, 0.9, 0.7, image_shape=(12, 17)),
    FanBeam(0.2 + np.arange(9) * 0.6, 31, 1.2, -1.3, image_shape=(12, 17), source_origin=30.0, source_detector=45.0),
]


@pytest.mark.parametrize("geometry", SCANS, ids=["parallel", "fan"])
@pytest.mark.parametrize("symmetry", SYMMETRIES, ids=str)
def test_projection_and_fbp_move_with_the_image(geometry: Geometry, symmetry: Symmetry) -> None:
    image = torch.rand(2, 1, 12, 17, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    here, there = (ray_transform(scan, dtype=torch.float64) for scan in (geometry, symmetry.geometry(geometry)))
    moved = there(symmetry.image(image))
    torch.testing.assert_close(moved, symmetry.data(here(image)), rtol=1e-10, atol=1e-10)
    fbp = symmetry.restored(there.fbp(moved))
    torch.testing.assert_close(fbp, here.fbp(here(image)), rtol=1e-6, atol=1e-6)


def test_the_eight_are_different_and_restored() -> None:
    image = torch.arange(12.0).reshape(3, 4)
    seen = {
        tuple(symmetry.image(image).flatten().tolist()) + tuple(symmetry.image(image).shape) for symmetry in SYMMETRIES
    }
    assert len(seen) == 8
    for symmetry in SYMMETRIES:
        assert torch.equal(symmetry.restored(symmetry.image(image)), image)
    assert SYMMETRIES[0].geometry(SCANS[0]) == SCANS[0]
    assert SYMMETRIES[2].geometry(SCANS[0]).angles[0] == pytest.approx(0.3 + math.pi / 2)
