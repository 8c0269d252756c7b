"""The posterior of the weights of a last layer in closed form, for fixed features.

Pixel i has features h_i (a 3 x 3 patch of all channels, and a 1 for the bias), a noise precision w_i, and a residual e_i at the
current mean m of the weights. Then the likelihood is Gaussian in the weights. Its precision is G = sum w h h', and the gradient
of its logarithm at m is r = sum w e h. With the prior N(0, I) for the weights, a flat prior for the bias, and the likelihood
raised to the power 1 / temperature, the exact posterior has

    precision P + G / temperature,    mean m + (P + G / temperature)^-1 (r / temperature - P m),    P = diag(1, ..., 1, 0),

and the Gaussian with independent weights that is nearest to the posterior in KL(q || p) has this mean and the variances
1 / (1 + G_dd / temperature). For a likelihood that is not Gaussian in the weights this is one step of Fisher scoring.
"""

import dataclasses
from typing import Protocol, final

import torch
from torch import Tensor
from torch.nn.functional import pad, unfold

from bayescade.bayes.layers import KERNEL, LastConv, MeanFieldConv

WORK_BYTES = 2**30  # most bytes of patches in memory at the same time


@final
class NormalEquations:
    """G and r, summed over the pixels of many batches, in float64."""

    def __init__(self, layer: MeanFieldConv):
        unknowns = layer.weight.numel() + 1  # weights and bias
        self.gram = torch.zeros((unknowns, unknowns), dtype=torch.float64, device=layer.weight.device)  # G
        self.slope = torch.zeros(unknowns, dtype=torch.float64, device=layer.weight.device)  # r

    def add(
        self,
        h: Tensor,  # (batch, channels, height, width)
        weight: Tensor,  # (batch, 1, height, width) w: the precision of each pixel
        residual: Tensor,  # (batch, 1, height, width) e
    ) -> None:
        """Adds the pixels of a batch. Patches are large, so the batch is split to fit memory."""
        h = h if h.dtype == torch.float64 else h.float()
        at_once = max(1, WORK_BYTES // (4 * len(self.slope) * h[0, 0].numel() * h.element_size()))  # number of images
        chunks = zip(h.split(at_once), weight.split(at_once), residual.split(at_once), strict=True)
        for features, w, e in chunks:
            patches = unfold(features, KERNEL, padding=KERNEL // 2)  # (images, channels * 9, pixels)
            patches = torch.cat([patches, torch.ones_like(patches[:, :1])], 1).transpose(0, 1).flatten(1)
            weighted = patches * w.flatten()
            self.gram += (weighted @ patches.T).double()
            self.slope += (weighted @ e.flatten()).double()

    def posterior(
        self,
        mean: Tensor,  # (weights + 1,) m: weights, then bias
        temperature: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Mean and covariance of the exact posterior, from G and r at the current mean m."""
        prior = torch.ones_like(self.slope)  # the diagonal of P
        prior[-1] = 0
        precision = torch.diag(prior) + self.gram / temperature
        step = torch.linalg.solve(precision, self.slope / temperature - prior * mean)
        return mean + step, torch.linalg.inv(precision)

    @torch.no_grad()
    def refit(self, layer: MeanFieldConv, temperature: float = 1.0) -> None:
        """Sets the layer to the Gaussian with independent weights that is nearest to the posterior."""
        layer.log_std.copy_(posterior_log_std(self.gram.diagonal()[:-1], temperature).reshape(layer.log_std.shape))
        mean = torch.cat([layer.weight.flatten(), layer.bias]).double()
        mean, _ = self.posterior(mean, temperature)
        layer.weight.copy_(mean[:-1].reshape(layer.weight.shape))
        layer.bias.copy_(mean[-1:])


class Inputs(Protocol):
    """The input of a last layer for a batch of images, in any memory layout."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    def output_mean(self, layer: LastConv) -> Tensor:
        """The layer's output with mean weights, (images, 1, height, width)."""

    def output_variance(self, layer: LastConv) -> Tensor:
        """The variance of the output, (images, 1, height, width)."""

    def curvature(
        self,
        weight: Tensor,  # (images, 1, height, width) w: the precision of each pixel
    ) -> Tensor:
        """The diagonal of G without the bias, (channels, 3, 3) in float64."""


@final
@dataclasses.dataclass(frozen=True)
class PlainInputs:
    """Features in the layout of torch."""

    h: Tensor  # (images, channels, height, width)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.h.numel() * self.h.element_size()

    def output_mean(self, layer: LastConv) -> Tensor:
        """The layer's output with mean weights, (images, 1, height, width)."""
        return layer.mean(self.h)

    def output_variance(self, layer: LastConv) -> Tensor:
        """The variance of the output, (images, 1, height, width)."""
        return layer.output_variance(self.h)

    def curvature(
        self,
        weight: Tensor,  # (images, 1, height, width) w: the precision of each pixel
    ) -> Tensor:
        """The diagonal of G without the bias, (channels, 3, 3): for each weight, the sum of w times its squared feature."""
        height, width = self.h.shape[-2:]
        h = self.h if self.h.dtype == torch.float64 else self.h.float()
        squares = pad(h, (KERNEL // 2,) * 4) ** 2
        diagonal = squares.new_empty((squares.shape[1], KERNEL, KERNEL), dtype=torch.float64)
        for tap in range(KERNEL * KERNEL):
            down, right = divmod(tap, KERNEL)
            shifted = squares[:, :, down : down + height, right : right + width]
            diagonal[:, down, right] = (shifted * weight).sum((2, 3)).double().sum(0)
        return diagonal


@final
class Curvature:
    """The diagonal of G, summed over many batches. It is enough for the standard deviations, and much cheaper than G."""

    def __init__(self, layer: MeanFieldConv):
        self.diagonal = torch.zeros(layer.weight.shape[1:], dtype=torch.float64, device=layer.weight.device)

    def add(
        self,
        inputs: Inputs,
        weight: Tensor,  # (images, 1, height, width) w: the precision of each pixel
    ) -> None:
        """Adds the pixels of a batch."""
        self.diagonal += inputs.curvature(weight)

    @torch.no_grad()
    def refit(self, layer: MeanFieldConv, temperature: float = 1.0) -> None:
        """Sets the standard deviations of the layer; the means do not change."""
        layer.log_std.copy_(self.log_std(temperature))

    def log_std(self, temperature: float = 1.0) -> Tensor:
        """Logarithms of the standard deviations of the Gaussian nearest to the posterior, (1, channels, 3, 3)."""
        return posterior_log_std(self.diagonal, temperature)[None]


def posterior_log_std(diagonal: Tensor, temperature: float) -> Tensor:
    """log s = -log(1 + G_dd / temperature) / 2, of the shape of the diagonal."""
    return -torch.log1p(diagonal / temperature) / 2
