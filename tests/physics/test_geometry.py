import json
import math

import numpy as np
import pytest

from bayescade.errors import UserError
from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.physics.geometry import FanBeam, ParallelBeam, geometry_difference, geometry_from_json, measured_arc


def test_json_has_exactly_the_contract_keys_and_comes_back_equal() -> None:
    geometry = ParallelBeam(np.linspace(0, 3, 7), bins=11, bin_width=0.5, offset=0.25, pixel_size=2, image_shape=(6, 9))
    values = json.loads(geometry.to_json())
    assert set(values) == {"kind", "angles", "bins", "bin_width", "offset", "pixel_size", "image_shape"}
    assert values["kind"] == "parallel"
    assert geometry_from_json(geometry.to_json()) == geometry


FAN = {
    "angles": (0.1, 0.2),
    "bins": 5,
    "bin_width": 1e-4,
    "offset": 0.0,
    "pixel_size": 1e-4,
    "image_shape": (4, 4),
    "source_origin": 0.5,
    "source_detector": 1.0,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"angles": (0.1, 0.3)}, "angles: expected [0.1, 0.2], the scan has [0.1, 0.3]"),
        ({"angles": (0.1,)}, "angles: expected 2 of them, the scan has 1"),
        ({"bins": 6}, "bins: expected 5, the scan has 6"),
        ({"bin_width": 1.1e-4}, "bin_width: expected 0.0001, the scan has 0.00011"),
        ({"offset": 1e-6}, "offset: expected 0.0, the scan has 1e-06"),
        ({"pixel_size": 1.1e-4}, "pixel_size: expected 0.0001, the scan has 0.00011"),
        ({"image_shape": (4, 5)}, "image_shape: expected [4, 4], the scan has [4, 5]"),
        ({"source_origin": 0.6}, "source_origin: expected 0.5, the scan has 0.6"),
        ({"source_detector": 1.1}, "source_detector: expected 1.0, the scan has 1.1"),
    ],
)
def test_every_difference_of_two_scans_is_named(change: dict, message: str) -> None:
    """In metres, where all lengths of a bin are small."""
    assert geometry_difference(FanBeam(**FAN), FanBeam(**{**FAN, **change})) == message


def test_rounding_is_no_difference() -> None:
    one = FanBeam(**FAN)
    assert geometry_difference(one, geometry_from_json(one.to_json())) is None
    rounded = {key: np.multiply(value, 1 + 1e-7) for key, value in FAN.items() if key not in ("bins", "image_shape")}
    other = FanBeam(**{**FAN, **rounded, "offset": 1e-11})
    assert other != one
    assert geometry_difference(one, other) is None


def test_a_fan_is_no_parallel_beam() -> None:
    parallel = ParallelBeam([0.1, 0.2], 5, 1e-4, 0.0, 1e-4, (4, 4))
    assert geometry_difference(parallel, FanBeam(**FAN)) == "kind: expected parallel, the scan has fan"
    assert geometry_difference(FanBeam(**FAN), parallel) == "kind: expected fan, the scan has parallel"


def arc(degrees: np.ndarray | list[float]) -> float:
    return measured_arc(ParallelBeam(np.deg2rad(degrees), 5, image_shape=(4, 4)))


@pytest.mark.parametrize("number", [2, 3, 4, 5, 8, 16, 32, 64, 128, 177, 178, 179, 180])
def test_the_measured_arc_of_a_case(number: int) -> None:
    assert measured_arc(case_geometry(f"sparse-{number}")) == pytest.approx(180)
    assert measured_arc(case_geometry(f"limited-{number}")) == pytest.approx(number)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        (np.r_[0:45, 135:180], 90),  # one arc across zero
        (np.r_[0:45, 90:135], 90),  # two arcs
        (-np.arange(90.0), 90),
        (np.arange(360.0), 180),
        (np.arange(361.0), 180),
        (np.arange(181) * 360 / 181, 180),
        (np.arange(0, 250, 0.7), 180),
        (np.r_[0:90, 180:270], 90),  # the same lines twice
        (np.r_[0:90, 0.001:90], 90),
        (np.r_[0:90:0.5, 90:180:2], 180),
        (np.r_[0:90:0.5, 90:130:2], 130),
        (np.r_[0:45, 100], 46),
        ([30.0], 0),
        ([0.0, 180.0], 0),
        ([0.0, 1.0], 2),
        ([0.0, 60.0], 120),
        ([0.0, 90.0], 180),
    ],
)
def test_the_measured_arc_of_other_scans(degrees: np.ndarray | list[float], expected: float) -> None:
    assert arc(degrees) == pytest.approx(expected, abs=1e-6)


def test_golden_angles_leave_nothing_out() -> None:
    golden = 180 * (math.sqrt(5) - 1) / 2
    for views in range(2, 200):
        assert arc(np.arange(views) * golden % 180) == pytest.approx(180), views


def test_the_arc_of_a_fan_is_that_of_its_central_rays() -> None:
    for degrees, expected in ((np.arange(360.0), 180), (np.arange(200.0), 180), (np.arange(100.0), 100)):
        assert measured_arc(FanBeam(**{**FAN, "angles": np.deg2rad(degrees)})) == pytest.approx(expected)


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
    assert len({case_geometry(case).to_json() for case in PAPER_CASES}) == 8


@pytest.mark.parametrize(
    "case", ["sparse", "sparse-0", "sparse-x", "limited-181", "limited--3", "dense-3", "sparse-32 "]
)
def test_unknown_cases_say_what_a_case_is(case: str) -> None:
    with pytest.raises(UserError, match=r"sparse-32|limited-90"):
        case_geometry(case)
