"""The ray transform: line integrals of an image along the rays of a geometry."""

import functools
from abc import abstractmethod

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.fbp import BackProjection, FilteredBackProjection
from bayescade.physics.filters import check_ramp
from bayescade.physics.geometry import Geometry
from bayescade.physics.operator import LinearOperator


def check_input(operator: LinearOperator, what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raises unless it is a tensor of the operator's type and shape, with at least one image."""
    if not isinstance(tensor, Tensor):
        raise UserError(f"{what}: expected a torch tensor, got {type(tensor).__name__}; convert with torch.as_tensor")
    if tuple(tensor.shape[-len(shape) :]) != shape or tensor.numel() == 0:
        expected = ", ".join(map(str, shape))
        raise UserError(f"{what}: expected shape (batch, {expected}), got {tuple(tensor.shape)}")
    if tensor.device.type != operator.device.type:
        raise UserError(
            f"{what}: this operator is on {operator.device}, got a tensor on {tensor.device}; convert with .to()"
        )
    if tensor.dtype != operator.dtype or tensor.layout != torch.strided:
        raise UserError(
            f"{what}: expected a dense tensor of {operator.dtype}, got {tensor.layout} {tensor.dtype}; convert with "
            f".to_dense() or .to({operator.dtype}), or build the operator with dtype=..."
        )


class RayTransform(LinearOperator):
    """Line integrals of an image along the rays of a geometry. Abstract: `ray_transform(geometry)` chooses one."""

    geometry: Geometry

    def fbp(
        self,
        y: Tensor,  # (..., 1, views, bins)
        window: str = "ram-lak",
        ramp: str = "band-limited",
    ) -> Tensor:
        """Filtered back-projection, (..., 1, height, width)."""
        check_input(self, "sinogram", y, self.range_shape)
        check_ramp(ramp)
        if ramp not in self._fbp:
            self._fbp[ramp] = FilteredBackProjection(self.geometry, self.back_projector, ramp, self.device, self.dtype)
        return self._fbp[ramp](y, window, self.adjoint)

    @functools.cached_property
    def _fbp(self) -> dict[str, FilteredBackProjection]:
        """FBP by ramp, as far as it was used."""
        return {}

    @abstractmethod
    def back_projector(
        self,
        geometry: Geometry,  # of the operator, or with the bins that FBP adds beside a displaced detector
    ) -> BackProjection | None:
        """The last step of FBP: A' for parallel beams, an interpolation between bins for fan beams; None: `adjoint`."""

    def initial(self, y: Tensor) -> Tensor:
        return self.fbp(y)

    @property
    def name(self) -> str:
        return "RayTransform"  # whichever projector computes it
