import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bayescade.errors import UserError
from bayescade.methods import fbp
from bayescade.physics.geometry import FanBeam, ParallelBeam, geometry_from_json
from bayescade.physics.redundancy import arc_position, parker_weights, scan_kind, shared_weights, view_weights
from bayescade.projectors import ray_transform

DEGREE = math.pi / 180
FAN = 2 * math.degrees(math.atan(150 * 1.0 / 2 / 300))  # fan angle of `fan` below, in degrees


def fan(degrees: np.ndarray, bins: int = 150, **values: float) -> FanBeam:
    return FanBeam(
        degrees * DEGREE, bins, **{"source_origin": 200.0, "source_detector": 300.0, **values}, image_shape=(64, 64)
    )


def disc_sinogram(geometry: FanBeam, radius: float, x: float, y: float) -> torch.Tensor:
    """Line integrals of a disc of value 1: 2 sqrt(r^2 - d^2), d the distance of the ray from its centre."""
    points, directions = geometry.rays(0, geometry.views)
    distance = (x - points[..., 0]) * directions[..., 1] - (y - points[..., 1]) * directions[..., 0]
    return torch.tensor(2 * np.sqrt(np.maximum(radius**2 - distance**2, 0)), dtype=torch.float32)[None, None]


def disc_means(image: torch.Tensor, radius: float, x: float, y: float) -> tuple[float, float]:
    """Means over the disc and over the rest of the field of view, away from its edge."""
    i, j = np.indices((64, 64)) - 31.5
    distance = np.hypot(i - x, j - y)
    outside = (distance > 1.2 * radius) & (np.hypot(i, j) < 31)
    return float(image[distance < 0.8 * radius].mean()), float(image[outside].mean())


def test_rays_go_from_the_source_to_the_bin() -> None:
    geometry = fan(np.array([0.0, 33.0, 200.0]), bins=5, offset=3.0)
    points, directions = geometry.rays(0, 3)
    for view, t in enumerate(geometry.angles):
        source = 200 * np.array([math.sin(t), -math.cos(t)])
        for b, s in enumerate(geometry.bin_positions()):
            bin_ = 100 * np.array([-math.sin(t), math.cos(t)]) + s * np.array([math.cos(t), math.sin(t)])
            along = (bin_ - source) / np.linalg.norm(bin_ - source)
            np.testing.assert_allclose(directions[view, b], along, atol=1e-12)
            offset = source - points[view, b]
            assert abs(offset[0] * along[1] - offset[1] * along[0]) < 1e-9


