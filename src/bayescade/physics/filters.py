"""Ramp filters of filtered back-projection.

The filter is one real, even kernel h of 2 B - 1 taps for B bins of width w, (h * p)[b] = w sum_c h[b - c] p[c]: the ramp |f|
times a window, cut off at half a cycle per bin. There are two ways to compute the taps, chosen by `ramp`.

- `band-limited`: the exact taps, with u = f w in cycles per bin,

      h[n] = 1/w^2 integral over |u| <= 1/2 of |u| window(u) cos(2 pi u n),

  without a window h[0] = 1/(4 w^2), h[n] = -1/(pi n w)^2 for odd n and 0 for even n (Kak and Slaney 1988, eq. 61).
- `shifted`: the paper's. The integral is a sum over N = 2 B - 1 frequencies, shifted by half a step,

      h[n] = 1/(N w) sum_k |f_k| window(f_k w) cos(2 pi f_k w n),   f_k = (k + 1/2) / (N w), k = -N/2 .. N/2 - 1.

  It tends to the former as N grows, but with so few frequencies an image reads too high everywhere: a large disc of value 1
  reads 1.02 inside and 0.02 outside. (On the usual frequencies, with one at zero, it would read too low.)
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayescade.errors import UserError

Window = Callable[[Tensor], Tensor]  # of u = f w in cycles per bin, |u| <= 1/2

LENGTHENING = 64  # length of the transform for a window over the number of bins
LEAST_BINS = 64  # smallest number of bins of that transform

WINDOWS: dict[str, Window] = {
    "ram-lak": torch.ones_like,
    "shepp-logan": torch.sinc,
    "cosine": lambda u: torch.cos(math.pi * u),
    "hann": lambda u: torch.cos(math.pi * u) ** 2,
}


def check_window(window: str) -> None:
    """Raises unless there is a window of that name."""
    if window not in WINDOWS:
        raise UserError(f"unknown window '{window}'; there are: {', '.join(WINDOWS)}")


def check_ramp(ramp: str) -> None:
    """Raises unless there is a ramp of that name."""
    if ramp not in RAMPS:
        raise UserError(f"unknown ramp '{ramp}'; there are: {', '.join(RAMPS)}")


def ramp_kernel(bins: int, bin_width: float, window: str = "ram-lak", ramp: str = "band-limited") -> Tensor:
    """Taps h[-(bins-1)] .. h[bins-1] of the windowed ramp times the bin width, (2 bins - 1,), float64."""
    check_window(window)
    check_ramp(ramp)
    half = RAMPS[ramp](bins, bin_width, WINDOWS[window])
    return torch.cat([half.flip(0), half[1:]])


def band_limited_taps(bins: int, bin_width: float, window: Window) -> Tensor:
    """Taps w h[0] .. w h[bins-1] of the exact ramp, (bins,).

    The window multiplies the Fourier transform of many more taps than bins, so that the wrap-around error is small, also in
    the sum of the taps (the filter at frequency zero).
    """
    length = LENGTHENING * 2 ** math.ceil(math.log2(max(bins, LEAST_BINS)))
    n = torch.arange(length // 2 + 1, dtype=torch.float64)
    taps = torch.where(n % 2 == 1, -1 / (math.pi * n) ** 2, 0.0)
    taps[0] = 1 / 4
    spectrum = torch.fft.hfft(taps, length)  # real, since the taps are even in n
    return torch.fft.ihfft(spectrum * window(torch.fft.fftfreq(length, dtype=torch.float64))).real[:bins] / bin_width


def shifted_taps(bins: int, bin_width: float, window: Window) -> Tensor:
    """Taps w h[0] .. w h[bins-1] of the paper's ramp, (bins,)."""
    count = 2 * bins - 1
    index = torch.arange(count, dtype=torch.float64)
    u = (index + 0.5) / count
    u = torch.where(u > 0.5, u - 1, u)
    ramp = u.abs() * window(u) / bin_width
    return (torch.fft.ifft(ramp) * torch.exp(1j * math.pi * index / count)).real[:bins]


RAMPS = {"band-limited": band_limited_taps, "shifted": shifted_taps}


def apply_ramp(
    sinogram: Tensor,  # (..., bins)
    bin_width: float,
    window: str = "ram-lak",
    ramp: str = "band-limited",
) -> Tensor:
    """The sinogram convolved along its bins with the ramp; zero outside the detector, no wrap-around."""
    bins = sinogram.shape[-1]
    length = fast_length(2 * bins - 1)  # what wraps around falls on values that are cut off
    spectrum = ramp_spectrum(bins, bin_width, window, ramp, length, sinogram.device, sinogram.dtype)
    filtered = torch.fft.irfft(torch.fft.rfft(sinogram, length) * spectrum, length)
    return filtered[..., bins - 1 : 2 * bins - 1]


@functools.lru_cache(maxsize=1024)
def fast_length(least: int) -> int:
    """The smallest even number of at least `least` without prime factors above 5: a fast length of a Fourier transform."""
    length = least + least % 2
    while True:
        rest = length
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 2


@functools.lru_cache(maxsize=1024)
@torch.inference_mode(False)  # the cached spectrum may be used with gradients later
def ramp_spectrum(
    bins: int,
    bin_width: float,
    window: str,
    ramp: str,
    length: int,  # of the transform
    device: torch.device,
    dtype: torch.dtype,  # of sinograms
) -> Tensor:
    """The kernel's Fourier transform, (length // 2 + 1,); cached: many sinograms of one scan follow each other."""
    spectrum = torch.fft.rfft(ramp_kernel(bins, bin_width, window, ramp), length)
    return spectrum.to(device, torch.complex128 if dtype == torch.float64 else torch.complex64)
