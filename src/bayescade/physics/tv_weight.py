"""The default weight of total variation, for every geometry and noise.

The noise e of the data adds A' (h e) to the gradient of D, with standard deviation n_j at pixel j; A' is the transpose
of A. Total variation must suppress this noise, so its weight is proportional to the median of n_j:

    w = c median_j n_j / (h ||A||^2),    n_j^2 = sum_i A_ij^2 h_i^2 var_i.

h_i is the curvature of D in bin i, h the mean of h_i, and var_i the variance of the noise in bin i. The rule follows
the universal threshold of Donoho and Johnstone (1994), noise level times a constant, for the coefficients A' (h e). For
least squares var is estimated from the sinogram; for the other fidelities var_i = 1 / h_i.

The constant c was chosen for each of the paper's cases on validation images (examples/choose_tv_weight.py). For other
geometries c is interpolated as a function of the arc, between the values of the limited-angle cases and, at 180
degrees, the median of the sparse-view cases.
"""

import numpy as np
import torch
from torch import Tensor

from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.physics.fidelity import Fidelity, LeastSquares
from bayescade.physics.geometry import Geometry, geometry_difference, measured_arc
from bayescade.physics.noise_level import noise_std
from bayescade.physics.ray_transform import RayTransform

# c of each case: the best value for 50 images of ellipses and 50 images of random-shepp-logan, both of the validation
# split (docs/data/tv_weights.jsonl).
CONSTANTS = dict(zip(PAPER_CASES, (0.4, 0.2, 0.4, 0.6, 0.6, 0.12, 0.16, 0.3), strict=True))
ARC_DEGREES, ARC_CONSTANTS = (90, 120, 150, 180), (0.12, 0.16, 0.3, 0.4)

LEAST = 1e-7  # smallest noise in units of RMS(data) / ||A||: so the weight is never zero


def default_weight(
    operator: RayTransform,
    operator_norm: float,
    fidelity: Fidelity,
    sinogram: Tensor,  # (batch, 1, views, bins)
    factor: float = 0.0,  # c; 0 means the constant of the geometry
) -> Tensor:
    """The weight w of each image by the rule above, (batch,); a small positive weight for data without noise."""
    noise = gradient_noise(operator, operator_norm, fidelity, sinogram)
    rms = sinogram.square().mean((1, 2, 3)).sqrt()
    level = (rms / operator_norm).clamp_min(torch.finfo(sinogram.dtype).tiny ** 0.5)
    return (factor or constant(operator.geometry)) * torch.maximum(noise, LEAST * level)


def constant(geometry: Geometry) -> float:
    """c for a geometry: the constant of the paper's case with this geometry, otherwise interpolated at its arc."""
    for case, value in CONSTANTS.items():
        if geometry_difference(case_geometry(case), geometry) is None:
            return value
    return float(np.interp(measured_arc(geometry), ARC_DEGREES, ARC_CONSTANTS))


def gradient_noise(operator: RayTransform, operator_norm: float, fidelity: Fidelity, sinogram: Tensor) -> Tensor:
    """median_j n_j / (h ||A||^2) of each image, (batch,)."""
    curvature = fidelity.curvature(sinogram)
    # derivative_variance is h_i^2 var_i: the variance that the noise gives to the derivative of D in bin i.
    if isinstance(fidelity, LeastSquares):
        derivative_variance = (noise_std(sinogram) ** 2).reshape(-1, 1, 1, 1).expand_as(sinogram)
    else:
        derivative_variance = curvature  # h_i^2 var_i = h_i
    squares = operator.adjoint(derivative_variance) * mean_entry(operator.geometry)  # n_j^2
    squares = squares.flatten(1)
    measured = squares > 0  # pixels that a ray crosses
    noise = torch.where(measured, squares, torch.nan).nanmedian(1).values.nan_to_num(0).sqrt()
    return noise / (curvature.mean((1, 2, 3)) * operator_norm**2)


def mean_entry(geometry: Geometry) -> float:
    """The mean, over the columns of A, of (sum of the squared entries) / (sum of the entries).

    The product of sum_i A_ij v_i and this mean is about sum_i A_ij^2 v_i. In one view the entries of a pixel are
    samples of a triangle of height p / m, where p is the pixel size and m = max(|cos|, |sin|) of the angle. The
    integral of the squared triangle is 2/3 of its height times its area.
    """
    angles = torch.tensor(geometry.angles)
    height = geometry.pixel_size / torch.maximum(angles.cos().abs(), angles.sin().abs())
    return float(2 / 3 * height.mean())
