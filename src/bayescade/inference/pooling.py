"""Results of several passes for the same images as one result, and results of several batches as one."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from bayescade.results import MAPS, Reconstruction

LEAST_FOR_SQUARES = 6  # parts


def pooled(
    parts: Sequence[tuple[int, Reconstruction]],  # number of samples, and their result
    deviations: Sequence[float] | None = None,  # of the centre of rotation of each part: weighted mean 0, variance 1
) -> Reconstruction:
    """The result of all samples together, by the law of total variance, nested in this order: geometry, symmetries, weights.

    Every part counts by its number of samples. The image is the mean of the images, the aleatoric variance that of the
    variances. The variance of the images between the parts has two parts: what follows the deviations of the centre is
    `geometry_variance` (`explained`), the rest is `epistemic_symmetries`. The epistemic variance is this rest plus the mean of
    the variances within the parts (weights). The parts are all that there are: their variance has no correction for a small
    number of parts.
    """
    if len(parts) == 1:
        return parts[0][1]
    total = sum(count for count, _ in parts)
    shares = torch.tensor([count / total for count, _ in parts]).to(parts[0][1].image)
    results = [result for _, result in parts]
    first = results[0]

    def stacked(name: str) -> Tensor | None:
        values = [getattr(result, name) for result in results]
        return torch.stack(values) if all(value is not None for value in values) else None

    def mean(values: Tensor | None) -> Tensor | None:
        return torch.einsum("p,p...->...", shares, values) if values is not None else None

    def error(values: Tensor | None) -> Tensor | None:
        """The standard error of a mean, from those of the parts."""
        return torch.einsum("p,p...->...", shares**2, values**2).sqrt() if values is not None else None

    images = stacked("image")
    assert images is not None
    image = mean(images)
    assert image is not None
    between = mean((images - image) ** 2)
    assert between is not None
    geometry = None
    if deviations is not None:
        geometry = explained(images - image, shares, torch.tensor(deviations).to(images), between)
        between = between - geometry
    within, aleatoric = stacked("epistemic"), stacked("aleatoric")
    epistemic = mean(within)
    if epistemic is None:
        return dataclasses.replace(first, image=image)
    assert within is not None
    epistemic = epistemic + between
    # Errors of the standard deviations: those of the variances are 2 std times as large.
    std_errors = stacked("mc_standard_error")
    std_error = error(2 * within.sqrt() * std_errors) if std_errors is not None else None
    return dataclasses.replace(
        first,
        image=image,
        aleatoric=mean(aleatoric),
        epistemic=epistemic,
        epistemic_symmetries=between,
        geometry_variance=geometry,
        mc_standard_error=std_error / (2 * epistemic.sqrt()).clamp_min(1e-30) if std_error is not None else None,
        image_standard_error=error(stacked("image_standard_error")),
        aleatoric_standard_error=error(stacked("aleatoric_standard_error")),
        samples=total if first.samples else 0,
    )


def explained(
    residuals: Tensor,  # (parts, batch, 1, height, width): images minus their mean
    shares: Tensor,  # (parts,)
    deviations: Tensor,  # (parts,), weighted mean 0 and variance 1
    between: Tensor,  # (batch, 1, height, width): variance of the images
) -> Tensor:
    """The variance that a regression of the images on the deviations and their squares explains, less that of chance.

    With p parts that do not depend on the deviations at all, r regressors still explain r / (p - 1) of the variance.
    """
    skewness = (shares * deviations**3).sum()
    square = deviations**2 - 1 - skewness * deviations  # orthogonal to 1 and to the deviations
    size = (shares * square**2).sum().sqrt()
    regressors = [deviations, square / size] if len(shares) >= LEAST_FOR_SQUARES and float(size) > 0 else [deviations]
    fitted = torch.zeros_like(between)
    for regressor in regressors:
        fitted = fitted + torch.einsum("p,p...->...", shares * regressor, residuals) ** 2
    freedom = len(shares) - 1 - len(regressors)
    if freedom < 1:
        return torch.zeros_like(fitted)
    return (fitted - len(regressors) * (between - fitted) / freedom).clamp_min(0)


def concatenated(results: Sequence[Reconstruction]) -> Reconstruction:
    """The results of batches as one result; it has the maps that all of them have."""
    if len(results) == 1:
        return results[0]
    maps = {}
    for name in MAPS:
        values = [getattr(result, name) for result in results]
        maps[name] = torch.cat(values) if all(value is not None for value in values) else None
    return dataclasses.replace(results[0], **maps)  # type: ignore[arg-type]
