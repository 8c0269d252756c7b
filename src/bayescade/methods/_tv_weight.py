"""The default weight of total variation, for every geometry and noise.

The noise e of the data appears in the gradient of D as A' e', with standard deviation n_j at pixel j. Total variation must
be a little stronger than that. So the weight is

    w = c median_j n_j / (h ||A||^2),    n_j^2 = sum_i A_ij^2 h_i^2 var_i,

h_i the curvature of D in bin i and var_i the variance of the noise there: this is the universal threshold of Donoho and
Johnstone (1994), noise level times a constant, for the coefficients that A' e has. For least squares var is estimated from the
sinogram; a likelihood knows it, var = 1 / h. The constant c was chosen for each of the paper's cases on validation images
(examples/choose_tv_weight.py); for other geometries c is interpolated by the arc, between the limited-angle cases and
the median of the sparse ones.
"""

import numpy as np
import torch
from torch import Tensor

from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.physics.fidelity import Fidelity, LeastSquares
from bayescade.physics.geometry import Geometry, geometry_difference, measured_arc
from bayescade.physics.ray_transform import RayTransform

# c of each case: the best on 50 images of ellipses and 50 of random-shepp-logan, validation split (docs/data/tv_weights.jsonl).
CONSTANTS = dict(zip(PAPER_CASES, (0.4, 0.2, 0.4, 0.6, 0.6, 0.12, 0.16, 0.3), strict=True))
ARC_DEGREES, ARC_CONSTANTS = (90, 120, 150, 180), (0.12, 0.16, 0.3, 0.4)

LEAST = 1e-7  # of the size of the data: the weight is never zero
WINDOW_BINS, WINDOW_SAMPLES = 8, 128  # smallest size of a window of the noise estimate


def default_weight(
    operator: RayTransform,
    operator_norm: float,
    fidelity: Fidelity,
    sinogram: Tensor,  # (batch, 1, views, bins)
    factor: float = 0.0,  # c; 0 = that of the geometry
) -> Tensor:
    """The weight of each image by the rule, (batch,); a little above 0 for data without noise."""
    noise = gradient_noise(operator, operator_norm, fidelity, sinogram)
    size = (sinogram.square().mean((1, 2, 3)).sqrt() / operator_norm).clamp_min(torch.finfo(sinogram.dtype).tiny ** 0.5)
    return (factor or constant(operator.geometry)) * torch.maximum(noise, LEAST * size)


def constant(geometry: Geometry) -> float:
    """c for a geometry: that of its case, or by its arc."""
    for case, value in CONSTANTS.items():
        if geometry_difference(case_geometry(case), geometry) is None:
            return value
    return float(np.interp(measured_arc(geometry), ARC_DEGREES, ARC_CONSTANTS))


def gradient_noise(operator: RayTransform, operator_norm: float, fidelity: Fidelity, sinogram: Tensor) -> Tensor:
    """median_j n_j / (h ||A||^2) of each image, (batch,)."""
    curvature = fidelity.curvature(sinogram)
    if isinstance(fidelity, LeastSquares):
        variance_of_slope = (noise_std(sinogram) ** 2).reshape(-1, 1, 1, 1).expand_as(sinogram)
    else:
        variance_of_slope = curvature  # h^2 var = h
    squares = operator.adjoint(variance_of_slope) * mean_entry(operator)
    squares = squares.flatten(1)
    seen = squares > 0  # pixels that a ray meets
    noise = torch.where(seen, squares, torch.nan).nanmedian(1).values.nan_to_num(0).sqrt()
    return noise / (curvature.mean((1, 2, 3)) * operator_norm**2)


def mean_entry(operator: RayTransform) -> float:
    """sum of squares over sum of a column of A, on average: turns sum_i A_ij v_i into about sum_i A_ij^2 v_i.

    A pixel's weights at a view are a triangle of height p / m (m = max(|cos|, |sin|)) sampled by the bins, and the square of a
    triangle has two thirds of its height times its area.
    """
    geometry = operator.geometry
    angles = torch.tensor(geometry.angles)
    height = geometry.pixel_size / torch.maximum(angles.cos().abs(), angles.sin().abs())
    return float(2 / 3 * height.mean())


def noise_std(
    sinogram: Tensor,  # (batch, 1, views, bins)
) -> Tensor:
    """Standard deviation of white noise in each sinogram, (batch,): from fourth differences along the bins.

    The differences remove smooth parts and multiply white noise by sqrt(70); the median of their size, over 0.6745, is robust
    against single edges. The projection of pixels is rough in every bin, so the detector is cut into windows, all views
    together, and the tenth percentile of the windows is used: there the rays do not meet the object.
    """
    views, bins = sinogram.shape[-2:]
    if bins < 5:
        return sinogram.new_zeros(len(sinogram))  # too few bins to tell noise from signal
    y = sinogram
    fourth = y[..., :-4] - 4 * y[..., 1:-3] + 6 * y[..., 2:-2] - 4 * y[..., 3:-1] + y[..., 4:]
    width = min(max(WINDOW_BINS, -(-WINDOW_SAMPLES // views)), bins - 4)
    windows = fourth[:, 0].abs().unfold(-1, width, width)  # (batch, views, windows, width)
    levels = windows.transpose(1, 2).flatten(2).median(2).values  # (batch, windows)
    levels = torch.where(levels > 0, levels, torch.inf).sort(1).values  # masked bins are zero and do not count
    count = torch.isfinite(levels).sum(1, keepdim=True)
    quiet = levels.gather(1, (count // 10).clamp_max(levels.shape[1] - 1))[:, 0]
    return torch.where(count[:, 0] > 0, quiet, 0.0) / 0.6745 / 70**0.5
