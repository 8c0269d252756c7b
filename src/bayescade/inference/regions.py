"""Uncertainty of a region of an image, from samples of the image: its mean with error bars, and the covariance of its pixels.

The paper's predictive covariance (appendix A.2): Cov = mean diag(s) + mean f f' - (mean f) (mean f)', with samples f of the
image and aleatoric variances s. Aleatoric noise is independent from pixel to pixel. A sample must use the same weights in all
pixels (`sample_images` with inference.sampling=weights or all-weights).
"""

import dataclasses

import torch
from torch import Tensor

from bayescade.errors import UserError

MOST_PIXELS = 20_000  # of the region of a covariance matrix


@dataclasses.dataclass(frozen=True)
class RegionMean:
    """The mean over a region and the variances of this mean, one number per image.

    Only the epistemic variance includes correlations between pixels. The aleatoric variance treats pixels as independent: it
    is too small if their errors are correlated.
    """

    mean: Tensor  # (batch,)
    aleatoric: Tensor  # (batch,) variance of the mean
    epistemic: Tensor  # (batch,) variance of the mean

    @property
    def std(self) -> Tensor:
        """Standard deviation of the mean: aleatoric and epistemic together."""
        return (self.aleatoric + self.epistemic).sqrt()


def region_mean(
    samples: Tensor,  # (samples, batch, 1, height, width), without aleatoric noise
    aleatoric: Tensor,  # (batch, 1, height, width) variance
    mask: Tensor,  # (height, width) bool
) -> RegionMean:
    """The mean of the region's pixels. Its variance is the mean of all entries of `region_covariance`."""
    means = _region_pixels(samples, mask).double().mean(-1)  # (samples, batch)
    aleatoric_of_mean = aleatoric[:, 0][:, mask].double().mean(-1) / int(mask.sum())
    return RegionMean(means.mean(0), aleatoric_of_mean, means.var(0, correction=0))


def region_covariance(
    samples: Tensor,  # (samples, batch, 1, height, width), without aleatoric noise
    aleatoric: Tensor,  # (batch, 1, height, width) variance
    mask: Tensor,  # (height, width) bool
) -> Tensor:
    """The covariance of the region's pixels, (batch, pixels, pixels), pixels in the order of the mask."""
    if int(mask.sum()) > MOST_PIXELS:
        raise UserError(f"region: expected at most {MOST_PIXELS} pixels, got {int(mask.sum())}; use region_mean")
    pixels = _region_pixels(samples, mask).double()
    deviation = (pixels - pixels.mean(0)).transpose(0, 1)  # (batch, samples, pixels)
    return deviation.transpose(1, 2) @ deviation / len(samples) + torch.diag_embed(aleatoric[:, 0][:, mask].double())


def _region_pixels(samples: Tensor, mask: Tensor) -> Tensor:
    """The pixels of the region, (samples, batch, pixels)."""
    if mask.dtype != torch.bool or mask.shape != samples.shape[-2:] or not bool(mask.any()):
        raise UserError(
            f"region: expected a mask of booleans of shape {tuple(samples.shape[-2:])} with at least one True, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    return samples[:, :, 0][:, :, mask]
