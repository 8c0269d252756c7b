"""The centre of rotation: discs in closed form, simulated scans, and faults that must not mislead it silently."""

import dataclasses
import functools
import math

import pytest
import torch

from bayescade.consistency.centre import FIT, MOMENTS, CentreErrors, centre_errors, find_centre
from bayescade.consistency.centre_fit import fit_centre, shifted, without_hardening
from bayescade.consistency.field import ObjectField
from bayescade.consistency.moments import centre_by_moments, moments_apply, without_baseline
from bayescade.data.noise import common_noise
from bayescade.data.objects import seen_whole
from bayescade.data.scanner import Scanner
from bayescade.data.simulate import scan_batches
from bayescade.data.sources import Source, image_source
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam

SHAPE = (64, 64)
ERROR = 0.6  # bins: of the offset of the scans


def parallel(views: int = 24, arc: float = math.pi) -> ParallelBeam:
    return ParallelBeam([arc * (i + 0.5) / views for i in range(views)], 95, 1.0, image_shape=SHAPE)


def fan(views: int = 24, arc: float = 2 * math.pi) -> FanBeam:
    angles = [arc * i / views for i in range(views)]
    return FanBeam(angles, 95, 1.5, 0.0, 1.0, SHAPE, source_origin=130.0, source_detector=195.0)


@functools.cache
def field_of(geometry: Geometry) -> ObjectField:
    return ObjectField(geometry)


@functools.cache
def scans(geometry: Geometry, count: int = 24, seed: int = 0, error: float = ERROR) -> torch.Tensor:
    """Scans on a finer grid, whose true offset is larger than that of the geometry by `error` bins."""
    source = image_source("ellipses", SHAPE, seed=seed, split="validation")
    objects = Source(lambda first, n, f: seen_whole(source.images(first, n, f), [geometry] * n), None, None)
    true = dataclasses.replace(geometry, offset=geometry.offset + error * geometry.bin_width)
    scanner = Scanner(grid_factor=2, rays_per_bin=2)
    made = list(scan_batches(objects, true, common_noise(0.01), seed=seed, count=count, scanner=scanner))
    return torch.cat([batch.sinogram for batch in made])


def rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def disc(geometry: Geometry, x: float, y: float, radius: float) -> torch.Tensor:
    """Line integrals of a disc of value 1, (1, 1, views, bins)."""
    points, directions = (torch.from_numpy(values.copy()) for values in geometry.rays(0, geometry.views))
    centre = torch.tensor([x, y], dtype=torch.float64)
    along = ((centre - points) * directions).sum(-1, keepdim=True)
    distance = (points + along * directions - centre).square().sum(-1)
    return 2 * (radius**2 - distance).clamp_min(0).sqrt()[None, None]


@pytest.mark.parametrize(
    ("geometry", "rounding"),  # rays are points of the disc's projection, not means over bins
    [(parallel(), 0.02), (parallel(arc=math.pi / 2), 0.1), (fan(48), 0.02)],
    ids=["full", "90", "fan"],
)
def test_moments_of_a_disc_give_its_centre(geometry: Geometry, rounding: float) -> None:
    true = dataclasses.replace(geometry, offset=1.3 * geometry.bin_width)
    shift, _ = centre_by_moments(geometry, disc(true, 7.0, -4.0, 15.0))
    assert float(shift) == pytest.approx(1.3, abs=rounding)


def test_moments_apply_to_parallel_beams_and_full_circles() -> None:
    assert moments_apply(parallel())
    assert moments_apply(fan())
    assert not moments_apply(fan(arc=4.0))
    assert not moments_apply(parallel(views=4))


def test_constants_and_a_tilt_are_removed() -> None:
    y = disc(parallel(), 3.0, 2.0, 12.0)[0]
    line = torch.linspace(-1, 1, y.shape[-1], dtype=torch.float64)
    moved = y + torch.linspace(0, 2, y.shape[1], dtype=torch.float64)[:, None] + 0.5 * line
    assert torch.allclose(without_baseline(moved), without_baseline(y), atol=1e-9)


def test_shifts_are_exact_for_smooth_data() -> None:
    bins = torch.arange(64, dtype=torch.float64)
    y = torch.exp(-0.5 * ((bins - 30) / 4) ** 2)[None, None, None]
    expected = torch.exp(-0.5 * ((bins - 31.37) / 4) ** 2)
    assert torch.allclose(shifted(y, torch.tensor([1.37]))[0, 0, 0], expected, atol=1e-9)


