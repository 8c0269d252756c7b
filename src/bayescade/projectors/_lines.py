"""The rays of scans as lines: what the matrix-free projectors compute with.

With lengths in pixels, the origin in the middle of the image, x along its axis 0 (height) and y along its axis 1 (as in
`physics/geometry.py`), the ray of view v and bin b is the line

    x C + y S = Q,    C = cos t + u sin t,   S = sin t - u cos t,   u = u_0 + b du,   Q = q_0 + b dq,

t being the angle of the view. With s the position on the detector: for a parallel beam u = 0 and Q = s; for a fan
beam u = s / SDD and Q = s SOD / SDD.

Joseph's weight of the pixel at (x, y) has one formula for both dominant axes,

    max(0, 1 - |x C + y S - Q| / m) sqrt(1 + u^2) p / m,    m = max(|C|, |S|), p the pixel size,

and x C + y S - Q is linear in b: it is (b* - b) D with D = dq - du T, T = x sin t - y cos t, and b* the bin (a
fraction) whose ray meets the pixel's centre. So a pixel has a positive weight in the bins closer to b* than m / D.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry
from bayescade.physics.symmetries import Symmetry

ROUNDING = 1e-12
# Columns of `Lines.numbers`; the last two are the derivatives of u and Q with respect to the offset of the detector.
U_FIRST, U_STEP, Q_FIRST, Q_STEP, PIXEL_SIZE, U_SLOPE, Q_SLOPE = range(7)


@dataclasses.dataclass(frozen=True, eq=False)
class Lines:
    """The rays of one or several scans. The images have one shape; scans with fewer views or bins are padded."""

    image_shape: tuple[int, int]
    sinogram_shape: tuple[int, int]  # the most views and the most bins of a scan
    cosine: Tensor  # (scans, views), float64
    sine: Tensor  # (scans, views)
    numbers: Tensor  # (scans, 7), float64
    counts: Tensor  # (scans, 2), int32: views and bins of each scan
    reach: Tensor  # (scans, views), float64: an upper bound of m / D in the view
    taps: int  # most bins of a view in which a pixel has a positive weight
    parallel: bool  # every scan is of a parallel beam
    dtype: torch.dtype = torch.float64  # of `factor`

    def to(self, device: torch.device, dtype: torch.dtype) -> "Lines":
        """The same lines on a device, with factors of that type."""
        names = ("cosine", "sine", "numbers", "counts", "reach")
        tensors = {name: getattr(self, name).to(device) for name in names}
        return dataclasses.replace(self, **tensors, dtype=dtype)

    def tensors(self) -> list[Tensor]:
        """What differs between the lines of scans of one kind and of equal shapes: first axis scans."""
        return [self.cosine, self.sine, self.numbers, self.counts, self.reach, self.factor]

    def move(self, symmetry: Symmetry) -> None:
        """Overwrites the lines by those of the scans moved by a symmetry of a square image, in the same order.

        A mirror image, x -> -x, has the lines -x C + y S = Q: the angles pi - t, and u with the opposite sign. A quarter turn
        adds pi / 2 to the angles. `counts`, `reach` and `factor` stay as they are.
        """
        if symmetry.mirrored:
            self.cosine.neg_()
            self.numbers[:, [U_FIRST, U_STEP, U_SLOPE]] *= -1
        if symmetry.turns % 2:
            cosine = self.cosine.clone()
            self.cosine.copy_(self.sine).neg_()
            self.sine.copy_(cosine)
        if symmetry.turns >= 2:
            self.cosine.neg_()
            self.sine.neg_()

    @property
    def directions(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angle of the normal of every ray, (scans, views, bins), or one bin for parallel beams."""
        c, s, u = self._rays()
        length = torch.sqrt(1 + u * u)
        return c / length, s / length

    def _rays(self) -> tuple[Tensor, Tensor, Tensor]:
        """C, S and u of every ray, in shapes that broadcast to (scans, views, bins)."""
        numbers = self.numbers[:, :, None, None].unbind(1)
        bins = torch.arange(1 if self.parallel else self.sinogram_shape[1], device=self.numbers.device)
        u = numbers[U_FIRST] + numbers[U_STEP] * bins
        cosine, sine = self.cosine[..., None], self.sine[..., None]
        return cosine + u * sine, sine - u * cosine, u

    @functools.cached_property
    def factor(self) -> Tensor:
        """sqrt(1 + u^2) p / m^2: Joseph's weight is max(0, m - |x C + y S - Q|) times this factor.

        (scans, views, bins), or (scans, views, 1) for parallel beams.
        """
        c, s, u = self._rays()
        pixel = self.numbers[:, PIXEL_SIZE, None, None]
        return (torch.sqrt(1 + u * u) * pixel / torch.maximum(c.abs(), s.abs()) ** 2).to(self.dtype)


