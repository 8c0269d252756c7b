"""Losses of a block. Only `elbo` is one: the others need the posterior refitted under the honest likelihood afterwards.

The likelihood counts every pixel once, so the KL weighs batch / images against a batch's sum; a mean over pixels divides both
by the pixels of the batch. `temperature` multiplies the KL: above 1 the likelihood counts for less. Of a team of processes each
has a part of the batch, and the mean of their gradients is that of the whole.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.errors import UserError
from bayescade.training.distributed import ALONE, Team

Loss = Callable[[Gaussian, Tensor, Tensor], Tensor]  # (prediction, truth, KL) -> a number

LEAST_SHARE = 1e-3  # of the mean squared error of a batch: what is below it counts as that, in a balance of images
LEAST = 1e-20  # mean squared error, below which there is nothing left to learn
LOSSES = ("elbo", "elbo-as-released", "beta-nll", "side-by-side", "mean-first")


def check_loss(name: str) -> None:
    """Raises unless there is such a loss."""
    if name not in LOSSES:
        raise UserError(f"setting loss: expected {', '.join(LOSSES)}, got '{name}'")


def check_balance(balance: float) -> None:
    """Raises unless it is one."""
    if not 0 <= balance <= 1:
        raise UserError(f"setting balance: expected a number from 0 to 1, got {balance}")


def nll(prediction: Gaussian, truth: Tensor) -> Tensor:
    """-log p per pixel less log(2 pi) / 2: (log v + (x - m)^2 / v) / 2; without a variance it is 1."""
    if prediction.variance is None:
        return (truth - prediction.mean) ** 2 / 2
    return (torch.log(prediction.variance) + (truth - prediction.mean) ** 2 / prediction.variance) / 2


def elbo(images: int, temperature: float = 1.0, team: Team = ALONE) -> Loss:
    """The paper's: sum over the batch of the NLL of its pixels, plus batch / images times the KL."""

    def loss(prediction: Gaussian, truth: Tensor, kl: Tensor) -> Tensor:
        return team.size * (nll(prediction, truth).sum() + temperature * len(truth) / images * kl)

    return loss


def elbo_as_released(images: int, temperature: float = 1.0, team: Team = ALONE) -> Loss:
    """The paper's, but the log of one variance for all pixels is counted once per image, as in the authors' code.

    The fitted standard deviation is sqrt(pixels) times too large. A variance per pixel is counted as it should be.
    """

    def loss(prediction: Gaussian, truth: Tensor, kl: Tensor) -> Tensor:
        variance = prediction.variance
        if variance is None or variance.shape[-1] != 1:
            return elbo(images, temperature, team)(prediction, truth, kl)
        squares = ((truth - prediction.mean) ** 2 / variance).sum()
        likelihood = (squares + len(truth) * torch.log(variance).sum()) / 2
        return team.size * (likelihood + temperature * len(truth) / images * kl)

    return loss


def beta_nll(images: int, beta: float = 1.0, temperature: float = 1.0, team: Team = ALONE) -> Loss:
    """Mean of v^beta NLL / mean v^beta, no gradient through the weight (Seitzer et al. 2022), plus the KL per pixel.

    beta = 0 is the NLL; with beta = 1 the mean is fitted as by least squares, however small the variance is.
    """

    def loss(prediction: Gaussian, truth: Tensor, kl: Tensor) -> Tensor:
        each = nll(prediction, truth)
        if prediction.variance is not None:
            weight = prediction.variance.detach() ** beta
            each = each * (weight / team.mean(weight.mean()))
        return each.mean() + temperature * kl / (images * truth[0].numel())

    return loss


def side_by_side(images: int, temperature: float = 1.0, balance: float = 0.0, team: Team = ALONE) -> Loss:
    """The image by least squares, the variance by the likelihood of what is left: two losses of parameters that do not meet.

    The image error below, plus the NLL of the image as it is, plus the KL per pixel. The image learns as by beta-NLL with
    beta = 1; the variance pays the full price for being too small.
    """

    def loss(prediction: Gaussian, truth: Tensor, kl: Tensor) -> Tensor:
        image = image_error(prediction.mean, truth, balance, team)
        if prediction.variance is None:
            return image
        return image + variance_nll(images, temperature)(prediction, truth, kl)

    return loss


def image_error(image: Tensor, truth: Tensor, balance: float, team: Team = ALONE) -> Tensor:
    """Half the squared error over its mean: a number that says nothing, with a slope that does not depend on scale.

    With `balance` the error of an image counts by that power less the larger it is: 0 is least squares, where one image that
    goes wrong outweighs a hundred that do not; with 1 the loss falls as the mean PSNR rises.
    """
    squares = ((truth - image) ** 2).flatten(1).mean(1)
    if balance:
        known = squares.detach()
        squares = squares * (known + LEAST_SHARE * team.mean(known.mean()) + LEAST) ** -balance
    return squares.mean() / (2 * team.mean(squares.detach().mean()).clamp_min(LEAST))


def squared_error(prediction: Gaussian, truth: Tensor, kl: Tensor) -> Tensor:
    """Half the mean squared error: the first part of mean-first."""
    return ((truth - prediction.mean) ** 2).mean() / 2 + 0 * kl


def variance_nll(images: int, temperature: float = 1.0) -> Loss:
    """Mean NLL without gradient through the image: the second part of mean-first."""

    def loss(prediction: Gaussian, truth: Tensor, kl: Tensor) -> Tensor:
        fixed = Gaussian(prediction.mean.detach(), prediction.variance)
        return nll(fixed, truth).mean() + temperature * kl / (images * truth[0].numel())

    return loss
