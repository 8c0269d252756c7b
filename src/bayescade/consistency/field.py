"""The data of a random object on a coarse grid, as a Gaussian distribution: which data can be those of any object, and
which not.

The object is a sum of Gaussian blobs on a coarse grid with random coefficients a, each view has a random constant b, and
the noise n is white. The data w are means over neighbouring bins, of some of the views, divided by their mean:

    w = A a + B b + n,     a ~ N(0, v r Q^-1),  b ~ N(0, v r BASELINE^2),  n ~ N(0, v)

Q is a discrete Laplace operator: values of neighbouring blobs are alike, nothing else is known of the object. So the data
have the covariance v K with K = 1 + r U diag(d) U'. The level v of the noise and the ratio r are the most likely ones for
each scan.

A fault of the scan (a wrong centre, wrong angles, hardening) changes the data by X c, with a column X for every unknown c.
The best estimate of c is that of generalised least squares: c = (X' K^-1 X)^-1 X' K^-1 w, with covariance v (X' K^-1 X)^-1.
Directions that a change of the object could explain have little weight in K^-1: only what no object explains counts.

Line integrals of a blob are known in closed form for every ray, and so are their derivatives by centre and angles.
"""

import dataclasses
import functools
import math
from typing import final

import numpy as np
import torch
from torch import Tensor

from bayescade.physics.geometry import FanBeam, Geometry
from bayescade.projectors.any_scan import in_pixels

GRID = 44  # blobs along the longer side of the image
MARGIN = 2  # more blobs on every side
BLOB_STD = 0.75  # of the blobs, in steps of their grid
MOST_VIEWS = 64  # more views than these: every n-th view
EDGE = 4  # bins at each end of the detector that are not used, so that the data can be shifted by as much
RAYS = 3  # over the width of a coarse bin
NEIGHBOURS = 0.005  # added to the Laplace operator: objects are alike over about 14 steps of the grid
BASELINE = 0.05  # standard deviation of the constant of a view, relative to that of the data of an object
RATIOS = tuple(10 ** (0.2 * k) for k in range(46))  # r
LEAST_EIGENVALUE = 1e-11  # relative


@dataclasses.dataclass(frozen=True)
class FieldFit:
    """The fit of the random object to the data of some scans; tensors in float64."""

    data: Tensor  # (batch, rays)
    level: Tensor  # (batch,) v
    ratio: Tensor  # (batch,) r
    weighted: Tensor  # (batch, rays) K^-1 w
    blobs: Tensor  # (batch, blobs): the most likely coefficients a
    baselines: Tensor  # (batch, views): the most likely constants b


@dataclasses.dataclass(frozen=True)
class Effect:
    """The estimate of faults by generalised least squares."""

    value: Tensor  # (batch, faults)
    covariance: Tensor  # (batch, faults, faults)
    left: Tensor  # (batch,): w' K^-1 w of what is left, divided by v and by the number of rays

    @property
    def std(self) -> Tensor:
        """Standard errors, (batch, faults), larger where the fit is worse than the noise."""
        errors = torch.diagonal(self.covariance, dim1=1, dim2=2).sqrt()
        return errors * self.left.clamp_min(1).sqrt()[:, None]


