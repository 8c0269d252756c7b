"""Losses of a block. Only `elbo` is an ELBO. With another loss the standard deviations of the random weights are not those of
the posterior; the setting `refit` replaces them after training (the preset `as-released` does not, like the authors' code).

The likelihood counts every pixel once. So in a sum over the pixels of a batch the KL has the weight batch / images: the
number of images of the batch, divided by that of the training set. In a mean over pixels, likelihood and KL are divided
by the number of pixels of the batch. `temperature` multiplies the KL: above 1 the likelihood counts less. With several
processes, each process computes the loss of its part of the batch; the mean of the gradients over the processes is the
gradient for the whole batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bayescade.bayes.gaussian import Gaussian
from bayescade.training.distributed import ALONE, ProcessGroup

Loss = Callable[[Gaussian, Tensor, Tensor], Tensor]  # (prediction, truth, KL) -> a number

LEAST_SHARE = 1e-3  # fraction of the mean squared error of a batch; limits the weight of an image with a tiny error
LEAST = 1e-20  # mean squared error that counts as zero
LOSSES = ("side-by-side", "elbo", "elbo-as-released")


def loss_of(name: str, images: int, temperature: float, processes: ProcessGroup) -> Loss:
    """The loss with this name, for a training set with `images` images."""
    losses = {"side-by-side": side_by_side, "elbo": elbo, "elbo-as-released": elbo_as_released}
    return losses[name](images, temperature, processes)


def nll(prediction: Gaussian, truth: Tensor) -> Tensor:
    """-log p per pixel without log(2 pi) / 2: (log v + (x - m)^2 / v) / 2; v = 1 without variance."""
    if prediction.variance is None:
        return (truth - prediction.mean) ** 2 / 2
    return (torch.log(prediction.variance) + (truth - prediction.mean) ** 2 / prediction.variance) / 2


def elbo(images: int, temperature: float = 1.0, processes: ProcessGroup = ALONE) -> Loss:
    """The paper's loss (equation 5) on a batch: the sum of the NLL over pixels, plus batch / images times the KL."""

    def loss(prediction: Gaussian, truth: Tensor, kl: Tensor) -> Tensor:
        return processes.size * (nll(prediction, truth).sum() + temperature * len(truth) / images * kl)

    return loss


def elbo_as_released(images: int, temperature: float = 1.0, processes: ProcessGroup = ALONE) -> Loss:
    """The loss of the authors' code: like `elbo`, except for a variance that all pixels share.

    The log of such a variance is counted once per image, not once per pixel. So the fitted standard deviation is
    sqrt(pixels) times too large. If every pixel has a variance, the loss is equal to `elbo`.
    """

    def loss(prediction: Gaussian, truth: Tensor, kl: Tensor) -> Tensor:
        variance = prediction.variance
        if variance is None or variance.shape[-1] != 1:
            return elbo(images, temperature, processes)(prediction, truth, kl)
        squares = ((truth - prediction.mean) ** 2 / variance).sum()
        nll_sum = (squares + len(truth) * torch.log(variance).sum()) / 2
        return processes.size * (nll_sum + temperature * len(truth) / images * kl)

    return loss


def side_by_side(images: int, temperature: float = 1.0, processes: ProcessGroup = ALONE) -> Loss:
    """The sum of two losses: `image_error` trains the image, the NLL of its residual trains the variance.

    `image_error`, plus the mean NLL with the image detached, plus the KL divided by the pixels of the training set. A
    variance that is too small is penalised as in the NLL, and the variance does not weight the errors of the image.
    """

    def loss(prediction: Gaussian, truth: Tensor, kl: Tensor) -> Tensor:
        error = image_error(prediction.mean, truth, processes)
        if prediction.variance is None:
            return error
        detached = Gaussian(prediction.mean.detach(), prediction.variance)
        return error + nll(detached, truth).mean() + temperature * kl / (images * truth[0].numel())

    return loss


def image_error(image: Tensor, truth: Tensor, processes: ProcessGroup = ALONE) -> Tensor:
    """A loss that raises the mean PSNR: its gradient is nearly that of mean_i log(e_i) / 2, e_i the error of image i.

    e_i is the mean squared error. The loss is a weighted mean of the e_i: the weights are detached, about 1 / e_i, and
    normalised so that the value is 1/2. So only the gradient matters, and only the ratios of the e_i decide how much an image
    counts. With plain least squares one bad image would outweigh a hundred good images. Several batches of images, on further
    first axes, have one loss each.
    """
    errors = ((truth - image) ** 2).flatten(-3).mean(-1)
    detached = errors.detach()
    ratios = errors / (detached + LEAST_SHARE * processes.mean(detached.mean(-1))[..., None] + LEAST)
    return ratios.mean(-1) / (2 * processes.mean(ratios.detach().mean(-1)).clamp_min(LEAST))