def test_json_has_the_two_distances() -> None:
    geometry = fan(np.arange(5.0))
    assert geometry_from_json(geometry.to_json()) == geometry
    with pytest.raises(UserError, match="missing key 'source_origin'"):
        geometry_from_json(ParallelBeam([0.0], 5, image_shape=(4, 4)).to_json().replace("parallel", "fan"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source_origin": 40.0}, "inside the image"),
        ({"source_detector": 150.0}, "at least source_origin"),
        ({"source_origin": 0.0}, "positive length"),
        ({"offset": 1e4}, "no ray meets the image"),
    ],
)
def test_bad_distances_are_named(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fan(np.arange(5.0), **values)


SCANS = {
    "full": np.arange(360.0),
    "full, first view twice": np.arange(361.0),
    "full, from -180": np.arange(-180.0, 180.0),
    "full, backwards, half steps": np.arange(720)[::-1] / 2,
    "short": np.arange(0, 181 + FAN),
    "short, from 300": 300 + np.arange(0, 181 + FAN),
    "short, long": np.arange(0, 260.0),
    "limited": np.arange(0, 180.0),
    "limited, little": 100 + np.arange(0, 90.0),
}


@pytest.mark.parametrize("name", SCANS)
def test_scans_are_told_apart(name: str) -> None:
    assert scan_kind(fan(SCANS[name])) == name.split(",")[0]


def test_a_view_measured_twice_stands_for_half() -> None:
    angles = view_weights(fan(np.arange(361.0)))
    np.testing.assert_allclose(angles[[0, -1]], DEGREE / 2, atol=1e-9)
    np.testing.assert_allclose(angles[1:-1], DEGREE, atol=1e-9)
    assert angles.sum() == pytest.approx(2 * math.pi)


@pytest.mark.parametrize("name", ["short", "short, from 300", "short, long"])
def test_parkers_weights_of_a_line_and_its_twin_add_up_to_one(name: str) -> None:
    """A ray at b and fan angle g is seen again at b + pi - 2 g from -g; on a fine grid of views."""
    views = np.linspace(SCANS[name][0], SCANS[name][-1], 20001)
    geometry = fan(views)
    weights, position = parker_weights(geometry), arc_position(geometry)
    step = position[1] - position[0]
    for b in range(0, geometry.bins, 7):
        g = geometry.fan_angles()[b]
        twin = position + math.pi - 2 * g
        seen = np.flatnonzero((twin >= 0) & (twin <= position[-1]))
        assert len(seen) > 10
        other = weights[np.round(twin[seen] / step).astype(int), geometry.bins - 1 - b]
        np.testing.assert_allclose(weights[seen, b] + other, 1, atol=2e-3)
        alone = (twin > position[-1]) & (position < math.pi + 2 * g)
        np.testing.assert_array_equal(weights[alone, b], 1)


def test_views_of_uneven_steps_stand_for_what_is_around_them() -> None:
    degrees = np.concatenate([np.arange(0, 100, 0.5), np.arange(100, 260, 2.0)])
    weights = view_weights(fan(degrees)) / DEGREE
    np.testing.assert_allclose(weights[[0, 50, 250]], [0.5, 0.5, 2.0], atol=1e-9)
    np.testing.assert_allclose(weights[-1], 2.0, atol=1e-9)


@pytest.mark.parametrize("degrees", [[0.0], [0.0, 10.0], [0.0, 30.0], [0.0, 100.0]])
def test_a_few_views_are_no_full_scan(degrees: list[float]) -> None:
    assert scan_kind(fan(np.array(degrees))) == "limited"
    assert np.isfinite(view_weights(fan(np.array(degrees)))).all()


def test_an_arc_in_equal_parts_is_short_when_the_parts_reach() -> None:
    arc = 180 + FAN
    middles = (np.arange(200) + 0.5) * arc / 200
    assert scan_kind(fan(middles)) == "short"


@pytest.mark.parametrize("degrees", [np.arange(0, 170.0), np.arange(0, 195.0), np.arange(360.0)])
def test_shared_weights_of_a_line_and_its_twin_add_up_to_one(degrees: np.ndarray) -> None:
    geometry = fan(np.linspace(degrees[0], degrees[-1], 20001), offset=12.0)
    weights, position = shared_weights(geometry), arc_position(geometry)
    step = position[1] - position[0]
    positions = geometry.bin_positions()
    for b in range(20, 100, 9):
        mirrored = int(np.argmin(abs(positions + positions[b])))
        assert abs(positions[mirrored] + positions[b]) < 1e-9
        twin = np.mod(position + math.pi - 2 * geometry.fan_angles()[b], 2 * math.pi)
        seen = np.flatnonzero(twin <= position[-1])
        other = np.interp(twin[seen], position, weights[:, mirrored])
        np.testing.assert_allclose(weights[seen, b] + other, 1, atol=5e-3)
        alone = np.flatnonzero((twin > position[-1] + 2 * step) & (twin < 2 * math.pi - 2 * step))
        np.testing.assert_allclose(weights[alone, b], 1)


def test_a_displaced_detector_sees_the_outside_once() -> None:
    """A full scan by a detector that reaches past the axis on one side only gives back a disc all the same."""
    geometry = fan(np.arange(360.0), bins=90, offset=30.0)
    image = ray_transform(geometry).fbp(disc_sinogram(geometry, 8, 18, 0), "hann")[0, 0]
    inside, outside = disc_means(image, 8, 18, 0)
    assert inside == pytest.approx(1, abs=0.003)
    assert outside == pytest.approx(0, abs=0.003)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCANS if not name.startswith("limited")])
