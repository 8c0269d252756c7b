"""What became of one reconstruction whose truth is known: all that the calibration of many images needs, in little memory."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d

from bayescade.results import Reconstruction
from bayescade.uncertainty.conformal import image_losses
from bayescade.uncertainty.strata import LEAST_PIXELS, strata

REGION_SIZES = (1, 2, 4, 8, 16, 32)  # edges of square regions, in pixels


@dataclasses.dataclass(frozen=True)
class StratumOutcome:
    """The pixels of one stratum of one image."""

    losses: NDArray[np.float64]  # (multipliers,): share of the pixels with |error| / std above each multiplier
    squared_error: float  # sum over the pixels
    variance: float  # sum over the pixels
    std: float  # sum over the pixels
    pixels: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One image."""

    family: str  # of its object
    strata: dict[int, StratumOutcome]
    maps: "Maps"
    claimed: float  # root of the mean variance
    found: float  # root of the mean squared error


@dataclasses.dataclass(frozen=True)
class Maps:
    """Error, predicted variance and stratum of every pixel of an image, (height, width)."""

    error: Tensor  # float32
    variance: Tensor  # float32
    strata: Tensor  # int8

    @property
    def sizes(self) -> list[int]:
        """The sizes of regions that the image has."""
        return [size for size in REGION_SIZES if size <= min(self.error.shape)]

    def region_losses(
        self,
        size: int,
        scales: Sequence[float] | None = None,  # factor of the standard deviation in every stratum
    ) -> NDArray[np.float64]:
        """The losses of the means over regions."""
        variance = self.variance.double()
        if scales is not None:
            variance = variance * torch.tensor(scales, dtype=torch.float64)[self.strata.long()].square()
        return image_losses(region_ratios(self.error.double(), variance, size).numpy())


def region_ratios(error: Tensor, variance: Tensor, size: int) -> Tensor:
    """|mean error| / root of the mean variance, over square regions side by side, (regions,).

    The root of the mean variance is the standard deviation of a mean of pixels whose errors are all the same: the largest
    that it can be.
    """
    mean_error, mean_variance = (avg_pool2d(values[None, None], size) for values in (error, variance))
    return (mean_error.abs() / mean_variance.clamp_min(1e-30).sqrt()).flatten()


def outcome(
    result: Reconstruction,  # of one image
    truth: Tensor,  # (1, 1, height, width)
    family: str,
) -> Outcome:
    """The outcome of one image."""
    image, variance = result.image.double().cpu(), result.variance.double().cpu().clamp_min(1e-30)
    truth = truth.double().cpu()
    error, std = image - truth, variance.sqrt()
    labels = strata(image, std)
    ratios = error.abs() / std
    by_stratum = {}
    for index in labels.unique().tolist():
        chosen = labels == index
        if int(chosen.sum()) >= LEAST_PIXELS:
            by_stratum[index] = StratumOutcome(
                image_losses(ratios[chosen].numpy()),
                float(error[chosen].square().sum()),
                float(variance[chosen].sum()),
                float(std[chosen].sum()),
                int(chosen.sum()),
            )
    return Outcome(
        family=family,
        strata=by_stratum,
        maps=Maps(error[0, 0].float(), variance[0, 0].float(), labels[0, 0].to(torch.int8)),
        claimed=float(variance.mean().sqrt()),
        found=float(error.square().mean().sqrt()),
    )
