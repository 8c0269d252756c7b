"""The noise of a sinogram, estimated from the sinogram alone.

`noise_map` gives the standard deviation of the noise of every ray, `std_through_object` one number for the rays through the
object. `physics/noise_level` has a simpler estimate, of the rays beside the object.

Let u be the value of a ray divided by the largest value. In a group of rays with about the same u, the variance is taken as

    v(u) = v_0 (exp(b u) + r (1 - (1 - u)^2)).

The first term is noise. b = 0 is noise that is the same for all rays; b > 0 is the noise of counted photons after the
logarithm, whose variance is exp(y) / photons. Noise of rays that just touch the object is the noise of rays beside the object.
The second term is what is left of the object itself (edges, texture, aliasing): it is zero beside the object.

1. Rays: stencils that remove smooth signals are applied, each scaled so that white noise keeps its variance. The first stencil
   takes third differences along the bins. The others take fifth differences along the views, after a smoothing along the bins:
   the projections of an object vary fast along the views only where they vary fast along the bins.
2. Groups: a quantile of the absolute values in every group of rays, which single edges do not change.
3. Of all stencils the one with the least variance inside the object is used: the object adds variance, and never removes any.
4. Noise that is correlated along the bins loses variance in differences along the bins. Noise of different views is
   independent: where there are enough rays beside the object, both kinds of differences are compared there.
5. The mean of log v_0 and of b over a grid of (b, r), weighted by how well v(u) fits the groups.
"""

import dataclasses
import functools
import math
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d

from bayescade.errors import UserError

LEAST = 1e-6  # smallest standard deviation, relative to the largest value: data without noise do not give 0
LARGEST_VALUE = 0.999  # this quantile of all values is the largest value: single bright rays do not count
BESIDE = 0.015  # rays with u below this are beside the object
THROUGH = 0.1  # rays with u above this go through the object
HIGHEST = 1.2  # rays with larger u have the noise of this u
GROUPS = 12  # of rays with similar u: one beside the object, the others of equal width
QUANTILE = 0.4  # of the absolute values of a group
LEAST_RAYS = 8  # groups with fewer independent rays do not count
BLUR_RAYS = 200  # independent rays beside the object that are enough to see a blur of the noise
BESIDE_RAYS = 30  # with fewer beside the object, that group is from the first stencil

SLOPES = (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)  # b
STRUCTURE = (0.0, *(10 ** (-1.5 + 0.25 * k) for k in range(19)))  # r
SAME_NOISE = 0.9  # prior probability of b = 0
STRUCTURE_ERROR = 0.5  # relative standard deviation of the second term of v
NORMAL_QUANTILE = NormalDist().inv_cdf((1 + QUANTILE) / 2)  # of |N(0, 1)|
# Relative variance of the squared quantile, of one independent ray: the asymptotic variance of a sample quantile.
RAY_ERROR = 4 * QUANTILE * (1 - QUANTILE) / (2 * NORMAL_QUANTILE * NormalDist().pdf(NORMAL_QUANTILE)) ** 2
CAUTION = 2.0  # standard errors by which another stencil must differ from the first


@dataclasses.dataclass(frozen=True)
class _Stencil:
    """Differences along one axis, and a smoothing along the bins: three times the mean of neighbouring bins."""

    axis: int  # of the differences: -1 bins, -2 views
    order: int  # of the differences; odd, so that they are uncorrelated with the means of the same rays
    box: int = 1  # neighbouring bins of each mean

    def differences(self, values: Tensor) -> Tensor:
        """Values without their smooth part; white noise keeps its variance. (batch, views, bins), fewer of both."""
        return self._smooth(values.diff(n=self.order, dim=self.axis)) / self._gain

    def means(self, values: Tensor) -> Tensor:
        """Means over the rays of each difference."""
        for _ in range(self.order):
            length = values.shape[self.axis] - 1
            values = (values.narrow(self.axis, 0, length) + values.narrow(self.axis, 1, length)) / 2
        return self._smooth(values)

    @property
    def extent(self) -> tuple[int, int]:
        """How many views and bins fewer the result has."""
        along_bins = 3 * (self.box - 1)
        return (self.order, along_bins) if self.axis == -2 else (0, self.order + along_bins)

    @functools.cached_property
    def overlap(self) -> float:
        """Sum of the squared autocorrelation: so many results count as one independent result."""
        return math.prod(
            float((np.correlate(k, k, "full") ** 2).sum() / (k**2).sum() ** 2) for k in (self._difference, self._boxes)
        )

    def _smooth(self, values: Tensor) -> Tensor:
        for _ in range(3 if self.box > 1 else 0):
            values = avg_pool1d(values, self.box, stride=1)
        return values

    @property
    def _difference(self) -> np.ndarray:
        return np.array([(-1.0) ** k * math.comb(self.order, k) for k in range(self.order + 1)])

    @property
    def _boxes(self) -> np.ndarray:
        box = np.full(self.box, 1 / self.box)
        return np.convolve(np.convolve(box, box), box)

    @functools.cached_property
    def _gain(self) -> float:
        return float(np.linalg.norm(self._difference) * np.linalg.norm(self._boxes))