def test_hardening_is_undone() -> None:
    p = torch.linspace(-0.1, 4, 50, dtype=torch.float64)[None, None, None]
    y = torch.where(p > 0, p * (1 - 0.15 * p / 4), p)
    assert torch.allclose(without_hardening(y, torch.tensor([0.15]), y.amax((1, 2, 3))), p, atol=1e-9)
    assert torch.equal(without_hardening(y, torch.tensor([0.0]), y.amax((1, 2, 3))), y)


@pytest.mark.parametrize("geometry", [parallel(), fan(), fan(40, arc=4.2)], ids=["parallel", "circle", "short"])
def test_the_fit_finds_the_centre_with_a_right_error(geometry: Geometry) -> None:
    fitted = fit_centre(field_of(geometry), scans(geometry))
    assert float((fitted.shift - ERROR).abs().median()) < 0.02
    assert rms((fitted.shift - ERROR) / fitted.std) < 2.5  # before the factors of the geometry


@pytest.mark.parametrize("fault", ["background", "drift", "hardening", "tilt"])
def test_faults_do_not_mislead_the_fit(fault: str) -> None:
    geometry = parallel()
    y = scans(geometry)
    largest = y.amax((1, 2, 3), keepdim=True)
    generator = torch.Generator().manual_seed(0)
    changed = {
        "background": y + 0.01 * largest,
        "drift": y + 0.007 * largest * torch.randn(len(y), 1, y.shape[2], 1, generator=generator),
        "hardening": y * (1 - 0.15 * y.clamp_min(0) / largest),
        "tilt": y + 0.002 * largest * torch.linspace(-1, 1, y.shape[3]),
    }[fault]
    fitted = fit_centre(field_of(geometry), changed)
    assert float((fitted.shift - ERROR).abs().median()) < 0.04
    assert rms((fitted.shift - ERROR) / fitted.std) < 2.5


def test_factors_make_the_errors_right() -> None:
    """Also for a limited arc, where the fit claims far too much."""
    for geometry in (parallel(), parallel(30, arc=math.pi / 3)):
        field = field_of(geometry)
        y = scans(geometry)
        errors = centre_errors(field, y[:12], torch.full((12,), ERROR))
        centre = find_centre(field, y[12:], errors, stated_std=math.inf)
        assert 0.4 < rms((centre.estimate - ERROR) / centre.estimate_std) < 1.8
        assert bool(centre.known.all())


def test_a_wrong_centre_is_corrected_and_a_right_one_is_kept() -> None:
    geometry = parallel()
    wrong = find_centre(field_of(geometry), scans(geometry), CentreErrors())
    assert bool(wrong.stated_is_wrong.all())
    assert rms(wrong.shift - ERROR) < 0.03
    right = find_centre(field_of(geometry), scans(geometry, error=0.0), CentreErrors())
    assert not bool(right.stated_is_wrong.any())
    assert rms(right.shift) < 0.03


def test_a_limited_arc_keeps_the_stated_centre() -> None:
    geometry = parallel(30, arc=math.pi / 3)
    errors = CentreErrors({FIT: 20.0, MOMENTS: 1.2})
    centre = find_centre(field_of(geometry), scans(geometry, error=0.0), errors)
    assert float(centre.std.max()) < 0.11
    assert float(centre.shift.abs().max()) < float(centre.estimate.abs().max())


def test_methods_that_disagree_make_the_centre_unknown() -> None:
    """Truncation shifts the moments; the fit knows nothing of it."""
    geometry = parallel()
    narrow = dataclasses.replace(geometry, bins=41)
    y = scans(geometry)[..., 27:68]
    centre = find_centre(field_of(narrow), y, CentreErrors())
    assert float((~centre.known).double().mean()) > 0.5
    assert float(centre.estimate_std[~centre.known].min()) >= 0.5
    assert float(centre.std[~centre.known].min()) >= 0.5, "the stated centre does not make an unknown one certain"
    warned = find_centre(field_of(narrow), y, CentreErrors(), truncated=torch.ones(len(y), dtype=torch.bool))
    assert bool(warned.known.all())
