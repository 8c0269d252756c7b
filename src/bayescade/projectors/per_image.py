"""A batch in which every image has its own scan: angles, number of views, offset, widths and distances, in one call.

Sinograms are padded with zeros to the most views and the most bins of a scan. For many scans, as training on many
geometries has."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayescade.errors import UserError
from bayescade.physics.fbp import Weights, fbp_weights, with_added_bins
from bayescade.physics.filters import apply_ramp
from bayescade.physics.geometry import FanBeam, Geometry
from bayescade.physics.linalg import norms
from bayescade.physics.operator import LinearOperator
from bayescade.physics.ray_transform import RayTransform, check_input
from bayescade.physics.symmetries import Symmetry
from bayescade.projectors._autograd import Apply
from bayescade.projectors._kernels import has_matrix_free
from bayescade.projectors._lines import Lines, scan_lines
from bayescade.projectors.matrix_free import LinePair


@dataclasses.dataclass(frozen=True)
class Room:
    """Sizes that are large enough for any of many scans: operators with one room can exchange their scans."""

    views: int = 0
    bins: int = 0
    margin: int = 0  # bins on each side that FBP adds
    taps: int = 0  # of the lines
    wide_taps: int = 0  # of the lines with the margin
    ray_weights: bool = False  # whether FBP has weights of rays

    @classmethod
    def of(cls, geometries: Sequence[Geometry]) -> "Room":
        """The room for these scans, with one image shape: all fan beams, or all parallel beams."""
        lines = scan_lines(geometries)
        weights = [fbp_weights(geometry) for geometry in geometries]
        margin = max(max(weight.added) for weight in weights)
        wide = scan_lines([with_added_bins(geometry, (margin, margin)) for geometry in geometries])
        return cls(*lines.sinogram_shape, margin, lines.taps, wide.taps, has_ray_weights(weights))


class FbpPlan:
    """What FBP of several scans needs beside their data: weights before and after the filter, and lines."""

    def __init__(
        self,
        geometries: Sequence[Geometry],  # all fan beams, or all parallel beams
        shape: tuple[int, ...],  # (views, bins) of the padded sinograms
        ramp: str,
        device: torch.device,
        dtype: torch.dtype,
        room: Room,
    ):
        weights = [fbp_weights(geometry, ramp) for geometry in geometries]
        self.margin = max(room.margin, *(max(weight.added) for weight in weights))
        views, bins = shape
        has_rays = room.ray_weights or has_ray_weights(weights)
        rays = torch.ones(len(geometries), 1, views, bins, dtype=dtype) if has_rays else None
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
        wide = [with_added_bins(geometry, (self.margin, self.margin)) for geometry in geometries]
        wide_shape = (room.views, room.bins + 2 * self.margin) if room.bins else (0, 0)
        lines = scan_lines(wide, sinogram_shape=wide_shape, taps=room.wide_taps).to(device, dtype)
        self.shape = lines.sinogram_shape
        self.pair = LinePair(lines, interpolate=isinstance(geometries[0], FanBeam))

    def tensors(self) -> list[Tensor]:
        """What differs between scans of one room: first axis scans."""
        rays = [self.rays] if self.rays is not None else []
        return [*rays, self.views, self.is_measured, *self.pair.lines.tensors()]

    def apply(self, scans: Tensor, window: str, ramp: str) -> Tensor:
        """The images, (images, scans, 1, height, width), of sinograms (images, scans, 1, views, bins)."""
        wide = pad(scans * self.rays if self.rays is not None else scans, (self.margin, self.margin))
        filtered = apply_ramp(wide, 1.0, window, ramp) * self.views * self.is_measured
        filtered = filtered[..., : self.shape[0], : self.shape[1]].contiguous()
        return Apply.apply(filtered, self.pair, True)


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
        room: Room | None = None,  # default: no more than these scans need
    ):
        if not geometries:
            raise UserError("geometries: expected at least one, got an empty list")
        if not has_matrix_free(torch.device(device)):
            raise UserError("PerImageProjector on a GPU needs Triton; install triton, or use device='cpu'")
        self.geometries = tuple(geometries)
        self.device = torch.device(device)
        self.dtype = dtype
        self.room = room or Room()
        lines = scan_lines(self.geometries, sinogram_shape=(self.room.views, self.room.bins), taps=self.room.taps)
        self.domain_shape = (1, *lines.image_shape)
        self.range_shape = (1, *lines.sinogram_shape)
        self._pair = LinePair(lines.to(self.device, dtype))
        self._plans: dict[tuple[int, str], FbpPlan] = {}  # by first scan and ramp

    @property
    def lines(self) -> Lines:
        """The rays of the scans."""
        return self._pair.lines

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
        if not fans or not others:
            images = self._fbp(fans or others, scans, window, ramp)
        else:
            images = y.new_zeros((*scans.shape[:2], *self.domain_shape))
            for numbers in (fans, others):
                images[:, numbers] = self._fbp(numbers, scans[:, numbers], window, ramp)
        return images.reshape(*y.shape[:-3], *self.domain_shape)

    def _fbp(self, numbers: list[int], scans: Tensor, window: str, ramp: str) -> Tensor:
        """FBP of the scans with these numbers, (images, scans, 1, height, width); all fan beams, or all parallel
        beams."""
        return self._plan(numbers, ramp).apply(scans, window, ramp)

    def _plan(self, numbers: list[int], ramp: str) -> FbpPlan:
        key = (numbers[0], ramp)
        if key not in self._plans:
            geometries = [self.geometries[number] for number in numbers]
            self._plans[key] = FbpPlan(geometries, self.range_shape[1:], ramp, self.device, self.dtype, self.room)
        return self._plans[key]

    def load(self, other: "PerImageProjector", indices: Tensor) -> None:
        """Overwrites the scans by those of another operator with these indices: a CUDA graph of this operator then computes
        with them. Both have the same room, and all scans are of one kind. `geometries` stays as it was."""
        for own, theirs in zip(self._tensors(), other._tensors(), strict=True):
            torch.index_select(theirs, 0, indices, out=own)

    def move(self, symmetry: Symmetry) -> None:
        """Moves the scans of square images by a symmetry; the data of an image are then those of the moved image.
        `geometries` stays as it was."""
        for lines in (self._pair.lines, self._common_plan().pair.lines):
            lines.move(symmetry)

    def _tensors(self) -> list[Tensor]:
        """All that differs between scans of one room and one kind: first axis scans."""
        return [*self._pair.lines.tensors(), *self._common_plan().tensors()]

    def _common_plan(self) -> FbpPlan:
        """The plan of all scans, which are of one kind."""
        kinds = {type(geometry) for geometry in self.geometries}
        assert len(kinds) == 1, f"expected scans of one kind, got {len(kinds)}"
        return self._plan(list(range(len(self.geometries))), "band-limited")

    def _check(self, what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        check_input(self, what, tensor, shape)
        if tensor.shape[:-3].numel() % len(self.geometries):
            raise UserError(
                f"{what}: expected a batch that is a multiple of {len(self.geometries)}, the number of geometries, got "
                f"shape {tuple(tensor.shape)}"
            )


Operator = RayTransform | PerImageProjector


def geometries_of(operator: Operator) -> Sequence[Geometry]:
    """The geometries of a batch: one, or one for each image."""
    return operator.geometries if isinstance(operator, PerImageProjector) else [operator.geometry]


def shapes_of(operator: Operator) -> list[tuple[int, int]] | None:
    """Views and bins of the scans of a batch whose sinograms are padded; None if all have one geometry."""
    if not isinstance(operator, PerImageProjector):
        return None
    return [geometry.sinogram_shape for geometry in operator.geometries]
