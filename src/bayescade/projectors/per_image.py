"""A batch in which every image has its own scan: angles, number of views, offset, widths and distances, in one call.

Sinograms are padded with zeros to the most views and the most bins of a scan. For many scans, as training on many
geometries has."""

import functools
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayescade.errors import UserError
from bayescade.physics.fbp import Weights, fbp_weights, interpolated_back_projection, with_added_bins
from bayescade.physics.filters import apply_ramp
from bayescade.physics.geometry import FanBeam, Geometry
from bayescade.physics.linalg import norms
from bayescade.physics.operator import LinearOperator
from bayescade.physics.ray_transform import check_input
from bayescade.projectors._autograd import Apply
from bayescade.projectors._kernels import has_matrix_free
from bayescade.projectors._lines import scan_lines
from bayescade.projectors.matrix_free import LinePair


class FbpPlan:
    """What FBP of several scans needs beside their data: weights before and after the filter, and lines."""

    def __init__(
        self,
        geometries: Sequence[Geometry],  # all fan beams, or all parallel beams
        shape: tuple[int, ...],  # (views, bins) of the padded sinograms
        ramp: str,
        device: torch.device,
        dtype: torch.dtype,
    ):
        weights = [fbp_weights(geometry, ramp) for geometry in geometries]
        self.margin = max(max(weight.added) for weight in weights)
        views, bins = shape
        rays = torch.ones(len(geometries), 1, views, bins, dtype=dtype) if has_ray_weights(weights) else None
        view_weights = torch.zeros(len(geometries), 1, views, 1, dtype=torch.float64)
        is_measured = torch.zeros(len(geometries), 1, 1, bins + 2 * self.margin, dtype=dtype)
        for number, (geometry, weight) in enumerate(zip(geometries, weights, strict=True)):
            v, b = geometry.sinogram_shape
            if rays is not None and weight.rays is not None:
                rays[number, 0, :v, :b] = torch.as_tensor(weight.rays).to(dtype)
            view_weights[number, 0, :v, 0] = weight.scale / geometry.ray_spacing
            if weight.views is not None:
                view_weights[number, 0, :v, 0] *= torch.as_tensor(weight.views)
            is_measured[number, ..., self.margin - weight.added[0] : self.margin + b + weight.added[1]] = 1
        self.rays = rays.to(device) if rays is not None else None  # before the filter
        self.views, self.is_measured = view_weights.to(device, dtype), is_measured.to(device)  # after it
        self.wide = [with_added_bins(geometry, (self.margin, self.margin)) for geometry in geometries]
        lines = scan_lines(self.wide)
        self.shape = lines.sinogram_shape
        self.pair = LinePair(lines.to(device, dtype))

    def apply(self, scans: Tensor, window: str, ramp: str) -> Tensor:
        """The images, (images, scans, 1, height, width), of sinograms (images, scans, 1, views, bins)."""
        wide = pad(scans * self.rays if self.rays is not None else scans, (self.margin, self.margin))
        filtered = apply_ramp(wide, 1.0, window, ramp) * self.views * self.is_measured
        filtered = filtered[..., : self.shape[0], : self.shape[1]].contiguous()
        if not isinstance(self.wide[0], FanBeam):
            return Apply.apply(filtered, self.pair, True)
        if not filtered.requires_grad:
            return self.pair.interpolated(filtered)
        images = []
        for number, geometry in enumerate(self.wide):
            assert isinstance(geometry, FanBeam)
            images.append(
                interpolated_back_projection(geometry, filtered[:, number, :, : geometry.views, : geometry.bins])
            )
        return torch.stack(images, 1)


def has_ray_weights(weights: Sequence[Weights]) -> bool:
    """Whether a scan has weights of rays."""
    return any(weight.rays is not None for weight in weights)


@final
class PerImageProjector(LinearOperator):
    """Line integrals of images, image k along the rays of geometry k; a batch holds every geometry once, or several
    times in turn.

    It is block-diagonal: `norm` is the largest of `norms`, and methods that divide by a norm should use `norms`.
    """

    def __init__(
        self,
        geometries: Sequence[Geometry],  # with one image shape
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        if not geometries:
            raise UserError("geometries: expected at least one, got an empty list")
        if not has_matrix_free(torch.device(device)):
            raise UserError("PerImageProjector on a GPU needs Triton; install triton, or use device='cpu'")
        self.geometries = tuple(geometries)
        self.device = torch.device(device)
        self.dtype = dtype
        lines = scan_lines(self.geometries)
        self.domain_shape = (1, *lines.image_shape)
        self.range_shape = (1, *lines.sinogram_shape)
        self._pair = LinePair(lines.to(self.device, dtype))
        self._plans: dict[tuple[int, str], FbpPlan] = {}  # by first scan and ramp

    def forward(self, x: Tensor) -> Tensor:
        self._check("image", x, self.domain_shape)
        return Apply.apply(x, self._pair, False)

    def adjoint(self, y: Tensor) -> Tensor:
        self._check("sinogram", y, self.range_shape)
        return Apply.apply(y, self._pair, True)

    @functools.cached_property
    def norms(self) -> Tensor:
        """The spectral norm of every scan, (scans,), float64; computed once."""
        return norms(self, len(self.geometries))

    @functools.cached_property
    def norm(self) -> float:
        """The largest of the norms."""
        return float(self.norms.max())

    def initial(self, y: Tensor) -> Tensor:
        return self.fbp(y)

    def fbp(self, y: Tensor, window: str = "ram-lak", ramp: str = "band-limited") -> Tensor:
        """Filtered back-projection of every image with the weights of its scan."""
        self._check("sinogram", y, self.range_shape)
        if ramp == "shifted" and len({geometry.bins for geometry in self.geometries}) > 1:
            raise UserError("ramp shifted: expected scans with one number of bins; use ramp='band-limited'")
        fans = [number for number, geometry in enumerate(self.geometries) if isinstance(geometry, FanBeam)]
        others = [number for number in range(len(self.geometries)) if number not in set(fans)]
        scans = y.reshape(-1, len(self.geometries), *self.range_shape)
        images = y.new_zeros((*scans.shape[:2], *self.domain_shape))
        for numbers in (fans, others):
            if numbers:
                images[:, numbers] = self._fbp(numbers, scans[:, numbers], window, ramp)
        return images.reshape(*y.shape[:-3], *self.domain_shape)

    def _fbp(self, numbers: list[int], scans: Tensor, window: str, ramp: str) -> Tensor:
        """FBP of the scans with these numbers, (images, scans, 1, height, width); all fan beams, or all parallel
        beams."""
        key = (numbers[0], ramp)
        if key not in self._plans:
            geometries = [self.geometries[number] for number in numbers]
            self._plans[key] = FbpPlan(geometries, self.range_shape[1:], ramp, self.device, self.dtype)
        return self._plans[key].apply(scans, window, ramp)

    def _check(self, what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        check_input(self, what, tensor, shape)
        if tensor.shape[:-3].numel() % len(self.geometries):
            raise UserError(
                f"{what}: expected a batch that is a multiple of {len(self.geometries)}, the number of geometries, got "
                f"shape {tuple(tensor.shape)}"
            )
