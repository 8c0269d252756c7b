import math

import numpy as np
import pytest
import torch
from skimage.transform import iradon, radon

from bayescade.errors import UserError
from bayescade.metrics.psnr import psnr
from bayescade.phantoms import shepp_logan
from bayescade.physics.cases import case_geometry
from bayescade.physics.filters import WINDOWS, apply_ramp, ramp_kernel
from bayescade.physics.geometry import ParallelBeam
from bayescade.physics.redundancy import density_weights
from bayescade.projectors import ray_transform


def half_shifted_filter(sinogram: torch.Tensor, bin_width: float) -> torch.Tensor:
    """The paper's filter as it is defined: pad to 2 B - 1, transform on the grid shifted by half a step, times |f|."""
    bins = sinogram.shape[-1]
    count = 2 * bins - 1
    padded = torch.nn.functional.pad(sinogram.double(), (0, bins - 1)).to(torch.complex128)
    index = torch.arange(count, dtype=torch.float64)
    shift = torch.exp(-1j * math.pi * index / count)
    frequency = (index + 0.5) / count
    frequency = torch.where(frequency > 0.5, frequency - 1, frequency).abs() / bin_width
    filtered = torch.fft.ifft(torch.fft.fft(padded * shift) * frequency) * shift.conj()
    return filtered.real[..., :bins]


@pytest.mark.parametrize(("bins", "bin_width"), [(183, 0.989), (8, 1.0), (1, 2.0), (64, 0.5)])
def test_the_filter_is_the_papers(bins: int, bin_width: float) -> None:
    sinogram = torch.randn(3, 1, 4, bins, dtype=torch.float64)
    torch.testing.assert_close(
        apply_ramp(sinogram, bin_width, ramp="shifted"), half_shifted_filter(sinogram, bin_width)
    )


def continuous_ramp(n: np.ndarray) -> np.ndarray:
    """integral over |u| <= 1/2 of |u| cos(2 pi u n), between the taps too."""
    return np.sinc(n) / 2 - np.sinc(n / 2) ** 2 / 4


