"""The cone-beam transform of volumes, its exact transpose, and FDK: Triton on a GPU, a slow reference on a CPU."""

import dataclasses
import math
from collections.abc import Iterator
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from bayescade.errors import UserError
from bayescade.kernels import cone
from bayescade.kernels._triton import available, cdiv, device_of
from bayescade.physics.cone_beam import ConeBeam
from bayescade.physics.fbp import with_added_bins
from bayescade.physics.filters import apply_ramp
from bayescade.physics.operator import LinearOperator
from bayescade.physics.ray_transform import check_input
from bayescade.physics.redundancy import missing_bins, ray_weights, view_weights
from bayescade.projectors._autograd import Apply
from bayescade.projectors._lines import most_taps, scan_lines

MOST_NUMBERS = 2**31  # kernels count in 32 bits
MOST_TAPS = 64  # of bins times rows, all of which are compiled one by one
TILE = (32, 16)  # bins and rows, or pixels and slices, of a program


@final
class ConeBeamTransform(LinearOperator):
    """Line integrals of volumes (batch, 1, slices, height, width): data (batch, 1, views, rows, bins)."""

    def __init__(
        self,
        geometry: ConeBeam,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        self.geometry = geometry
        self.device = torch.device(device)
        self.dtype = dtype
        self.domain_shape = (1, *geometry.volume_shape)
        self.range_shape = (1, *geometry.data_shape)
        if max(math.prod(self.domain_shape), math.prod(self.range_shape)) >= MOST_NUMBERS:
            raise UserError("expected a volume and data of fewer than 2^31 numbers; use larger voxels or fewer views")
        self._pair = _pair(geometry, self.device)

    def forward(self, x: Tensor) -> Tensor:
        check_input(self, "volume", x, self.domain_shape)
        return Apply.apply(x, self._pair, False)

    def adjoint(self, y: Tensor) -> Tensor:
        check_input(self, "data", y, self.range_shape)
        return Apply.apply(y, self._pair, True)

    def initial(self, y: Tensor) -> Tensor:
        return self.fdk(y)

    def fdk(self, y: Tensor, window: str = "ram-lak") -> Tensor:
        """Reconstruction by Feldkamp, Davis and Kress (1984), (..., 1, slices, height, width).

        Exact in the middle slice; elsewhere exact only for volumes that do not change along z. Not differentiable.
        """
        check_input(self, "data", y, self.range_shape)
        fan = self.geometry.fan
        added = missing_bins(fan)
        tangent = self.geometry.row_heights()[:, None] / fan.source_detector
        u = fan.bin_positions() / fan.source_detector
        cosines = 1 / np.sqrt(1 + u * u + tangent * tangent)  # (rows, bins)
        weights = ray_weights(fan)[:, None, :] * cosines * view_weights(fan)[:, None, None]
        weighted = y * torch.as_tensor(weights).to(y)
        filtered = apply_ramp(pad(weighted, added), fan.ray_spacing, window)
        if not any(added):
            return self._pair.interpolated(filtered)
        wide = dataclasses.replace(self.geometry, fan=with_added_bins(fan, added))
        return _pair(wide, self.device).interpolated(filtered)


def _pair(geometry: ConeBeam, device: torch.device) -> "ConeKernels | ConeReference":
    if device.type == "cpu":
        return ConeReference(geometry)
    if not available():
        raise UserError("a cone beam on a GPU needs Triton; install triton, or use device='cpu'")
    return ConeKernels(geometry, device)


class ConeReference:
    """The weights of each view as lists of voxels, in float64: slow, and the transpose by construction."""

    def __init__(self, geometry: ConeBeam):
        self.geometry = geometry
        self.lines = scan_lines([geometry.fan])

    def apply(self, x: Tensor, transposed: bool) -> Tensor:
        """A x or A' x."""
        views, levels, bins = self.geometry.data_shape
        size = math.prod(self.geometry.volume_shape)
        lead = x.shape[:-4]
        flat = x.reshape(-1, views, levels * bins) if transposed else x.reshape(-1, size)
        shape = (flat.shape[0], size) if transposed else (flat.shape[0], views, levels * bins)
        result = x.new_zeros(shape)
        for view in range(views):
            for ray, voxel, weight in self._weights(view):
                if transposed:
                    result.index_add_(1, voxel, flat[:, view, ray] * weight.to(x))
                else:
                    result[:, view].index_add_(1, ray, flat[:, voxel] * weight.to(x))
        return result.reshape(*lead, 1, *(self.geometry.volume_shape if transposed else self.geometry.data_shape))

    def interpolated(self, filtered: Tensor) -> Tensor:
        """The last step of FDK: the sum over views of (SOD / U)^2 times the data interpolated where a voxel is seen."""
        geometry, fan = self.geometry, self.geometry.fan
        slices, height, width = geometry.volume_shape
        p = fan.pixel_size
        x = ((torch.arange(height).double() - (height - 1) / 2) * p)[:, None]
        y = ((torch.arange(width).double() - (width - 1) / 2) * p)[None, :]
        z = ((torch.arange(slices).double() - (slices - 1) / 2) * p)[:, None, None]
        lead = filtered.shape[:-4]
        data = filtered.reshape(-1, *geometry.data_shape)
        volume = filtered.new_zeros((len(data), *geometry.volume_shape))
        first_bin, first_row = float(fan.bin_positions()[0]), float(geometry.row_heights()[0])
        for view, angle in enumerate(fan.angles):
            depth = fan.source_origin - (x * math.sin(angle) - y * math.cos(angle))
            scale = fan.source_detector / depth
            b = ((x * math.cos(angle) + y * math.sin(angle)) * scale - first_bin) / fan.bin_width
            r = (z * scale - first_row) / geometry.row_height
            for row_tap in (0, 1):
                for tap in (0, 1):
                    k, m = b.floor() + tap, r.floor() + row_tap
                    weight = (1 - (b - k).abs()) * (1 - (r - m).abs()) * (fan.source_origin / depth) ** 2
                    inside = (k >= 0) & (k < fan.bins) & (m >= 0) & (m < geometry.detector_rows)
                    index = m.clamp(0, geometry.detector_rows - 1) * fan.bins + k.clamp(0, fan.bins - 1)
                    values = data[:, view].flatten(1)[:, index.long()]
                    volume += values * (weight * inside).to(filtered)
        return volume.reshape(*lead, 1, *geometry.volume_shape)

    def _weights(self, view: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rays (row * bins + bin), voxels and weights, for each dominant axis and each of the four voxels of a step."""
        geometry, fan, lines = self.geometry, self.geometry.fan, self.lines
        slices, height, width = geometry.volume_shape
        c, s = float(lines.cosine[0, view]), float(lines.sine[0, view])
        u_first, u_step, q_first, q_step, p = lines.numbers[0, :5].tolist()
        b = torch.arange(fan.bins, dtype=torch.float64)
        u, q = u_first + b * u_step, q_first + b * q_step
        big_c, big_s = c + u * s, s - u * c
        along_y = big_c.abs() >= big_s.abs()
        tangent = torch.as_tensor(geometry.row_heights() / fan.source_detector)
        for axis in (False, True):
            chosen = torch.nonzero(along_y == axis)[:, 0]
            major, minor = (big_c, big_s) if axis else (big_s, big_c)
            steps, size = (width, height) if axis else (height, width)
            along = torch.arange(steps, dtype=torch.float64) - (steps - 1) / 2
            across = (q[chosen, None] - along * minor[chosen, None]) / major[chosen, None]  # (bins, steps)
            x, y = (across, along.expand_as(across)) if axis else (along.expand_as(across), across)
            depth = fan.source_origin / p - (x * s - y * c)
            z = tangent[:, None, None] * depth + (slices - 1) / 2  # (rows, bins, steps)
            pixel = across + (size - 1) / 2
            length = ((1 + u[chosen] ** 2) + tangent[:, None] ** 2).sqrt() / major[chosen].abs() * p  # (rows, bins)
            ray = (torch.arange(geometry.detector_rows)[:, None] * fan.bins + chosen)[..., None].expand(z.shape)
            step = torch.arange(steps).expand(z.shape)
            for tap in (0, 1):
                for slice_tap in (0, 1):
                    k, m = (pixel.floor() + tap).expand(z.shape), z.floor() + slice_tap
                    weight = (1 - (pixel - k).abs()) * (1 - (z - m).abs()) * length[..., None]
                    inside = (k >= 0) & (k < size) & (m >= 0) & (m < slices) & (weight > 0)
                    row, column = (k, step) if axis else (step, k)
                    voxel = (m * height + row) * width + column
                    yield ray[inside], voxel[inside].long(), weight[inside]


class ConeKernels:
    """The same by Triton kernels, without atomics."""

    def __init__(self, geometry: ConeBeam, device: torch.device):
        self.geometry = geometry
        fan = geometry.fan
        self.lines = scan_lines([fan]).to(device, torch.float64)
        p, heights = fan.pixel_size, geometry.row_heights()
        step = geometry.row_height / fan.source_detector
        numbers = [heights[0] / fan.source_detector, step, fan.source_origin / p]
        self.heights = torch.tensor(numbers, dtype=torch.float64, device=device)
        nearest = fan.source_origin / p - math.hypot(*fan.image_shape) / 2 - 1
        if nearest <= 0:
            raise UserError(
                "source_origin: expected a source at least a pixel away from the image; use a smaller image"
            )
        self.row_reach = 1 / (step * nearest)
        self.row_taps = most_taps(self.row_reach)
        if self.row_taps * self.lines.taps > MOST_TAPS:
            raise UserError(
                f"a voxel meets up to {self.lines.taps} bins and {self.row_taps} rows of a view, expected at most {MOST_TAPS} "
                "together; use smaller voxels, wider bins and rows, or a source that is further away"
            )

    def apply(self, x: Tensor, transposed: bool) -> Tensor:
        """A x or A' x."""
        return self._back(x, interpolate=False) if transposed else self._forward(x)

    def interpolated(self, filtered: Tensor) -> Tensor:
        """The last step of FDK."""
        return self._back(filtered, interpolate=True)

    def _forward(self, x: Tensor) -> Tensor:
        views, levels, bins = self.geometry.data_shape
        slices, height, width = self.geometry.volume_shape
        volumes = x.reshape(-1, slices, height, width).permute(0, 2, 3, 1).contiguous()
        data = x.new_zeros((len(volumes), views, bins, levels))
        grid = (cdiv(bins, TILE[0]), views, len(volumes) * cdiv(levels, TILE[1]))
        lines = (self.lines.cosine, self.lines.sine, self.lines.numbers, self.lines.counts, self.heights)
        sizes = (height, width, slices, views, bins, levels)
        with device_of(x):
            cone.project_cone[grid](volumes, data, *lines, *sizes, BINS=TILE[0], LEVELS=TILE[1])
        return data.transpose(2, 3).reshape(*x.shape[:-4], 1, views, levels, bins)

    def _back(self, y: Tensor, interpolate: bool) -> Tensor:
        views, levels, bins = self.geometry.data_shape
        slices, height, width = self.geometry.volume_shape
        data = y.reshape(-1, views, levels, bins).transpose(2, 3).contiguous()
        volumes = y.new_empty((len(data), height, width, slices))
        grid = (cdiv(width, TILE[0]), height, len(data) * cdiv(slices, TILE[1]))
        lines = (self.lines.cosine, self.lines.sine, self.lines.reach, self.lines.numbers, self.heights)
        with device_of(y):
            cone.back_project_cone[grid](
                data,
                volumes,
                *lines,
                height,
                width,
                slices,
                views,
                bins,
                levels,
                TAPS=2 if interpolate else self.lines.taps,
                ROW_TAPS=self.row_taps,
                ROW_REACH=self.row_reach,
                INTERPOLATE=interpolate,
                PIXELS=TILE[0],
                SLICES=TILE[1],
            )
        return volumes.permute(0, 3, 1, 2).reshape(*y.shape[:-4], 1, slices, height, width)
