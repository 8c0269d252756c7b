import gc
import weakref

import numpy as np
import pytest
import torch

from bayescade.errors import UserError
from bayescade.physics.cases import case_geometry
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.projectors import ray_transform
from bayescade.projectors.matrix import entry_count


@pytest.mark.parametrize(
    ("geometry", "tolerance"),
    [
        (case_geometry("sparse-8"), 0.01),
        (case_geometry("limited-90"), 0.01),
        (FanBeam(np.arange(20) * 0.314, 1000, source_origin=95, source_detector=95), 0.05),
        (FanBeam(np.arange(20) * 0.314, 400, source_origin=200, source_detector=300), 0.05),
    ],
)
def test_entries_are_counted_before_they_are_stored(geometry: Geometry, tolerance: float) -> None:
    stored = ray_transform(geometry, projector="matrix")._pair.matrix.values().numel()  # type: ignore[attr-defined]
    assert entry_count(geometry) == pytest.approx(stored, rel=tolerance)


def test_an_operator_that_lives_is_shared_and_none_is_kept() -> None:
    geometry = case_geometry("sparse-9")
    operator = ray_transform(geometry)
    assert ray_transform(case_geometry("sparse-9")) is operator
    assert ray_transform(geometry, dtype=torch.float64) is not operator
    gone = weakref.ref(operator)
    del operator
    gc.collect()
    assert gone() is None


def test_too_large_says_what_it_needs_and_what_to_do() -> None:
    geometry = case_geometry("sparse-128")
    with pytest.raises(UserError, match=r"needs about .* GB .* at most \d+ of these views"):
        ray_transform(geometry, projector="matrix", memory_limit=20_000_000)
    huge = ParallelBeam(torch.linspace(0, 3, 5000).tolist(), bins=10000, image_shape=(10000, 10000))
    with pytest.raises(UserError, match="needs about"):
        ray_transform(huge, projector="matrix")
