"""Losses of a block. Only `elbo` is an ELBO; after the others the posterior must be refitted under the likelihood.

The likelihood counts every pixel once, so the KL has weight batch / images in the sum over a batch. A mean over pixels divides
both by the pixels of the batch. `temperature` multiplies the KL: above 1 the likelihood counts less. With several processes
each has a part of the batch, and the mean of their gradients is that of the whole batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.training.distributed import ALONE, ProcessGroup

Loss = Callable[[Gaussian, Tensor, Tensor], Tensor]  # (prediction, truth, KL) -> a number

LEAST_SHARE = 1e-3  # of the mean squared error of a batch: bounds the weight of an image with a tiny error
LEAST = 1e-20  # mean squared error that counts as zero
LOSSES = ("side-by-side", "elbo", "elbo-as-released")


def loss_of(name: str, images: int, temperature: float, processes: ProcessGroup) -> Loss:
    """The loss of that name, for a training set of so many images."""
    losses = {"side-by-side": side_by_side, "elbo": elbo, "elbo-as-released": elbo_as_released}
    return losses[name](images, temperature, processes)


def nll(prediction: Gaussian, truth: Tensor) -> Tensor:
    """-log p per pixel without log(2 pi) / 2: (log v + (x - m)^2 / v) / 2; v = 1 where there is no variance."""
    if prediction.variance is None:
        return (truth - prediction.mean) ** 2 / 2
    return (torch.log(prediction.variance) + (truth - prediction.mean) ** 2 / prediction.variance) / 2


def elbo(images: int, temperature: float = 1.0, processes: ProcessGroup = ALONE) -> Loss:
    """The paper's loss (equation 5) on a batch: the NLL summed over its pixels, plus batch / images times the KL."""

    def loss(prediction: Gaussian, truth: Tensor, kl: Tensor) -> Tensor:
        return processes.size * (nll(prediction, truth).sum() + temperature * len(truth) / images * kl)

    return loss


def elbo_as_released(images: int, temperature: float = 1.0, processes: ProcessGroup = ALONE) -> Loss:
    """The paper's loss, but the log of a variance shared by all pixels is counted once per image, as in the authors' code.

    Then the fitted standard deviation is sqrt(pixels) times too large. A variance per pixel is counted correctly.
    """

    def loss(prediction: Gaussian, truth: Tensor, kl: Tensor) -> Tensor:
        variance = prediction.variance
        if variance is None or variance.shape[-1] != 1:
            return elbo(images, temperature, processes)(prediction, truth, kl)
        squares = ((truth - prediction.mean) ** 2 / variance).sum()
        likelihood = (squares + len(truth) * torch.log(variance).sum()) / 2
        return processes.size * (likelihood + temperature * len(truth) / images * kl)

    return loss


def side_by_side(images: int, temperature: float = 1.0, processes: ProcessGroup = ALONE) -> Loss:
    """Two losses with separate parameters: the image error for the image, the likelihood of the residual for the variance.

    `image_error`, plus the NLL with the image detached, plus the KL per pixel. A variance that is too small is penalised as in
    the NLL, and the variance does not weight the errors of the image.
    """

    def loss(prediction: Gaussian, truth: Tensor, kl: Tensor) -> Tensor:
        image = image_error(prediction.mean, truth, processes)
        if prediction.variance is None:
            return image
        fixed = Gaussian(prediction.mean.detach(), prediction.variance)
        return image + nll(fixed, truth).mean() + temperature * kl / (images * truth[0].numel())

    return loss


def image_error(image: Tensor, truth: Tensor, processes: ProcessGroup = ALONE) -> Tensor:
    """The sum over images of the log of the squared error, up to a constant: it falls as the mean PSNR rises.

    Half the squared error of each image over its detached value. The value is constant; only the gradient matters, and it does
    not depend on the scale. With plain least squares one bad image would outweigh a hundred good ones.
    """
    squares = ((truth - image) ** 2).flatten(1).mean(1)
    detached = squares.detach()
    squares = squares / (detached + LEAST_SHARE * processes.mean(detached.mean()) + LEAST)
    return squares.mean() / (2 * processes.mean(squares.detach().mean()).clamp_min(LEAST))