STENCILS = (_Stencil(-1, 3), _Stencil(-2, 5), _Stencil(-2, 5, box=3), _Stencil(-2, 5, box=13))


def std_through_object(
    sinogram: Tensor,  # (batch, 1, views, bins)
    counts: Tensor | None = None,  # (batch, 2): valid views and bins of each sinogram; None: all
) -> Tensor:
    """Standard deviation of the noise of the rays through the object, (batch,): the root of their mean variance.

    Rays through the object have more than a tenth of the largest value. The result follows the scale of the data: twice the
    values have twice the noise. Data without noise give what cannot be told from noise (texture of the object), and at least
    1e-6 of the largest value. With fewer than about 20 views, or without rays beside the object, noise that is correlated along
    the bins is underestimated: to a third of its standard deviation for a blur of (1/4, 1/2, 1/4).
    """
    estimate = _estimate(sinogram, counts)
    through = estimate.valid & (estimate.u > THROUGH)
    through = torch.where(through.any(2, keepdim=True).any(1, keepdim=True), through, estimate.valid)
    mean = (estimate.variance * through).sum((1, 2)) / through.sum((1, 2)).clamp_min(1)
    return (mean.clamp_min(LEAST**2).sqrt() * estimate.unit[:, 0, 0]).to(sinogram.dtype)


def noise_map(
    sinogram: Tensor,  # (batch, 1, views, bins)
    counts: Tensor | None = None,  # (batch, 2): valid views and bins of each sinogram; None: all
) -> Tensor:
    """Standard deviation of the noise of every ray, (batch, 1, views, bins): sqrt(v_0 exp(b u)), u smoothed along the bins.

    It never decreases with the value of the ray. Padding has the noise of a ray beside the object.
    """
    estimate = _estimate(sinogram, counts)
    return (estimate.variance.sqrt() * estimate.unit)[:, None].to(sinogram.dtype)


@dataclasses.dataclass(frozen=True)
class _Estimate:
    """The noise of sinograms whose largest value is 1."""

    variance: Tensor  # (batch, views, bins)
    u: Tensor  # (batch, views, bins), smoothed along the bins
    valid: Tensor  # (batch, views, bins): no padding
    unit: Tensor  # (batch, 1, 1): the largest value


def _estimate(sinogram: Tensor, counts: Tensor | None) -> _Estimate:
    valid = _valid(sinogram, counts)
    values = torch.where(valid, sinogram.detach()[:, 0], 0.0)
    values = values if values.dtype == torch.float64 else values.float()
    unit = _largest(values, valid)[:, None, None]
    values = values / unit
    log_variance, slope = _fit(values, counts)
    u = _smoothed(values, valid)
    variance = torch.exp(log_variance[:, None, None] + slope[:, None, None] * u.clamp(0, HIGHEST))
    return _Estimate(variance.clamp_min(LEAST**2), u, valid, unit)


