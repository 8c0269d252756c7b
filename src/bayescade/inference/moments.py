"""Moments of samples with standard errors, in memory that does not grow with the number of samples.

Sample t of the weights gives an image a_t and an aleatoric variance s_t. If the weights of the last block are integrated in
closed form, a_t is the mean over these weights and v_t the variance over them; if not, v_t = 0. By the law of total variance
(equation 8 of the paper, which has v = 0)

    image = mean a,    aleatoric = mean s,    epistemic = mean v + mean (a - mean a)^2.

Sample variances are sums divided by T, the number of samples. Sums are in float64. The first a is subtracted from every a
before the sum, so that no digits are lost.
"""

import dataclasses
from typing import final

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Maps (batch, 1, height, width) and their Monte-Carlo standard errors."""

    image: Tensor
    aleatoric: Tensor | None  # variance; None if the cascade has no aleatoric variance
    epistemic: Tensor  # variance
    samples: int  # number of samples
    has_errors: bool  # whether the standard errors are known: a single random sample does not give them
    image_error: Tensor  # standard error of the image
    aleatoric_error: Tensor | None  # standard error of the aleatoric variance
    epistemic_error: Tensor  # standard error of the epistemic variance
    epistemic_std_error: Tensor  # standard error of the epistemic standard deviation

    def relative_error(self) -> float:
        """Mean standard error of the epistemic standard deviation / mean of this standard deviation; infinite if unknown."""
        std = float(self.epistemic.sqrt().mean())
        if not self.has_errors:
            return float("inf")
        return float(self.epistemic_std_error.mean()) / std if std > 0 else 0.0


@final
class StreamingMoments:
    """Sums over samples; `estimate` gives the moments of the samples added so far."""

    def __init__(self) -> None:
        self.samples = 0  # number of samples added
        self.centre: Tensor | None = None  # a of the first sample
        self.sums: dict[str, Tensor] = {}  # by the name of the term: "aa" is the sum of a^2

    def add(
        self,
        mean: Tensor,  # (samples, batch, 1, height, width) a
        variance: Tensor | None,  # v, of the same shape; None means 0
        aleatoric: Tensor | None,  # s, broadcasts to this shape; None if there is no aleatoric variance
    ) -> None:
        """Adds samples to the sums."""
        mean = mean.double()
        if self.centre is None:
            self.centre = mean[0].clone()
        a = mean - self.centre  # relative to the first sample
        u = a**2 + variance if variance is not None else a**2
        terms = {"a": a, "aa": a**2, "u": u, "uu": u**2, "ua": u * a}
        if aleatoric is not None:
            s = aleatoric.double().expand_as(mean)
            terms |= {"s": s, "ss": s**2}
        for name, term in terms.items():
            total = term.sum(0)
            self.sums[name] = self.sums[name] + total if name in self.sums else total
        self.samples += len(mean)

    def estimate(
        self,
        sampled: bool = True,  # whether there are random weights; if not, one sample is exact
    ) -> Estimate:
        """Mean, aleatoric and epistemic variance, and their standard errors by the delta method.

        The epistemic variance is mean u - (mean a)^2 with a relative to the first sample and u = v + a^2, so its
        standard error is that of the mean of u - 2 (mean a) a, with mean a held constant.
        """
        if self.centre is None:
            raise ValueError("no samples were added")
        n = self.samples
        freedom = max(n - 1, 1)  # degrees of freedom of the standard errors
        m = {name: total / n for name, total in self.sums.items()}  # means over the samples
        epistemic = (m["u"] - m["a"] ** 2).clamp_min(0)
        var_a = (m["aa"] - m["a"] ** 2).clamp_min(0)
        var_u = m["uu"] - m["u"] ** 2
        covariance = m["ua"] - m["u"] * m["a"]
        var_epistemic = (var_u - 4 * m["a"] * covariance + 4 * m["a"] ** 2 * var_a).clamp_min(0)
        epistemic_error = (var_epistemic / freedom).sqrt()
        std = epistemic.sqrt()
        aleatoric = m.get("s")
        aleatoric_error = ((m["ss"] - m["s"] ** 2).clamp_min(0) / freedom).sqrt() if aleatoric is not None else None
        return Estimate(
            image=self.centre + m["a"],
            aleatoric=aleatoric,
            epistemic=epistemic,
            samples=n,
            has_errors=n > 1 or not sampled,
            image_error=(var_a / freedom).sqrt(),
            aleatoric_error=aleatoric_error,
            epistemic_error=epistemic_error,
            epistemic_std_error=epistemic_error / (2 * torch.where(std > 0, std, 1)),
        )
