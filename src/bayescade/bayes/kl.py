"""The Kullback-Leibler divergence from the prior."""

import torch
from torch import Tensor


def kl_from_standard_normal(mean: Tensor, log_std: Tensor) -> Tensor:
    """KL(N(m, s^2) || N(0, 1)) summed over all entries: sum (s^2 + m^2 - 1) / 2 - log s."""
    return ((torch.exp(2 * log_std) + mean**2 - 1) / 2 - log_std).sum()
