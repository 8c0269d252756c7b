"""Structural similarity (Wang, Bovik, Sheikh, Simoncelli 2004)."""

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.metrics import check_pair

WINDOW, STD = 11, 1.5  # pixels of a Gaussian window, as in the article
K1, K2 = 0.01, 0.03


def ssim(
    image: Tensor,  # (batch, 1, height, width)
    truth: Tensor,  # (batch, 1, height, width)
    data_range: float,
) -> Tensor:
    """Mean over all windows inside the image of (2 m n + c1)(2 cov + c2) / ((m^2 + n^2 + c1)(v + w + c2)), (batch,), float64.

    m, n are the local means of image and truth, v, w the local variances, cov the local covariance;
    c1 = (0.01 range)^2, c2 = (0.03 range)^2.
    """
    check_pair(image, truth, data_range)
    if min(image.shape[-2:]) < WINDOW:
        raise UserError(f"ssim: expected images of at least {WINDOW} x {WINDOW}, got {tuple(image.shape[-2:])}")
    image, truth = image.double(), truth.double()
    mean_image, mean_truth = _local_mean(image), _local_mean(truth)
    var_image = _local_mean(image * image) - mean_image**2
    var_truth = _local_mean(truth * truth) - mean_truth**2
    covariance = _local_mean(image * truth) - mean_image * mean_truth
    c1, c2 = (K1 * data_range) ** 2, (K2 * data_range) ** 2
    top = (2 * mean_image * mean_truth + c1) * (2 * covariance + c2)
    bottom = (mean_image**2 + mean_truth**2 + c1) * (var_image + var_truth + c2)
    return (top / bottom).mean(dim=(1, 2, 3))


def _local_mean(x: Tensor) -> Tensor:
    """Gaussian-weighted means over the windows that lie inside the image: a product with a banded matrix along each axis."""
    return _window_matrix(x.shape[-2], x) @ x @ _window_matrix(x.shape[-1], x).T


def _window_matrix(size: int, like: Tensor) -> Tensor:
    """(size - 10, size): a row has the weights of the window, shifted by one pixel from row to row."""
    offset = torch.arange(WINDOW, dtype=like.dtype, device=like.device) - WINDOW // 2
    weights = torch.exp(-((offset / STD) ** 2) / 2)
    starts = torch.arange(size - WINDOW + 1, device=like.device)[:, None]
    matrix = torch.zeros(size - WINDOW + 1, size, dtype=like.dtype, device=like.device)
    return matrix.scatter(
        1, starts + torch.arange(WINDOW, device=like.device), (weights / weights.sum()).expand(len(starts), -1)
    )
