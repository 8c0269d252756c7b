import json
import math

import numpy as np
import pytest

from bayescade.errors import UserError
from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.physics.geometry import ParallelBeam, geometry_from_json


def test_json_has_exactly_the_contract_keys_and_comes_back_equal() -> None:
    geometry = ParallelBeam(np.linspace(0, 3, 7), bins=11, bin_width=0.5, offset=0.25, pixel_size=2, image_shape=(6, 9))
    values = json.loads(geometry.to_json())
    assert set(values) == {"kind", "angles", "bins", "bin_width", "offset", "pixel_size", "image_shape"}
    assert values["kind"] == "parallel"
    assert geometry_from_json(geometry.to_json()) == geometry
    assert geometry_from_json(geometry.to_json()).hash() == geometry.hash()


def test_the_hash_depends_on_every_field() -> None:
    base = {"angles": [0.1, 0.2], "bins": 5, "bin_width": 1.0, "offset": 0.0, "pixel_size": 1.0, "image_shape": (4, 4)}
    changes = {
        "angles": [0.1, 0.3],
        "bins": 6,
        "bin_width": 1.1,
        "offset": 0.1,
        "pixel_size": 2.0,
        "image_shape": (4, 5),
    }
    hashes = {ParallelBeam(**base).hash()} | {
        ParallelBeam(**{**base, key: value}).hash() for key, value in changes.items()
    }
    assert len(hashes) == 7


def test_bins_are_where_the_convention_says() -> None:
    geometry = ParallelBeam([0.0], bins=4, bin_width=0.5, offset=0.1)
    np.testing.assert_allclose(geometry.bin_positions(), [-0.65, -0.15, 0.35, 0.85])


def test_rays_satisfy_their_line_equation() -> None:
    geometry = ParallelBeam([0.3, 2.0], bins=5, bin_width=0.7, offset=0.2)
    points, directions = geometry.rays(0, 2)
    for view, angle in enumerate(geometry.angles):
        for point in (points[view], points[view] + 3.7 * directions[view]):
            along = point[:, 0] * math.cos(angle) + point[:, 1] * math.sin(angle)
            np.testing.assert_allclose(along, geometry.bin_positions(), atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"angles": []}, "at least one view"),
        ({"angles": [0.0, float("nan")]}, "finite numbers, got nan at position 1"),
        ({"angles": np.arange(180.0)}, "look like degrees"),
        ({"angles": [[0.0]]}, "2 dimensions"),
        ({"angles": "abc"}, "expected numbers"),
        ({"bins": 0}, "positive whole number"),
        ({"bins": 2.5}, "positive whole number"),
        ({"bin_width": 0}, "positive length"),
        ({"pixel_size": -1.0}, "positive length"),
        ({"offset": float("inf")}, "finite"),
        ({"image_shape": (3,)}, "two numbers"),
        ({"bins": "183"}, "expected numbers"),
        ({"bins": True}, "expected numbers"),
        ({"bins": 10**400}, "expected numbers"),
        ({"bins": 10**12}, "positive whole number up to"),
        ({"angles": np.array([1 + 1j])}, "expected numbers"),
        ({"bin_width": 1e-300}, "positive length from"),
        ({"offset": 1e6}, "no ray meets the image"),
        ({"image_shape": (3, 0)}, "positive whole number"),
    ],
)
def test_bad_values_are_named(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ParallelBeam(**{"angles": [0.0], "bins": 4, **change})


def test_paper_cases() -> None:
    sparse, limited = case_geometry("sparse-32"), case_geometry("limited-90")
    assert (sparse.views, sparse.bins, limited.views) == (32, 183, 90)
    assert sparse.angles[0] == pytest.approx(math.radians(180 / 32 / 2))
    assert limited.angles[-1] == pytest.approx(math.radians(89.5))
    edge = sparse.bin_positions()[-1] + sparse.bin_width / 2
    assert edge == pytest.approx(64 * math.sqrt(2))
    assert len({case_geometry(case).hash() for case in PAPER_CASES}) == 8


@pytest.mark.parametrize(
    "case", ["sparse", "sparse-0", "sparse-x", "limited-181", "limited--3", "dense-3", "sparse-32 "]
)
def test_unknown_cases_say_what_a_case_is(case: str) -> None:
    with pytest.raises(UserError, match=r"sparse-32|limited-90"):
        case_geometry(case)