def _valid(sinogram: Tensor, counts: Tensor | None) -> Tensor:
    """Whether a ray is no padding, (batch, views, bins)."""
    if sinogram.ndim != 4 or sinogram.shape[1] != 1 or not sinogram.is_floating_point():
        raise UserError(
            f"sinogram: expected floating-point numbers of shape (batch, 1, views, bins), got {sinogram.dtype} of shape "
            f"{tuple(sinogram.shape)}"
        )
    if sinogram.shape[-1] <= STENCILS[0].order:
        raise UserError(f"sinogram: expected more than {STENCILS[0].order} bins, got {sinogram.shape[-1]}")
    batch, _, views, bins = sinogram.shape
    if counts is None:
        return sinogram.new_ones((batch, views, bins), dtype=torch.bool)
    if counts.shape != (batch, 2):
        raise UserError(
            f"counts: expected shape ({batch}, 2), (views, bins) of each sinogram, got {tuple(counts.shape)}"
        )
    return _rectangle(sinogram[:, 0], counts.to(sinogram.device))


def _rectangle(values: Tensor, counts: Tensor) -> Tensor:
    """True in the first `counts` views and bins, in the shape of the values (batch, views, bins)."""
    view, bin_ = (torch.arange(size, device=counts.device) for size in values.shape[1:])
    return (view < counts[:, :1])[:, :, None] & (bin_ < counts[:, 1:])[:, None]


def _largest(values: Tensor, valid: Tensor) -> Tensor:
    """The largest value of each sinogram, (batch,), positive also where there is none."""
    stencil = STENCILS[0]
    means = stencil.means(values).flatten(1)
    inside = valid[..., stencil.extent[1] :].flatten(1)
    ordered = torch.where(inside, means, torch.inf).sort(1).values
    index = (LARGEST_VALUE * (inside.sum(1, keepdim=True) - 1)).long().clamp_min(0)
    largest = ordered.gather(1, index)[:, 0]
    usable = torch.isfinite(largest) & (largest > 0)
    return torch.where(usable, largest, values.abs().amax((1, 2))).clamp_min(1e-30)


def _smoothed(values: Tensor, valid: Tensor) -> Tensor:
    """Means over 5 neighbouring bins, of valid rays only."""
    total, count = (avg_pool1d(x.to(values.dtype), 5, stride=1, padding=2) for x in (values, valid))
    return total / count.clamp_min(0.1)