TAPS = {  # of |u| window(u) at bin n, in closed form: cosines of the window shift the ramp
    "ram-lak": lambda n: np.where(n % 2 == 1, -1 / (math.pi * np.maximum(n, 1)) ** 2, np.where(n == 0, 0.25, 0)),
    "shepp-logan": lambda n: 2 / (math.pi**2 * (1 - 4 * n**2)),
    "cosine": lambda n: (continuous_ramp(n - 0.5) + continuous_ramp(n + 0.5)) / 2,
    "hann": lambda n: continuous_ramp(n) / 2 + (continuous_ramp(n - 1) + continuous_ramp(n + 1)) / 4,
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("bins", [1, 2, 183])
def test_the_band_limited_taps_are_exact(window: str, bins: int) -> None:
    """Kak and Slaney, eq. 61, times 1/w for w^2 and the bin width; also the sum of the taps, which decides about the mean."""
    kernel = ramp_kernel(bins, 0.5, window).numpy()
    expected = TAPS[window](abs(np.arange(1 - bins, bins))) / 0.5
    np.testing.assert_allclose(kernel, expected, atol=1e-4 / bins**2)
    assert kernel.sum() == pytest.approx(expected.sum(), rel=1e-4)


@pytest.mark.parametrize("window", WINDOWS)
def test_the_shifted_ramp_tends_to_the_band_limited(window: str) -> None:
    shifted, exact = (ramp_kernel(2000, 0.5, window, ramp)[1999:2020] for ramp in ("shifted", "band-limited"))
    torch.testing.assert_close(shifted, exact, rtol=0, atol=1e-7)
    assert not torch.equal(shifted, exact)


def test_what_is_kept_of_a_filter_has_gradients_later() -> None:
    sinogram = torch.randn(2, 17, dtype=torch.float64)
    with torch.inference_mode():
        first = apply_ramp(sinogram, 0.77)
    again = sinogram.clone().requires_grad_()
    apply_ramp(again, 0.77).sum().backward()
    assert torch.equal(apply_ramp(sinogram, 0.77), first)
    assert again.grad is not None
    assert apply_ramp(sinogram.float(), 0.77).dtype == torch.float32


def test_windows_smooth_more_and_more() -> None:
    noise = torch.randn(1, 1, 50, 183, dtype=torch.float64)
    rough = [float(apply_ramp(noise, 1.0, window).std()) for window in WINDOWS]
    assert rough == sorted(rough, reverse=True)
    assert list(WINDOWS) == ["ram-lak", "shepp-logan", "cosine", "hann"]


def test_an_unknown_window_lists_the_windows() -> None:
    with pytest.raises(UserError, match="ram-lak, shepp-logan, cosine, hann"):
        ramp_kernel(5, 1.0, "hamming")


def test_an_unknown_ramp_lists_the_ramps() -> None:
    with pytest.raises(UserError, match="unknown ramp 'ramp'; there are: band-limited, shifted"):
        apply_ramp(torch.zeros(1, 5), 1.0, ramp="ramp")


@pytest.mark.parametrize(("pixel_size", "bin_width"), [(1.0, 1.0), (0.2, 0.13), (3.0, 2.0)])
def test_fbp_has_the_right_scale_in_any_unit(pixel_size: float, bin_width: float) -> None:
    """A disc of value 1 comes back as 1 inside and 0 outside, whatever the units."""
    radius = 20 * pixel_size
    bins = math.ceil(100 * pixel_size / bin_width)
    geometry = ParallelBeam(np.arange(180) * math.pi / 180, bins, bin_width, 0.0, pixel_size, (64, 64))
    s = geometry.bin_positions()
    sinogram = 2 * np.sqrt(np.maximum(radius**2 - s**2, 0))
    data = torch.tensor(np.broadcast_to(sinogram, (1, 1, 180, bins)).copy(), dtype=torch.float32)
    image = ray_transform(geometry).fbp(data)[0, 0]
    assert float(image[24:40, 24:40].mean()) == pytest.approx(1, abs=0.01)
    assert float(image[:5, :5].mean()) == pytest.approx(0, abs=0.02)


def disc_means(image: np.ndarray, radius: float) -> tuple[float, float]:
    """Means over a disc in the middle, and over a ring around it, away from its edge."""
    middle = np.arange(len(image)) - (len(image) - 1) / 2
    distance = np.hypot(middle[:, None], middle[None])
    return float(image[distance < 0.8 * radius].mean()), float(
        image[(distance > 1.2 * radius) & (distance < 63)].mean()
    )


DISC_SCANS = {
    "180 degrees": {},
    "360 degrees": {"angles": np.arange(720) * math.pi / 360},
    "narrow bins": {"bins": 261, "bin_width": 0.7},
    "wide bins, off the axis": {"bins": 121, "bin_width": 1.5, "offset": 0.4},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DISC_SCANS)
def test_a_disc_reads_one_inside_and_zero_outside(name: str) -> None:
    """From its exact line integrals, 2 sqrt(r^2 - s^2), with every window."""
    values = {"angles": np.arange(360) * math.pi / 360, "bins": 183, "image_shape": (127, 127), **DISC_SCANS[name]}
    geometry = ParallelBeam(**values)
    row = 2 * np.sqrt(np.maximum(40**2 - geometry.bin_positions() ** 2, 0))
    data = torch.tensor(row, dtype=torch.float32).expand(1, 1, geometry.views, geometry.bins)
    operator = ray_transform(geometry)
    for window in WINDOWS:
        inside, outside = disc_means(operator.fbp(data, window)[0, 0].numpy(), 40)
        assert inside == pytest.approx(1, abs=0.003), window
        assert outside == pytest.approx(0, abs=0.003), window
        inside, outside = disc_means(operator.fbp(data, window, "shifted")[0, 0].numpy(), 40)
        assert inside > 1.007, "the paper's ramp reads too high"
        assert outside > 0.007


def test_fbp_is_that_of_another_library() -> None:
    """scikit-image's iradon, from the line integrals of a disc: the same inside and outside, and nearly the same pixels."""
    geometry = ParallelBeam(np.arange(360) * math.pi / 360, 127, image_shape=(127, 127))
    row = 2 * np.sqrt(np.maximum(40**2 - geometry.bin_positions() ** 2, 0))
    data = np.tile(row.astype(np.float32), (360, 1))
    theirs = iradon(data.T, theta=np.rad2deg(geometry.angles), filter_name="ramp", circle=True)
    ours = ray_transform(geometry).fbp(torch.tensor(data)[None, None])[0, 0].numpy()
    assert disc_means(ours, 40) == pytest.approx(disc_means(theirs, 40), abs=2e-4)
    middle = slice(20, -20)
    assert np.sqrt(((ours - theirs)[middle, middle] ** 2).mean()) < 0.02


def test_fbp_inverts_the_sinogram_of_another_library() -> None:
    """scikit-image's radon transform of the Shepp-Logan phantom, brought into our axes, is reconstructed by our FBP."""
    image = shepp_logan.generate(1, (127, 127))[0, 0].numpy()  # odd: both libraries rotate about the middle pixel
    angles = np.arange(180.0)
    # skimage: rows are y downwards, columns x; angle a projects onto the direction (cos a, -sin a) of (column, row).
    theirs = radon(image.T[::-1], theta=angles, circle=True)
    geometry = ParallelBeam(np.deg2rad(angles), 127, 1.0, 0.0, 1.0, (127, 127))
    data = torch.tensor(theirs.T.copy(), dtype=torch.float32)[None, None]
    ours = ray_transform(geometry)(torch.tensor(image)[None, None])
    assert float((ours - data).norm() / ours.norm()) < 0.02
    result = ray_transform(geometry).fbp(data, "hann")
    assert float(psnr(result, torch.tensor(image)[None, None], 1.0)) > 20


def test_fbp_is_differentiable() -> None:
    operator = ray_transform(case_geometry("sparse-8"))
    y = torch.rand(1, 1, 8, 183, requires_grad=True)
    operator.fbp(y).square().sum().backward()
    assert y.grad is not None
    assert bool(torch.isfinite(y.grad).all())


@pytest.mark.parametrize("offset", [18.0, -18.0])
def test_a_displaced_parallel_detector_sees_the_outside_once(offset: float) -> None:
    """A scan all around by a detector that reaches past the axis on one side only gives back a disc all the same."""
    geometry = ParallelBeam(np.arange(360) * math.pi / 180, 70, 1.0, offset, image_shape=(64, 64))
    angle, position = np.asarray(geometry.angles)[:, None], geometry.bin_positions()[None]
    distance = position - 18 * np.cos(angle) - 3 * np.sin(angle)
    data = torch.tensor(2 * np.sqrt(np.maximum(64 - distance**2, 0)), dtype=torch.float32)[None, None]
    image = ray_transform(geometry, calls=1).fbp(data, "hann")[0, 0]
    i, j = np.indices((64, 64)) - 31.5
    radius = np.hypot(i - 18, j - 3)
    assert float(image[radius < 6].mean()) == pytest.approx(1, abs=0.01)
    assert float(image[(radius > 10) & (np.hypot(i, j) < 31)].mean()) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    "angles",
    [
        np.concatenate([np.arange(60) / 60, 1 + np.arange(15) / 15]) * math.pi / 2,  # two densities
        np.arange(80) * math.pi / 60,  # a third of the directions twice
    ],
    ids=["two densities", "240 degrees"],
)
def test_views_at_unequal_steps_count_by_their_angle(angles: np.ndarray) -> None:
    """A disc far from the border: 1 inside. With equal weights it would be an ellipse of other values."""
    scan = ParallelBeam(angles, 91, image_shape=(64, 64))
    axis = torch.arange(64.0) - 31.5
    disc = (axis[:, None] ** 2 + axis[None, :] ** 2 <= 100).float()[None, None]
    operator = ray_transform(scan)
    image = operator.fbp(operator(disc))
    assert float((image[disc > 0] - 1).abs().mean()) < 0.05
    assert float(image[0, 0, 28:36, 28:36].mean()) == pytest.approx(1, abs=0.01)


def test_equal_steps_have_equal_weights_also_beside_holes() -> None:
    for angles in (
        np.arange(32) * math.pi / 32,
        0.3 + np.arange(360) * math.pi / 180,
        np.arange(40) * math.pi / 120,
        np.concatenate([np.arange(30), 60 + np.arange(30)]) * math.pi / 180,
        np.array([0.7]),
    ):
        assert density_weights(ParallelBeam(angles, 9, image_shape=(8, 8))) is None
