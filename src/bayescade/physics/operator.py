"""Linear operators: four members define one, and a cascade works with any of them."""

import functools
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from bayescade.physics.linalg import norm


class LinearOperator(ABC):
    """A linear map between images and data, with its exact transpose.

    `forward` and `adjoint` do not change leading dimensions: (..., *domain_shape) <-> (..., *range_shape).
    """

    domain_shape: tuple[int, ...]  # of one image, e.g. (1, height, width)
    range_shape: tuple[int, ...]  # of one measurement, e.g. (1, views, bins)
    device: torch.device = torch.device("cpu")  # of its inputs and outputs
    dtype: torch.dtype = torch.float32

    @abstractmethod
    def forward(
        self,
        x: Tensor,  # (..., *domain_shape)
    ) -> Tensor:
        """A x, (..., *range_shape)."""

    @abstractmethod
    def adjoint(
        self,
        y: Tensor,  # (..., *range_shape)
    ) -> Tensor:
        """A' y, (..., *domain_shape)."""

    def initial(
        self,
        y: Tensor,  # (..., *range_shape)
    ) -> Tensor:
        """A first image of the data, (..., *domain_shape): A' y / ||A||^2, the first step of gradient descent from zero."""
        return self.adjoint(y) / self.norm**2

    @functools.cached_property
    def norm(self) -> float:
        """The spectral norm ||A||, computed once."""
        return norm(self)

    @property
    def name(self) -> str:
        """What a trained model remembers of its operator: operators with the same name and shapes are exchangeable."""
        return type(self).__name__

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)
