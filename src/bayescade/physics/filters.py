"""Ramp filters of filtered back-projection.

The ramp |f| is sampled on a frequency grid shifted by half a step, f_k = (k + 1/2) / (N w), k = -N/2 .. N/2 - 1, with
N = 2 B - 1 for B bins of width w: no sample is at frequency zero. (On the ordinary grid the sample at zero removes the
mean of the sinogram, which costs 0.8 dB at 128 views.) A window multiplies the ramp. The filter is then one real, even
kernel of 2 B - 1 taps,

    h[n] = 1/(N w) sum_k |f_k| window(f_k w) cos(2 pi f_k w n),   (h * p)[b] = w sum_c h[b - c] p[c],

which tends to the band-limited ramp of Kak and Slaney (1988, section 3.3) as N grows.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayescade.errors import UserError

# Windows over u = f w in cycles per bin, |u| <= 1/2.
WINDOWS: dict[str, Callable[[Tensor], Tensor]] = {
    "ram-lak": torch.ones_like,
    "shepp-logan": torch.sinc,
    "cosine": lambda u: torch.cos(math.pi * u),
    "hann": lambda u: torch.cos(math.pi * u) ** 2,
}


def check_window(window: str) -> None:
    """Raises unless there is a window of that name."""
    if window not in WINDOWS:
        raise UserError(f"unknown window '{window}'; there are: {', '.join(WINDOWS)}")


def ramp_kernel(bins: int, bin_width: float, window: str = "ram-lak") -> Tensor:
    """Taps h[-(bins-1)] .. h[bins-1] of the windowed ramp times the bin width, (2 bins - 1,), float64."""
    check_window(window)
    count = 2 * bins - 1
    place = torch.arange(count, dtype=torch.float64)
    u = (place + 0.5) / count
    u = torch.where(u > 0.5, u - 1, u)
    ramp = u.abs() * WINDOWS[window](u) / bin_width
    half = (torch.fft.ifft(ramp) * torch.exp(1j * math.pi * place / count)).real[:bins]
    return torch.cat([half.flip(0), half[1:]])


def apply_ramp(
    sinogram: Tensor,  # (..., bins)
    bin_width: float,
    window: str = "ram-lak",
) -> Tensor:
    """The sinogram convolved along its bins with the ramp; zero outside the detector, no wrap-around."""
    bins = sinogram.shape[-1]
    length = 2 ** math.ceil(math.log2(3 * bins))
    spectrum = ramp_spectrum(bins, bin_width, window, length, sinogram.device, sinogram.dtype)
    filtered = torch.fft.irfft(torch.fft.rfft(sinogram, length) * spectrum, length)
    return filtered[..., bins - 1 : 2 * bins - 1]


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)  # what is kept may be asked for with gradients next time
def ramp_spectrum(
    bins: int,
    bin_width: float,
    window: str,
    length: int,  # of the transform
    device: torch.device,
    dtype: torch.dtype,  # of sinograms
) -> Tensor:
    """The kernel's Fourier transform, (length // 2 + 1,); kept, since many sinograms of one scan come one after the other."""
    spectrum = torch.fft.rfft(ramp_kernel(bins, bin_width, window), length)
    return spectrum.to(device, torch.complex128 if dtype == torch.float64 else torch.complex64)
