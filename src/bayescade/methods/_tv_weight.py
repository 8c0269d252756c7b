"""How much total variation: a weight for every geometry and noise.

The noise e of the data shows in the gradient of D as A' e', with standard deviation n_j at pixel j; total variation must
outweigh that, and not much more. So the weight is

    w = c median_j n_j / (h ||A||^2),    n_j^2 = sum_i A_ij^2 h_i^2 var_i,

h_i the curvature of D in bin i and var_i the variance of the noise there: this is the universal threshold of Donoho and
Johnstone (1994), noise level times a constant, for the coefficients that A' e has. For least squares var is estimated from the
sinogram; a likelihood knows it, var = 1 / h. The constant c was chosen for each of the paper's cases on validation images
(examples/choose_tv_weight.py), and the middle one serves every other geometry.
"""

import torch
from torch import Tensor

from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.physics.fidelity import Fidelity, LeastSquares
from bayescade.physics.geometry import Geometry
from bayescade.physics.operator import RayTransform

# c of each case: the best on 50 ellipse images and 50 randomised heads of the validation split (docs/data/tv_weights.jsonl).
CONSTANTS = dict(zip(PAPER_CASES, (0.4, 0.2, 0.4, 0.4, 0.6, 0.08, 0.12, 0.3), strict=True))
OTHER = 0.35  # the middle of the eight

LEAST = 1e-7  # of the data's size: the weight never vanishes
WINDOW_BINS, WINDOW_SAMPLES = 8, 128  # least size of a window of the noise estimate


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
    """c for a geometry."""
    known = {case_geometry(case).hash(): value for case, value in CONSTANTS.items()}
    return known.get(geometry.hash(), OTHER)


def gradient_noise(operator: RayTransform, operator_norm: float, fidelity: Fidelity, sinogram: Tensor) -> Tensor:
    """median_j n_j / (h ||A||^2) of each image, (batch,)."""
    curvature = fidelity.curvature(sinogram)
    if isinstance(fidelity, LeastSquares):
        variance_of_slope = (noise_std(sinogram) ** 2).reshape(-1, 1, 1, 1).expand_as(sinogram)
    else:
        variance_of_slope = curvature  # h^2 var = h
    squares = operator.adjoint(variance_of_slope) * mean_entry(operator)
    noise = squares.flatten(1).median(1).values.clamp_min(0).sqrt()
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
    """Standard deviation of white noise in each sinogram, (batch,): from fourth differences along the bins, where it is quiet.

    The differences remove what is smooth and keep white noise, times sqrt(70); the median of their size, over 0.6745, is
    robust against single edges. Behind an object with pixels every bin is rough, so the detector is cut into windows, all views
    together, and the quiet tenth of the windows decides: there the rays pass beside the object.
    """
    views, bins = sinogram.shape[-2:]
    if bins < 5:
        return sinogram.flatten(1).std(1)
    y = sinogram
    fourth = y[..., :-4] - 4 * y[..., 1:-3] + 6 * y[..., 2:-2] - 4 * y[..., 3:-1] + y[..., 4:]
    width = min(max(WINDOW_BINS, -(-WINDOW_SAMPLES // views)), bins - 4)
    windows = fourth[:, 0].abs().unfold(-1, width, width)  # (batch, views, windows, width)
    levels = windows.transpose(1, 2).flatten(2).median(2).values.sort(1).values  # (batch, windows)
    return levels[:, levels.shape[1] // 10] / 0.6745 / 70**0.5