def _fit(values: Tensor, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """log v_0 and b of each sinogram, (batch,): means over the grid of (b, r)."""
    variance, rays = _chosen(values, counts)
    enough = rays.amax(1, keepdim=True).clamp_max(LEAST_RAYS)  # of few rays the largest group counts
    used = ((rays >= enough) & (rays > 0))[:, None, None]
    slopes = torch.tensor(SLOPES, device=values.device, dtype=values.dtype)
    u = _group_values(values)
    structure = torch.tensor(STRUCTURE, device=values.device, dtype=values.dtype)[:, None] * (1 - (1 - u) ** 2)
    model = torch.exp(slopes[:, None] * u)[:, None] + structure  # (slopes, structure, groups)
    error = RAY_ERROR / rays.clamp_min(1)[:, None, None] + (STRUCTURE_ERROR * structure / model) ** 2
    residual = variance.clamp_min(LEAST**2).log()[:, None, None] - model.log()  # (batch, slopes, structure, groups)
    level = _level(residual, used / error)  # log v_0
    excess = (residual - level[..., None]) ** 2 / error
    loss = torch.where(residual > level[..., None], 2 * excess.log1p(), excess) + error.log()
    prior = torch.where(slopes > 0, (1 - SAME_NOISE) / (len(SLOPES) - 1), SAME_NOISE).log()
    fit = prior[:, None] - 0.5 * (used * loss).sum(-1)
    probability = fit.flatten(1).softmax(1).view_as(fit)
    level = torch.where(used.any(-1), level, 2 * math.log(LEAST))
    return (probability * level).sum((1, 2)), (probability * slopes[:, None]).sum((1, 2))


def _level(residual: Tensor, weight: Tensor) -> Tensor:
    """The level under the residuals of the groups, (..., groups) -> (...): edges can only lift a group, far or not at all.

    So residuals above the level have the tails of a Cauchy distribution, and those below the tails of a normal distribution.
    """
    factor = torch.ones_like(residual)
    for _ in range(5):
        level = (factor * weight * residual).sum(-1) / (factor * weight).sum(-1).clamp_min(1e-9)
        difference = residual - level[..., None]
        factor = torch.where(difference > 0, 2 / (1 + difference**2 * weight), 1.0)
    return level


def _chosen(values: Tensor, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Variances and numbers of independent rays of the groups, (batch, groups), from the stencil with the least variance.

    Beside the object there is nothing to remove: the group there is from the first stencil, unless the other one has less.
    """
    possible = [s for s in STENCILS if all(e < n for e, n in zip(s.extent, values.shape[1:], strict=True))]
    variances, rays = (torch.stack(x, 1) for x in zip(*(_groups(values, s, counts) for s in possible), strict=True))
    variances = torch.cat([variances[:, :1] * _lost_by_blur(variances, rays), variances[:, 1:]], 1)
    # How much less variance than in the first stencil, over the groups inside the object that both have.
    shared = torch.minimum(rays, rays[:, :1]) * ((rays >= LEAST_RAYS) & (rays[:, :1] >= LEAST_RAYS))
    shared[..., 0] = 0
    total = shared.sum(-1).clamp_min(1e-9)
    logs = variances.clamp_min(LEAST**2).log()
    excess = (shared * (logs - logs[:, :1])).sum(-1) / total + CAUTION * (RAY_ERROR / total).sqrt()
    excess[:, 0] = 0
    best = excess.argmin(1)[:, None, None].expand(-1, 1, GROUPS)
    variance, number = (x.gather(1, best)[:, 0] for x in (variances, rays))
    first = torch.arange(GROUPS, device=values.device) == 0
    first = first & ((number < BESIDE_RAYS) | (variance > variances[:, 0]))
    return torch.where(first, variances[:, 0], variance), torch.where(first, rays[:, 0], number)


def _lost_by_blur(variances: Tensor, rays: Tensor) -> Tensor:
    """How much more variance differences along the views have beside the object than those along the bins, (batch, 1, 1).

    1 where there are too few rays to tell. Both are (batch, stencils, groups).
    """
    if variances.shape[1] == 1:
        return variances.new_ones(len(variances), 1, 1)
    along_bins, along_views = variances[:, :2, 0].clamp_min(LEAST**2).log().unbind(1)
    error = (RAY_ERROR / rays[:, :2, 0].clamp_min(1)).sum(1).sqrt()
    lost = along_views - along_bins
    certain = (rays[:, 1, 0] >= BLUR_RAYS) & (lost > CAUTION * error)
    return torch.where(certain, lost, 0.0).exp()[:, None, None]


def _groups(values: Tensor, stencil: _Stencil, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Variance of the noise and number of independent rays in every group, each (batch, groups)."""
    differences = stencil.differences(values).abs()
    group = torch.bucketize(stencil.means(values).contiguous(), _group_edges(values))
    # Rays of value 0, and differences that vanish, were not measured: they are masked or saturated.
    outside = (differences == 0) | (stencil.means((values == 0).to(values.dtype)) > 0)
    if counts is not None:
        extent = torch.tensor(stencil.extent, device=values.device)
        outside |= ~_rectangle(differences, counts.to(values.device) - extent)
    group = torch.where(outside, GROUPS, group).flatten(1)
    differences, order = differences.flatten(1).sort(1)
    group, order = group.gather(1, order).sort(dim=1, stable=True)  # by group, and by size in every group
    limits = torch.arange(GROUPS + 1, device=values.device).expand(len(values), -1).contiguous()
    start = torch.searchsorted(group, limits)
    count = start.diff(dim=1)
    index = start[:, :-1] + (QUANTILE * (count - 1).clamp_min(0)).round().long()
    quantile = differences.gather(1, order).gather(1, index.clamp_max(differences.shape[1] - 1))
    return (quantile / NORMAL_QUANTILE) ** 2, count.to(values.dtype) / stencil.overlap


def _group_edges(values: Tensor) -> Tensor:
    """The u between neighbouring groups, (groups - 1,)."""
    return torch.linspace(BESIDE, 1, GROUPS, device=values.device, dtype=values.dtype)[:-1]


def _group_values(values: Tensor) -> Tensor:
    """The u of every group, (groups,)."""
    edges = torch.linspace(BESIDE, 1, GROUPS, device=values.device, dtype=values.dtype)
    middles = (edges[1:] + edges[:-1]) / 2
    return torch.cat([middles.new_zeros(1), middles])
