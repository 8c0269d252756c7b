"""Linear operators: four members make one, and any of them works in a cascade."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from bayescade.physics.fbp import filtered_back_projection
from bayescade.physics.geometry import Geometry


class LinearOperator(ABC):
    """A linear map between images and data, with its exact transpose.

    `forward` and `adjoint` keep leading dimensions: (..., *domain_shape) <-> (..., *range_shape).
    """

    domain_shape: tuple[int, ...]  # of one image, e.g. (1, height, width)
    range_shape: tuple[int, ...]  # of one measurement, e.g. (1, views, bins)

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

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)


class RayTransform(LinearOperator):
    """Line integrals of an image along the rays of a geometry. Abstract: `ray_transform(geometry)` chooses one."""

    geometry: Geometry
    device: torch.device
    dtype: torch.dtype

    def fbp(
        self,
        y: Tensor,  # (..., 1, views, bins)
        window: str = "ram-lak",
    ) -> Tensor:
        """Filtered back-projection, (..., 1, height, width)."""
        return filtered_back_projection(self.geometry, self.adjoint, y, window)