def scan_lines(
    geometries: Sequence[Geometry],
    angles: Tensor | None = None,  # (scans, views), radians, instead of those of the geometries
    offset: Tensor | None = None,  # (scans,), instead of those of the geometries and in their units
    sinogram_shape: tuple[int, int] = (0, 0),  # at least so many views and bins
    taps: int = 0,  # at least so many
) -> Lines:
    """The rays of the scans, on the CPU."""
    shape = geometries[0].image_shape
    for geometry in geometries:
        if geometry.image_shape != shape:
            raise UserError(f"geometries: expected one image shape, got {list(shape)} and {list(geometry.image_shape)}")
    own_shapes = [geometry.sinogram_shape for geometry in geometries]
    views, bins = (max(sinogram_shape[axis], *(own[axis] for own in own_shapes)) for axis in range(2))
    view_angles = np.zeros((len(geometries), views))
    numbers = np.empty((len(geometries), 7))
    for number, geometry in enumerate(geometries):
        view_angles[number, : geometry.views] = geometry.angles
        numbers[number] = _numbers(geometry, geometry.offset if offset is None else float(offset[number].detach()))
    if angles is not None:
        view_angles = angles.detach().double().cpu().numpy()
    cosine, sine = np.cos(view_angles), np.sin(view_angles)
    reach = _reach(cosine, sine, numbers, np.array([g.bins for g in geometries]), shape)
    return Lines(
        image_shape=shape,
        sinogram_shape=(views, bins),
        cosine=torch.from_numpy(cosine),
        sine=torch.from_numpy(sine),
        numbers=torch.from_numpy(numbers),
        counts=torch.tensor(own_shapes, dtype=torch.int32),
        reach=torch.from_numpy(reach),
        taps=max(taps, most_taps(float(reach.max()))),
        parallel=bool((numbers[:, U_SLOPE] == 0).all()),
    )


def most_taps(reach: float) -> int:
    """How many whole numbers at most are closer to a position than `reach`."""
    return max(1, math.ceil(2 * reach - ROUNDING))


def _numbers(geometry: Geometry, offset: float) -> tuple[float, ...]:
    first = -(geometry.bins - 1) / 2 * geometry.bin_width + offset
    u_slope = geometry.divergence
    q_slope = geometry.ray_spacing / geometry.bin_width / geometry.pixel_size
    width = geometry.bin_width
    return (first * u_slope, width * u_slope, first * q_slope, width * q_slope, geometry.pixel_size, u_slope, q_slope)


def _reach(
    cosine: NDArray[np.float64],  # (scans, views)
    sine: NDArray[np.float64],
    numbers: NDArray[np.float64],  # (scans, 7)
    bins: NDArray[np.int_],  # (scans,)
    image_shape: tuple[int, int],
) -> NDArray[np.float64]:
    """An upper bound of m / D over the pixels and bins of a view, (scans, views).

    C and S are linear in b, and D is linear in x and y. So m is largest at the first or the last bin, and D smallest
    at a corner."""
    largest = np.zeros_like(cosine)
    for b in (np.zeros_like(bins), bins - 1):
        u = (numbers[:, U_FIRST] + b * numbers[:, U_STEP])[:, None]
        largest = np.maximum(largest, np.maximum(abs(cosine + u * sine), abs(sine - u * cosine)))
    height, width = image_shape
    largest_t = abs(sine) * (height - 1) / 2 + abs(cosine) * (width - 1) / 2
    return largest / (numbers[:, Q_STEP, None] - numbers[:, U_STEP, None] * largest_t)
