"""The standard deviation of white noise in a sinogram, from the sinogram alone."""

from collections.abc import Sequence

import torch
from torch import Tensor

# A window has at least this many bins, and at least this many values (bins x views).
WINDOW_BINS, WINDOW_VALUES = 8, 128
NORMAL_MEDIAN = 0.6745  # of the absolute value of a standard normal number


def noise_std(
    sinogram: Tensor,  # (batch, 1, views, bins)
    shapes: Sequence[tuple[int, int]] | None = None,  # views and bins of each sinogram, if they are padded with zeros
) -> Tensor:
    """Standard deviation of white noise in each sinogram, (batch,): from fourth differences along the bins.

    The differences remove smooth signals and multiply the standard deviation of white noise by sqrt(70). The median of
    their absolute values, divided by 0.6745, is robust against single edges. Projections of pixels vary from bin to bin
    even without noise. So the detector is split into windows of bins, each with all views, and the tenth percentile of
    the medians of all windows is used: the rays of such a window do not cross the object.
    """
    views, bins = sinogram.shape[-2:]
    if shapes is None:
        return _std(_differences(sinogram), window_bins(views, bins))
    widths = [window_bins(*shape) for shape in shapes]
    std = sinogram.new_zeros(len(sinogram))
    for width in set(widths):
        chosen = [number for number, own in enumerate(widths) if own == width]
        if not width:
            continue
        measured = _in_windows(sinogram, [shapes[number] for number in chosen], width)
        std[chosen] = _std(torch.where(measured, _differences(sinogram[chosen]), torch.nan), width)
    return std


def window_bins(views: int, bins: int) -> int:
    """The bins of a window; 0 if there are too few to separate noise from signal."""
    return max(0, min(max(WINDOW_BINS, -(-WINDOW_VALUES // views)), bins - 4))


def _differences(y: Tensor) -> Tensor:
    """Absolute values of fourth differences, (batch, views, bins - 4)."""
    return (y[..., :-4] - 4 * y[..., 1:-3] + 6 * y[..., 2:-2] - 4 * y[..., 3:-1] + y[..., 4:])[:, 0].abs()


def _std(
    differences: Tensor,  # (batch, views, bins - 4); NaN: not measured
    width: int,  # of a window
) -> Tensor:
    if not width:
        return differences.new_zeros(len(differences))
    windows = differences.unfold(-1, width, width)  # (batch, views, windows, width)
    medians = windows.transpose(1, 2).flatten(2).nanmedian(2).values  # (batch, windows)
    medians = torch.where(medians > 0, medians, torch.inf).sort(1).values  # windows of masked bins, all 0, do not count
    count = torch.isfinite(medians).sum(1, keepdim=True)
    percentile = medians.gather(1, (count // 10).clamp_max(medians.shape[1] - 1))[:, 0]
    return torch.where(count[:, 0] > 0, percentile, 0.0) / NORMAL_MEDIAN / 70**0.5


def _in_windows(sinogram: Tensor, shapes: Sequence[tuple[int, int]], width: int) -> Tensor:
    """Whether a difference is one of measured values and in a window without padding, (batch, views, bins - 4)."""
    views, bins = sinogram.shape[-2:]
    counts = torch.tensor(shapes, device=sinogram.device)[:, :, None, None]
    view, b = (torch.arange(size, device=sinogram.device) for size in (views, bins - 4))
    return (view[:, None] < counts[:, 0]) & (b < (counts[:, 1] - 4) // width * width)