@final
class ObjectField:
    """The distribution of the data of one geometry; it is prepared once (seconds) and then fast for every scan."""

    def __init__(self, geometry: Geometry):
        scan = in_pixels(geometry)
        self.geometry = geometry
        self.step = max(1, math.ceil(scan.views / MOST_VIEWS))
        spacing = max(scan.image_shape) / GRID
        self.merged = max(1, round(spacing / scan.ray_spacing))
        edge = min(EDGE, scan.bins // 8)
        self.bins = (scan.bins - 2 * edge) // self.merged
        self.first = (scan.bins - self.bins * self.merged) // 2
        self.views = len(scan.angles[:: self.step])
        self.rays = self.views * self.bins
        maps = _blob_maps(scan, self.step, self._positions(scan), self.merged * scan.bin_width, spacing)
        self.matrix, self.by_offset, self.by_angle = (values.float() for values in maps)
        self._prepare()

    def _positions(self, scan: Geometry) -> np.ndarray:
        """Detector positions of the coarse bins."""
        used = scan.bin_positions()[self.first : self.first + self.bins * self.merged]
        positions: np.ndarray = used.reshape(self.bins, self.merged).mean(1)
        return positions

    def _prepare(self) -> None:
        edge = math.isqrt(self.matrix.shape[1])
        root = torch.linalg.cholesky(laplace(edge) + NEIGHBOURS * torch.eye(edge**2, dtype=torch.float64))
        whitened = torch.linalg.solve_triangular(root, self.matrix.double().T, upper=False).T  # A Q^-1/2
        scale = float(whitened.square().sum(1).mean().sqrt())
        self.root = root * scale
        self.whitened = whitened / scale
        baselines = torch.zeros(self.views, self.bins, self.views, dtype=torch.float64)
        views = torch.arange(self.views)
        baselines[views, :, views] = BASELINE
        both = torch.cat([self.whitened, baselines.reshape(self.rays, self.views)], 1)
        if both.shape[0] <= both.shape[1]:
            values, vectors = torch.linalg.eigh(both @ both.T)
        else:
            values, right = torch.linalg.eigh(both.T @ both)
            used = values > LEAST_EIGENVALUE * values[-1]
            values, vectors = values[used], both @ right[:, used] / values[used].sqrt()
        self.eigenvalues, self.vectors = values.clamp_min(0), vectors.contiguous()

    def coarse(
        self,
        sinogram: Tensor,  # (batch, 1, views, bins)
    ) -> Tensor:
        """The data of the field, (batch, rays), float64: means over bins, of some views."""
        used = sinogram[:, 0, :: self.step, self.first : self.first + self.bins * self.merged].double()
        return used.unflatten(-1, (self.bins, self.merged)).mean(-1).flatten(1)

    def precise(
        self,
        columns: Tensor,  # (batch, ..., rays)
        ratio: Tensor,  # (batch,)
    ) -> Tensor:
        """K^-1 times the columns."""
        shares = ratio[:, None] * self.eigenvalues
        shares = (shares / (1 + shares)).reshape(len(ratio), *[1] * (columns.ndim - 2), -1)
        return columns - ((columns @ self.vectors) * shares) @ self.vectors.T

    def levels(
        self,
        data: Tensor,  # (batch, rays)
    ) -> tuple[Tensor, Tensor]:
        """The most likely level v and ratio r of every scan, (batch,) each."""
        squares = (data @ self.vectors).square()
        rest = (data.square().sum(1) - squares.sum(1)).clamp_min(0)
        ratios = torch.tensor(RATIOS, dtype=torch.float64)
        weights = 1 / (1 + ratios[:, None] * self.eigenvalues)  # (ratios, eigenvalues)
        levels = ((squares @ weights.T) + rest[:, None]).clamp_min(1e-30) / self.rays
        evidence = self.rays * levels.log() - weights.log().sum(1)
        best = evidence.argmin(1)
        return levels.gather(1, best[:, None])[:, 0], ratios[best]

    def fit(
        self,
        data: Tensor,  # (batch, rays)
    ) -> FieldFit:
        """The most likely object, constants and levels."""
        level, ratio = self.levels(data)
        weighted = self.precise(data, ratio)
        blobs = torch.linalg.solve_triangular(
            self.root.T, (ratio[:, None] * (weighted @ self.whitened)).T, upper=True
        ).T
        baselines = ratio[:, None] * BASELINE**2 * weighted.unflatten(1, (self.views, self.bins)).sum(-1)
        return FieldFit(data, level, ratio, weighted, blobs, baselines)

    def effect(
        self,
        fit: FieldFit,
        columns: Tensor,  # (batch, faults, rays)
    ) -> Effect:
        """The best estimate of the faults that change the data by these columns."""
        precise = self.precise(columns, fit.ratio)
        information = precise @ columns.transpose(1, 2)
        covariance = torch.linalg.pinv(information, hermitian=True)
        value = (covariance @ (precise @ fit.data[:, :, None]))[:, :, 0]
        residual = fit.data - (value[:, :, None] * columns).sum(1)
        left = (residual * self.precise(residual, fit.ratio)).sum(1) / fit.level / self.rays
        return Effect(value, covariance * fit.level[:, None, None], left)

    def predicted(self, fit: FieldFit) -> Tensor:
        """The data of the most likely object, (batch, rays)."""
        return fit.blobs @ self.matrix.double().T

    def offset_column(self, fit: FieldFit) -> Tensor:
        """The change of the data by a change of the offset by one bin, (batch, 1, rays)."""
        return (fit.blobs.float() @ self.by_offset.T).double()[:, None]

    def angle_columns(self, fit: FieldFit) -> Tensor:
        """The changes of the data by a change of every angle by one radian, (batch, views, rays)."""
        changes = (fit.blobs.float() @ self.by_angle.T).double().unflatten(1, (self.views, self.bins))
        columns = changes.new_zeros(len(changes), self.views, self.views, self.bins)
        views = torch.arange(self.views)
        columns[:, views, views] = changes
        return columns.flatten(2)


def _blob_maps(
    scan: Geometry,  # in pixels
    step: int,  # of the views that are used
    positions: np.ndarray,  # (bins,) of the coarse bins
    width: float,  # of a coarse bin
    spacing: float,  # of the blobs
) -> tuple[Tensor, Tensor, Tensor]:
    """Line integrals of blobs, (rays, blobs), and their derivatives by the offset (of one bin) and by the angle of the
    view.

    With D the signed distance of the centre of a blob from the ray, the line integral is proportional to exp(-D^2 / 2 s^2).
    A blob has the integral of a square of the grid with value 1.
    """
    edge = GRID + 2 * MARGIN
    std = BLOB_STD * spacing
    axis = (torch.arange(edge, dtype=torch.float64) - (edge - 1) / 2) * spacing
    x, y = (values.flatten() for values in torch.meshgrid(axis, axis, indexing="ij"))
    angles = torch.tensor(scan.angles[::step], dtype=torch.float64)[:, None]
    maps = [torch.zeros(len(angles) * len(positions), edge**2, dtype=torch.float64) for _ in range(3)]
    for ray in range(RAYS):
        s = torch.from_numpy(positions + ((ray + 0.5) / RAYS - 0.5) * width)[None]
        if isinstance(scan, FanBeam):
            fan = torch.atan(s / scan.source_detector)
            turn = torch.cos(fan) ** 2 / scan.source_detector  # of the fan angle by the position
            direction, distance = angles - fan, scan.source_origin * torch.sin(fan)
            slope = scan.source_origin * torch.cos(fan) * turn  # of the distance by the position
        else:
            direction, distance, turn, slope = angles, s, torch.zeros_like(s), torch.ones_like(s)
        shape = (len(angles), s.shape[1])
        cosine, sine = (f(direction).expand(shape).reshape(-1, 1) for f in (torch.cos, torch.sin))
        distance, turn, slope = (values.expand(shape).reshape(-1, 1) for values in (distance, turn, slope))
        signed = x * cosine + y * sine - distance
        integral = torch.exp(-0.5 * (signed / std) ** 2) * (spacing**2 / (math.sqrt(2 * math.pi) * std)) / RAYS
        derivative = -signed / std**2 * integral
        by_direction = derivative * (y * cosine - x * sine)
        maps[0] += integral
        maps[1] += scan.bin_width * -(by_direction * turn + derivative * slope)
        maps[2] += by_direction
    return maps[0], maps[1], maps[2]


@functools.lru_cache(maxsize=2)
def laplace(edge: int) -> Tensor:
    """The discrete Laplace operator of a square grid, negative, zero outside the grid, (edge^2, edge^2), float64."""
    line = 2 * torch.eye(edge, dtype=torch.float64) - torch.diag(torch.ones(edge - 1, dtype=torch.float64), 1)
    line = line - torch.diag(torch.ones(edge - 1, dtype=torch.float64), -1)
    one = torch.eye(edge, dtype=torch.float64)
    return torch.kron(line, one) + torch.kron(one, line)
