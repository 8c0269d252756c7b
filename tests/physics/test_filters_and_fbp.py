import math

import numpy as np
import pytest
import torch
from skimage.transform import radon

from bayescade.errors import UserError
from bayescade.metrics.psnr import psnr
from bayescade.phantoms import shepp_logan
from bayescade.physics.cases import case_geometry
from bayescade.physics.filters import WINDOWS, apply_ramp, ramp_kernel
from bayescade.physics.geometry import ParallelBeam
from bayescade.projectors import ray_transform


def half_shifted_filter(sinogram: torch.Tensor, bin_width: float) -> torch.Tensor:
    """The paper's filter as it is defined: pad to 2 B - 1, transform on the grid shifted by half a step, times |f|."""
    bins = sinogram.shape[-1]
    count = 2 * bins - 1
    padded = torch.nn.functional.pad(sinogram.double(), (0, bins - 1)).to(torch.complex128)
    place = torch.arange(count, dtype=torch.float64)
    shift = torch.exp(-1j * math.pi * place / count)
    frequency = (place + 0.5) / count
    frequency = torch.where(frequency > 0.5, frequency - 1, frequency).abs() / bin_width
    filtered = torch.fft.ifft(torch.fft.fft(padded * shift) * frequency) * shift.conj()
    return filtered.real[..., :bins]


@pytest.mark.parametrize(("bins", "bin_width"), [(183, 0.989), (8, 1.0), (1, 2.0), (64, 0.5)])
def test_the_filter_is_the_papers(bins: int, bin_width: float) -> None:
    sinogram = torch.randn(3, 1, 4, bins, dtype=torch.float64)
    torch.testing.assert_close(apply_ramp(sinogram, bin_width), half_shifted_filter(sinogram, bin_width))


def test_the_kernel_tends_to_the_band_limited_ramp() -> None:
    """h[0] = 1/4, h[odd n] = -1/(pi n)^2, h[even n] = 0 (Kak and Slaney, eq. 61), times 1/w for w^2 and the bin width."""
    kernel = ramp_kernel(2000, 0.5)[1999:]
    assert float(kernel[0]) == pytest.approx(0.25 / 0.5, rel=1e-5)
    for n in (1, 3, 5):
        assert float(kernel[n]) == pytest.approx(-1 / (math.pi * n) ** 2 / 0.5, rel=1e-3)
    assert abs(float(kernel[2])) < 1e-6


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


def test_fbp_inverts_the_sinogram_of_another_library() -> None:
    """scikit-image's radon transform of the Shepp-Logan head, brought into our axes, is reconstructed by our FBP."""
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
