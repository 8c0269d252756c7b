import gc
import weakref

import pytest
import torch

from bayescade.errors import UserError
from bayescade.physics.cases import case_geometry
from bayescade.physics.geometry import ParallelBeam
from bayescade.projectors import ray_transform
from bayescade.projectors.matrix import entry_count


def test_entries_are_counted_before_they_are_stored() -> None:
    for case in ("sparse-8", "limited-90"):
        geometry = case_geometry(case)
        stored = ray_transform(geometry)._pair.matrix.values().numel()  # type: ignore[attr-defined]
        assert entry_count(geometry) == pytest.approx(stored, rel=0.01)


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
