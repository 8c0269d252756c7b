"""Random geometries: within their distribution, by seed and index only."""

import math

import numpy as np
import pytest

from bayescade.data.random_scans import RandomScans, radius_seen, random_geometry
from bayescade.errors import UserError
from bayescade.physics.geometry import FanBeam, ParallelBeam, measured_arc

SCANS = [random_geometry(RandomScans(), (64, 64), 5, index) for index in range(600)]


def test_a_geometry_depends_on_seed_and_index_only() -> None:
    assert random_geometry(RandomScans(), (64, 64), 5, 17) == SCANS[17]
    assert random_geometry(RandomScans(), (64, 64), 6, 17) != SCANS[17]


def test_every_view_sees_the_inscribed_circle() -> None:
    assert min(radius_seen(geometry) for geometry in SCANS) >= 32
    diagonal = [radius_seen(geometry) >= 32 * math.sqrt(2) for geometry in SCANS]
    assert np.mean(diagonal) == pytest.approx(0.5, abs=0.1)


def test_radius_seen_of_a_shifted_detector_is_that_of_its_shorter_side() -> None:
    assert radius_seen(ParallelBeam([0.0], 11, 2.0, 1.5, image_shape=(8, 8))) == pytest.approx(11 - 1.5)


def test_views_arcs_and_spacings_stay_within_their_limits() -> None:
    views = np.array([geometry.views for geometry in SCANS])
    spacings = np.array([geometry.ray_spacing for geometry in SCANS])
    assert views.min() >= 8
    assert views.max() <= 360
    assert np.log(views).mean() == pytest.approx(np.log([8, 360]).mean(), abs=0.15)
    assert spacings.min() >= 0.6
    assert spacings.max() <= 1.6
    equal = [geometry for geometry in SCANS if np.ptp(np.diff(geometry.angles)) < 1e-9 and geometry.views > 20]
    assert min(measured_arc(geometry) for geometry in equal) > 59
    fans = [geometry for geometry in SCANS if isinstance(geometry, FanBeam)]
    assert len(fans) / len(SCANS) == pytest.approx(0.4, abs=0.08)
    distances = np.array([fan.source_origin for fan in fans]) / (32 * math.sqrt(2))
    assert distances.min() >= 2
    assert distances.max() <= 10
    assert np.mean([geometry.offset != 0 for geometry in SCANS]) == pytest.approx(0.3, abs=0.08)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"least_views": 400}, "most_views"), ({"least_arc": 200.0}, "least_arc"), ({"fan_share": 2.0}, "fan_share")],
)
def test_impossible_distributions_are_named(settings: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        RandomScans(**settings)  # type: ignore[arg-type]
