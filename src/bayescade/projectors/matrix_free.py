"""The matrix-free projector: Joseph's line integrals computed ray by ray, of any size, ready at once.

Forward is a sum along each ray, the adjoint a sum over the rays near each pixel: the same weights from one formula
(`_lines`), so that each is the exact transpose of the other."""

import functools
import math
from typing import final

import torch
from torch import Tensor

from bayescade.devices import available_bytes
from bayescade.errors import UserError
from bayescade.physics.fbp import BackProjection, interpolated_back_projection
from bayescade.physics.geometry import FanBeam, Geometry
from bayescade.physics.ray_transform import RayTransform, check_input
from bayescade.projectors._autograd import Apply, ApplyMoved
from bayescade.projectors._kernels import has_matrix_free, matrix_free_kernels
from bayescade.projectors._lines import Lines, scan_lines

COPIES = 3  # memory of a projection divided by that of its input and output


@final
class LinePair:
    """Sums along lines and their transpose, for images of one scan or of several, without autograd.

    With `interpolate`, the last step of FBP of fan beams takes the part of the transpose, and its transpose that of the sums.
    """

    def __init__(self, lines: Lines, interpolate: bool = False):
        self.lines = lines
        self.scans = lines.cosine.shape[0]
        self.kernels = kernels = matrix_free_kernels(lines.cosine.device)
        self.forward, self.adjoint = kernels.forward, kernels.adjoint
        if interpolate:
            self.forward, self.adjoint = kernels.interpolated_transpose, kernels.interpolated

    def apply(self, x: Tensor, transposed: bool) -> Tensor:
        """A x or A' x, (..., scans, 1, *shape); images of several scans alternate between the scans."""
        shapes = self.lines.image_shape, self.lines.sinogram_shape
        domain, result = reversed(shapes) if transposed else shapes
        apply = self.adjoint if transposed else self.forward
        flat: Tensor = apply(self.lines, x.reshape(-1, self.scans, *domain))
        return flat.reshape(*x.shape[:-3], 1, *result)

    def pose_gradient(self, images: Tensor, sinograms: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of <A x, y> with respect to angles (scans, views) and offset (scans,)."""
        x = images.reshape(-1, self.scans, *self.lines.image_shape)
        y = sinograms.reshape(-1, self.scans, *self.lines.sinogram_shape).double()
        by_angle, by_offset = self.kernels.derivatives(self.lines, x)
        return (by_angle * y).sum((0, 3)), (by_offset * y).sum((0, 2, 3))


@final
class MatrixFreeProjector(RayTransform):
    """Ray transform computed ray by ray; build it with `ray_transform(geometry, projector="matrix-free")`."""

    def __init__(
        self,
        geometry: Geometry,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        angles: Tensor | None = None,  # (views,): instead of those of the geometry
        offset: Tensor | None = None,  # (): instead of that of the geometry
    ):
        guard_memory(geometry, torch.device(device), dtype)
        self.geometry = geometry
        self.device = torch.device(device)
        self.dtype = dtype
        self.domain_shape = (1, *geometry.image_shape)
        self.range_shape = (1, *geometry.sinogram_shape)
        self.angles, self.offset = angles, offset
        self._version = self._pose_version()
        self._pair = self._new_pair()

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, "image", x, self.domain_shape)
        return self._apply(x, False)

    def adjoint(self, y: Tensor) -> Tensor:
        check_input(self, "sinogram", y, self.range_shape)
        return self._apply(y, True)

    def _apply(self, x: Tensor, transposed: bool) -> Tensor:
        if not self._is_moved:
            return Apply.apply(x, self._pair, transposed)
        return ApplyMoved.apply(x, self._current_pair(), transposed, self.angles, self.offset)

    @property
    def _is_moved(self) -> bool:
        return self.angles is not None or self.offset is not None

    def moved(self, angles: Tensor | None = None, offset: Tensor | None = None) -> "MatrixFreeProjector":
        """The same scan with other angles (views,) in radians or another offset of the detector, tensors in float64.

        Results are differentiable, once, with respect to these tensors: for the estimation of centre and angles. The
        derivative exists except where a ray meets a pixel centre or changes its dominant axis. FBP uses the unmoved
        geometry."""
        for name, pose, shape in (("angles", angles, (self.geometry.views,)), ("offset", offset, ())):
            if pose is not None and (tuple(pose.shape) != shape or pose.dtype != torch.float64):
                raise UserError(
                    f"{name}: expected a tensor of shape {shape} in float64, got {tuple(pose.shape)} {pose.dtype}"
                )
        angles, offset = self.angles if angles is None else angles, self.offset if offset is None else offset
        return MatrixFreeProjector(self.geometry, self.device, self.dtype, angles, offset)

    def _new_pair(self) -> LinePair:
        angles, offset = self.angles, self.offset
        lines = scan_lines(
            [self.geometry], None if angles is None else angles[None], None if offset is None else offset.reshape(1)
        )
        return LinePair(lines.to(self.device, self.dtype))

    def _pose_version(self) -> list[int]:
        return [pose._version for pose in (self.angles, self.offset) if pose is not None]

    def _current_pair(self) -> LinePair:
        """The lines for the present values of angles and offset, which an optimiser may have changed."""
        if self._version != self._pose_version():
            self._version, self._pair = self._pose_version(), self._new_pair()
        return self._pair

    def back_projector(self, geometry: Geometry) -> BackProjection | None:
        if self._is_moved and not isinstance(geometry, FanBeam):
            return MatrixFreeProjector(geometry, self.device, self.dtype).adjoint
        return back_projector(self, geometry)


def back_projector(operator: RayTransform, geometry: Geometry) -> BackProjection | None:
    """The last step of FBP, for every projector: without a matrix for fan beams, by an adjoint for parallel beams.

    None stands for the adjoint of the operator itself, which then does not hold itself in memory.
    """
    kernels = has_matrix_free(operator.device)
    if isinstance(geometry, FanBeam):
        if not kernels:
            return functools.partial(interpolated_back_projection, geometry)
        pair = LinePair(scan_lines([geometry]).to(operator.device, operator.dtype), interpolate=True)
        return lambda filtered: Apply.apply(filtered, pair, True)
    if geometry.bins == operator.geometry.bins:
        return None
    if not kernels:
        raise UserError("FBP of a displaced detector on a GPU needs Triton; install triton, or use device='cpu'")
    return MatrixFreeProjector(geometry, operator.device, operator.dtype).adjoint


def guard_memory(geometry: Geometry, device: torch.device, dtype: torch.dtype) -> None:
    """Raises if one image and its sinogram, with the copies that a projection needs, do not fit memory."""
    numbers = math.prod(geometry.image_shape) + math.prod(geometry.sinogram_shape)
    needed, free = COPIES * numbers * dtype.itemsize, available_bytes(device)
    if needed > free:
        raise UserError(
            f"one image of {geometry.image_shape[0]} x {geometry.image_shape[1]} with {geometry.views} views of "
            f"{geometry.bins} bins needs about {needed / 1e9:.2g} GB, and {free / 1e9:.2g} GB are free on {device}; "
            "use larger pixels, fewer views, or fewer bins"
        )