def test_fbp_gives_back_a_disc(name: str) -> None:
    """Value 1 inside and 0 outside, on and off the centre, for full and short scans; the paper's ramp reads too high."""
    geometry = fan(SCANS[name])
    for radius, x, y in ((20, 0, 0), (12, 8, -5)):
        sinogram = disc_sinogram(geometry, radius, x, y)
        image = ray_transform(geometry).fbp(sinogram)[0, 0]
        inside, outside = disc_means(image, radius, x, y)
        assert inside == pytest.approx(1, abs=0.003)
        assert outside == pytest.approx(0, abs=0.003)
        biased = ray_transform(geometry).fbp(sinogram, ramp="shifted")[0, 0]
        assert min(np.subtract(disc_means(biased, radius, x, y), (inside, outside))) > 0.002
    distance = np.hypot(*(axis - centre for axis, centre in zip(np.indices((64, 64)) - 31.5, (8, -5), strict=True)))
    assert float(image[(distance > 15) & (distance < 25)].abs().mean()) < 0.03


def test_fbp_in_other_units_with_an_offset() -> None:
    geometry = FanBeam(
        np.arange(360) * DEGREE, 300, 0.05, 0.35, 0.1, (64, 64), source_origin=20.0, source_detector=30.0
    )
    image = ray_transform(geometry).fbp(disc_sinogram(geometry, 1.2, 0.8, -0.5), "hann")[0, 0]
    i, j = np.meshgrid(np.arange(64) - 31.5, np.arange(64) - 31.5, indexing="ij")
    assert float(image[np.hypot(i - 8, j + 5) < 9].mean()) == pytest.approx(1, abs=0.01)


def test_a_distant_source_gives_the_parallel_fbp() -> None:
    angles, distance = np.arange(180) * DEGREE, 1e6
    common = {"bins": 95, "image_shape": (64, 64)}
    full = FanBeam(np.arange(360) * DEGREE, **common, source_origin=distance, source_detector=distance)
    parallel = ParallelBeam(angles, **common)
    smooth = disc_sinogram(full, 20, 3, 4)
    a = ray_transform(full).fbp(smooth, "hann")
    b = ray_transform(parallel).fbp(smooth[:, :, :180], "hann")
    assert float((a - b).norm() / a.norm()) < 0.02


def test_a_limited_arc_is_named() -> None:
    geometry = fan(SCANS["limited"])
    result = fbp.build(geometry, fbp.Settings())(disc_sinogram(geometry, 12, 8, -5))
    assert result.warning is not None
    assert "limited-angle" in result.warning
    assert f"{180 + FAN:.0f} degrees" in result.warning
    whole = fan(SCANS["short"])
    assert fbp.build(whole, fbp.Settings())(disc_sinogram(whole, 12, 8, -5)).warning is None


@pytest.mark.slow
def test_the_helsinki_scan_shows_its_segmentation(data_folder: Path) -> None:
    """FBP at 512 x 512 of the measured full scan correlates at least 0.95 with the official segmentation."""
    scan = np.load(data_folder / "sino_htc2022_ta_full.npz")
    geometry = FanBeam(
        np.deg2rad(scan["angles_deg"]),
        bins=int(scan["n_det"]),
        bin_width=float(scan["det_px_mm"]),
        pixel_size=float(scan["voxel_mm_512"]),
        image_shape=(512, 512),
        source_origin=float(scan["sod_mm"]),
        source_detector=float(scan["sdd_mm"]),
    )
    image = fbp.build(geometry, fbp.Settings())(scan["sino"]).image[0, 0].numpy()
    segmentation = scan["seg"][::-1].T  # row 0 at +y, column 0 at -x
    assert np.corrcoef(image.ravel(), segmentation.ravel())[0, 1] >= 0.95
    assert np.corrcoef(image.ravel(), scan["fbp_ref"][::-1].T.ravel())[0, 1] >= 0.999
