"""Error bars on a region: its mean, and the covariance of its pixels, from coherent draws.

The paper's formula: Cov = mean diag(s) + mean f f' - (mean f) (mean f)', with draws f of the image and aleatoric variances s,
which are independent from pixel to pixel. The draws must share one draw of the weights over all pixels (`draw_images` with
weights).
"""

import dataclasses

import torch
from torch import Tensor

from bayescade.errors import UserError

MOST_PIXELS = 20_000  # of a covariance matrix


@dataclasses.dataclass(frozen=True)
class RegionMean:
    """The mean over a region and how sure it is, one number per image.

    Only the epistemic part knows how pixels hang together; the aleatoric part takes them as independent and is too small for
    errors that are not.
    """

    mean: Tensor  # (batch,)
    aleatoric: Tensor  # (batch,) variance of the mean
    epistemic: Tensor  # (batch,) variance of the mean

    @property
    def std(self) -> Tensor:
        """Standard deviation of the mean."""
        return (self.aleatoric + self.epistemic).sqrt()


def region_mean(
    draws: Tensor,  # (samples, batch, 1, height, width), without aleatoric noise
    aleatoric: Tensor,  # (batch, 1, height, width) variance
    mask: Tensor,  # (height, width) bool
) -> RegionMean:
    """The mean of the region's pixels, with the variance that the covariance of its pixels gives it."""
    inside = _inside(draws, mask)
    means = inside.double().mean(-1)  # (samples, batch)
    noise = aleatoric[:, 0][:, mask].double().mean(-1) / int(mask.sum())
    return RegionMean(means.mean(0), noise, means.var(0, correction=0))


def region_covariance(
    draws: Tensor,  # (samples, batch, 1, height, width), without aleatoric noise
    aleatoric: Tensor,  # (batch, 1, height, width) variance
    mask: Tensor,  # (height, width) bool
) -> Tensor:
    """The covariance of the region's pixels, (batch, pixels, pixels), pixels in the order of the mask."""
    if int(mask.sum()) > MOST_PIXELS:
        raise UserError(f"region: expected at most {MOST_PIXELS} pixels, got {int(mask.sum())}; use region_mean")
    inside = _inside(draws, mask).double()
    away = (inside - inside.mean(0)).transpose(0, 1)  # (batch, samples, pixels)
    return away.transpose(1, 2) @ away / len(draws) + torch.diag_embed(aleatoric[:, 0][:, mask].double())


def _inside(draws: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool or mask.shape != draws.shape[-2:] or not bool(mask.any()):
        raise UserError(
            f"region: expected a mask of booleans of shape {tuple(draws.shape[-2:])} with a pixel in it, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    return draws[:, :, 0][:, :, mask]
