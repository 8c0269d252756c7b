"""The errors of a simulated scanner: each against its formula."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from bayescade.data.noise import common_noise
from bayescade.data.scanner import (
    ScanErrors,
    Scanner,
    after_noise,
    before_noise,
    blurred,
    draw_errors,
    interpolated,
    true_geometry,
)
from bayescade.data.simulate import scan_batches
from bayescade.data.sources import Source
from bayescade.errors import UserError
from bayescade.physics.geometry import FanBeam, ParallelBeam
from bayescade.projectors import ray_transform

GEOMETRY = ParallelBeam(np.arange(20) * math.pi / 20, bins=31, image_shape=(20, 20))
NONE = ScanErrors(0.0, np.zeros(20), np.zeros(20), np.zeros(31), np.zeros(0, dtype=int), 0.0, 0.0, 0.0)
QUIET = common_noise(relative=0.0)


def disc_source(radius: float = 7.0, centre: tuple[float, float] = (1.5, -2.0)) -> Source:
    """A disc of value 1, in pixels of the image."""

    def images(first: int, count: int, supersample: int) -> torch.Tensor:
        axis = (torch.arange(20 * supersample) + 0.5) / supersample - 10
        inside = (axis[:, None] - centre[0]) ** 2 + (axis[None, :] - centre[1]) ** 2 <= radius**2
        return inside.float().repeat(count, 1, 1, 1)

    return Source(images, None, None)


def scan(scanner: Scanner, count: int = 1) -> torch.Tensor:
    batches = scan_batches(disc_source(), GEOMETRY, QUIET, seed=0, count=count, scanner=scanner)
    return torch.cat([batch.sinogram for batch in batches])


def test_a_bin_measures_the_mean_over_its_width() -> None:
    """The mean of 2 sqrt(r^2 - s^2) over a bin, in closed form, far from what the ray through its middle sees at the edge."""
    sinogram = scan(Scanner(grid_factor=8, rays_per_bin=16))[0, 0]
    angles = np.asarray(GEOMETRY.angles)
    middle = 1.5 * np.cos(angles) - 2 * np.sin(angles)

    def area(s: np.ndarray) -> np.ndarray:
        s = np.clip(s, -7, 7)
        return np.asarray(s * np.sqrt(49 - s**2) + 49 * np.arcsin(s / 7))

    edges = np.arange(32) - 15.5
    areas = area(edges[None, :] - middle[:, None])
    np.testing.assert_allclose(sinogram.numpy(), np.diff(areas, axis=1), atol=0.12)


def test_the_ideal_scanner_is_the_ray_transform() -> None:
    truth = disc_source().images(0, 1, 1)
    assert torch.equal(scan(Scanner()), ray_transform(GEOMETRY)(truth))


def test_a_wrong_centre_moves_the_sinogram() -> None:
    """The first moment of a view moves by minus the error; its standard deviation is that of the setting."""
    scanner = Scanner(grid_factor=2, rays_per_bin=4, centre_error=0.5)
    moved = scan(scanner, 40)[:, 0].double()
    exact = scan(dataclasses.replace(scanner, centre_error=0.0))[:, 0].double()
    positions = torch.from_numpy(GEOMETRY.bin_positions())
    means = ((moved * positions).sum(-1) / moved.sum(-1) - (exact * positions).sum(-1) / exact.sum(-1)).mean(-1)
    errors = torch.tensor([draw_errors(scanner, GEOMETRY, 0, index).centre for index in range(40)])
    torch.testing.assert_close(means, -errors.double(), atol=0.02, rtol=0)
    assert float(errors.std()) == pytest.approx(0.5, rel=0.4)


def test_wrong_angles_measure_other_angles() -> None:
    scanner = Scanner(angle_error=3.0)
    errors = draw_errors(scanner, GEOMETRY, 0, 0)
    assert np.degrees(errors.angles).std() == pytest.approx(3, rel=0.5)
    turned = dataclasses.replace(GEOMETRY, angles=tuple(np.asarray(GEOMETRY.angles) + errors.angles))
    expected = ray_transform(turned)(disc_source().images(0, 1, 1))
    torch.testing.assert_close(scan(scanner), expected, atol=1e-4, rtol=1e-4)


def test_hardening_and_scatter_are_their_formulas() -> None:
    y = torch.rand(1, 20, 31, dtype=torch.float64) * 4
    p = y * 3 / y.max()
    scanner = Scanner(hardening=0.1, scatter=0.2)
    hard = before_noise(y, scanner, dataclasses.replace(NONE, hardening=0.1))
    torch.testing.assert_close(hard, (p - 0.1 * p**2 / 3) * y.max() / 3)
    assert float(hard.max() / y.max()) == pytest.approx(0.9)  # the largest attenuation loses 10 %
    scattered = before_noise(y, scanner, dataclasses.replace(NONE, scatter=0.2)) * 3 / y.max()
    light = torch.exp(-p)
    torch.testing.assert_close(torch.exp(-scattered), light + 0.2 * (1 - light).mean(-1, keepdim=True))


def test_gains_are_taken_off_attenuations() -> None:
    y = torch.rand(1, 20, 31, dtype=torch.float64)
    gains = dataclasses.replace(NONE, view_gains=np.linspace(-0.1, 0.1, 20), bin_gains=np.linspace(0, 0.2, 31))
    measured = after_noise(y, Scanner(view_gain=0.1, bin_gain=0.1), gains)
    expected = y * 3 / y.max() - torch.from_numpy(gains.view_gains[:, None] + gains.bin_gains)
    torch.testing.assert_close(measured * 3 / y.max(), expected)


def test_a_blur_keeps_sums_and_correlates_noise() -> None:
    """Of white noise, the variance falls to 1 / (2 sqrt(pi) std) for a wide kernel, and neighbours are correlated."""
    impulse = torch.zeros(1, 1, 101, dtype=torch.float64)
    impulse[..., 50] = 1
    out = blurred(impulse, 2.0)
    positions = torch.arange(101, dtype=torch.float64) - 50
    assert float(out.sum()) == pytest.approx(1)
    assert float((out[0, 0] * positions**2).sum()) == pytest.approx(4, rel=1e-2)
    noise = blurred(torch.randn(1, 400, 400, generator=torch.Generator().manual_seed(0)), 2.0)
    assert float(noise.var()) == pytest.approx(1 / (2 * math.sqrt(math.pi) * 2), rel=0.1)
    neighbours = float((noise[..., 1:] * noise[..., :-1]).mean() / noise.var())
    assert neighbours == pytest.approx(math.exp(-1 / 16), abs=0.03)
    torch.testing.assert_close(blurred(torch.ones(1, 2, 9), 3.0), torch.ones(1, 2, 9))


def test_dead_bins_are_interpolated() -> None:
    y = torch.arange(10.0).reshape(1, 1, 10) ** 2
    repaired = interpolated(y, np.array([0, 4, 5]))
    expected = y.clone()
    expected[..., 0] = 1  # the nearest good bin
    expected[..., 4], expected[..., 5] = 9 + (36 - 9) / 3, 9 + 2 * (36 - 9) / 3
    torch.testing.assert_close(repaired, expected)


def test_an_error_does_not_depend_on_the_others() -> None:
    one = draw_errors(Scanner(blur=1.0), GEOMETRY, 3, 7)
    many = draw_errors(Scanner(blur=1.0, dead_bins=5, view_gain=0.1, centre_error=1.0), GEOMETRY, 3, 7)
    assert one.blur == many.blur > 0
    assert draw_errors(Scanner(blur=1.0), GEOMETRY, 3, 8).blur != one.blur


def test_a_share_of_the_scans_has_an_error() -> None:
    scanner = Scanner(centre_error=1.0, share=0.25)
    centres = [draw_errors(scanner, GEOMETRY, 0, index).centre for index in range(400)]
    assert np.mean(np.array(centres) != 0) == pytest.approx(0.25, abs=0.07)


def test_a_scan_does_not_depend_on_its_batch() -> None:
    scanner = Scanner(grid_factor=2, centre_error=0.2, blur=1.0, dead_bins=3, view_gain=0.01, hardening=0.1)
    assert torch.equal(scan(scanner, 3)[:2], scan(scanner, 2))


def test_rays_of_a_bin_are_centred_on_it() -> None:
    fan = FanBeam([0.0, 1.0], 9, 2.0, 0.7, image_shape=(8, 8), source_origin=30.0, source_detector=50.0)
    finer = true_geometry(fan, Scanner(rays_per_bin=3))
    np.testing.assert_allclose(finer.bin_positions().reshape(9, 3).mean(1), fan.bin_positions())


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"rays_per_bin": 0}, "from 1 to 16"), ({"blur": -1.0}, "setting blur"), ({"attenuation": 0.0}, "attenuation")],
)
def test_impossible_scanners_are_named(settings: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Scanner(**settings)  # type: ignore[arg-type]
