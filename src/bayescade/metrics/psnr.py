"""Peak signal-to-noise ratio."""

import torch
from torch import Tensor

from bayescade.metrics.rmse import rmse


def psnr(
    image: Tensor,  # (batch, 1, height, width)
    truth: Tensor,  # (batch, 1, height, width)
    data_range: float,
) -> Tensor:
    """10 log10(data_range^2 / mean (image - truth)^2) of each image in dB, (batch,), float64; infinite for equal images."""
    return -20 * torch.log10(rmse(image, truth, data_range))
