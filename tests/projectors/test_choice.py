import math

import numpy as np
import pytest
import torch

from bayescade.errors import UserError
from bayescade.kernels._triton import available
from bayescade.physics.cases import case_geometry
from bayescade.physics.geometry import ParallelBeam
from bayescade.projectors import MatrixFreeProjector, MatrixProjector, ray_transform
from bayescade.projectors._choice import choose_projector

SMALL = case_geometry("sparse-32")
LARGE = ParallelBeam(np.arange(720) * math.pi / 720, bins=727, image_shape=(512, 512))


def test_many_calls_at_a_small_size_are_worth_a_matrix() -> None:
    assert isinstance(ray_transform(SMALL), MatrixProjector)
    assert isinstance(ray_transform(SMALL, batch=100, calls=100), MatrixProjector)


def test_one_call_is_not() -> None:
    assert isinstance(ray_transform(SMALL, calls=1), MatrixFreeProjector)


def test_a_large_matrix_is_stored_only_on_demand() -> None:
    assert isinstance(ray_transform(LARGE, batch=16), MatrixFreeProjector)


def test_memory_is_a_limit_for_the_choice_and_an_error_for_a_matrix() -> None:
    assert isinstance(ray_transform(SMALL, memory_limit=1_000_000), MatrixFreeProjector)
    with pytest.raises(UserError, match="projector='matrix-free'"):
        ray_transform(case_geometry("sparse-33"), projector="matrix", memory_limit=1_000_000)


@pytest.mark.skipif(not available(), reason="on a GPU without Triton there is only the matrix")
@pytest.mark.parametrize(
    ("geometry", "batch", "chosen"),
    [(SMALL, 1, "matrix"), (SMALL, 128, "matrix"), (LARGE, 1, "matrix-free"), (LARGE, 16, "matrix-free")],
)
def test_on_a_gpu_the_faster_one_of_the_measured_ones_is_chosen(
    geometry: ParallelBeam, batch: int, chosen: str
) -> None:
    """docs/performance.md has the times. The memory limit is large, so that it does not decide."""
    device = torch.device("cuda")
    assert choose_projector(geometry, device, torch.float32, batch, 1000, memory_limit=10**11) == chosen


def test_the_choice_can_be_overridden() -> None:
    free, stored = ray_transform(SMALL, projector="matrix-free"), ray_transform(SMALL, projector="matrix", calls=1)
    assert isinstance(free, MatrixFreeProjector)
    assert isinstance(stored, MatrixProjector)
    x = torch.rand(2, 1, 128, 128)
    torch.testing.assert_close(free(x), stored(x), rtol=1e-5, atol=1e-4)
    with pytest.raises(UserError, match="expected auto, matrix, matrix-free, got 'dense'"):
        ray_transform(SMALL, projector="dense")
