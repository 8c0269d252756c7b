"""Any scan as one kind of problem: lengths in pixels, image values near 1, and planes that say what the scan is like.

With p the pixel size and c the unit of the image, a method sees the image x / c, the data y / (c p) and the geometry in pixels:
units do not matter, and a scan of other units has the same answer in its units. The unit is the level of the image (about its
values where the object is). With the plane `level` it is the error that is expected of the first image, so that corrections of
good and of bad scans are of one size, and the plane tells how large the image is in this unit.

Planes that a block may get beside the gradient (`PLANES`), in image units or without units:

| name | planes | what |
|---|---|---|
| `level` | 1 | log10 of 1 / level of the image in its unit; blocks see the image divided by its level |
| `filtered-residual` | 1 | FBP of A x - y |
| `noise` | 1 | log10 of the standard deviation that the noise of the data gives FBP (estimated from the data) |
| `coverage` | 3 | log2 of the number of rays that meet the pixel; mean of cos 2t and sin 2t over these rays, t their angle |
| `coarse` | 2 | the image averaged over squares of 8 x 8 and of 32 x 32 pixels |
"""

import dataclasses
import functools
import math
from collections.abc import Hashable, Sequence
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry
from bayescade.physics.level import levels
from bayescade.physics.linalg import norms
from bayescade.physics.noise_level import noise_std
from bayescade.physics.problem import DataPlane, InverseProblem
from bayescade.physics.symmetries import SYMMETRIES
from bayescade.projectors._lines import scan_lines
from bayescade.projectors.first_image import FirstImage
from bayescade.projectors.per_image import Operator, PerImageProjector, geometries_of, shapes_of

PLANES = ("level", "filtered-residual", "noise", "coverage", "coarse")
LEVEL_SQUARE = 4  # pixels: FBP is averaged over squares of this edge before the level is read off
LEVEL_ITERATIONS = 40  # of total variation, to estimate the error of the first image
# Ratio of the error of the first image to the distance between FBP and total variation: the geometric mean over 192 scans.
ERROR_RATIO = 0.33
LEAST_ERROR = 1e-4  # of the level of the image
COARSE_SQUARES = (8, 32)  # pixels
NORM = 1e-3  # relative tolerance of the norms of scans
LEAST_NOISE, MOST_NOISE = 1e-6, 10.0  # in image units


def plane_names(text: str) -> list[str]:
    """The names in a text with commas; raises if there is no such plane."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PLANES:
            raise UserError(f"setting planes: expected some of {', '.join(PLANES)}, got '{name}'")
    return names


def in_pixels(geometry: Geometry) -> Geometry:
    """The geometry with the pixel size as its unit of length."""
    pixel = geometry.pixel_size
    lengths = {name: getattr(geometry, name) / pixel for name in (*geometry.length_names(), "offset")}
    return dataclasses.replace(geometry, **lengths)


def image_levels(
    operator: Operator,  # in pixels
    y: Tensor,  # (batch, 1, views, bins)
) -> Tensor:
    """The level of FBP averaged over small squares, for every image, (batch,)."""
    squares = avg_pool2d(operator.fbp(y, "hann"), LEVEL_SQUARE, ceil_mode=True, count_include_pad=False)
    return levels(squares).to(y.dtype)


def image_units(
    problem: InverseProblem,  # in pixels
    y: Tensor,  # (batch, 1, views, bins)
) -> Tensor:
    """The unit of every image, (batch,): its level or, with the plane `level`, its expected error.

    The error is estimated by the distance of two images, FBP and a few iterations of total variation.
    """
    operator = problem.operator
    assert isinstance(operator, Operator)
    level = image_levels(operator, y)
    if not problem.levelled:
        return level
    images = FirstImage(operator, problem.norm, LEVEL_ITERATIONS)(y)
    distance = (operator.fbp(y).clamp_min(0) - images).square().mean((1, 2, 3)).sqrt()
    return torch.maximum(ERROR_RATIO * distance, LEAST_ERROR * level)


def any_scan_problem(
    operator: Operator,  # in pixels
    planes: Sequence[str],  # names of `PLANES`
    tv_iterations: int = 0,  # for the first image, by total variation; 0: FBP
    norm: float | Tensor | None = None,  # of the operator, if it is known
) -> InverseProblem:
    """The problem of one scan or of one scan per image; its data are divided by the unit of the image."""
    coarse = tuple(functools.partial(averaged, edge) for edge in COARSE_SQUARES if "coarse" in planes)
    filtered = (operator.fbp,) if "filtered-residual" in planes else ()
    level = [level_plane(operator)] if "level" in planes else []
    noise = [noise_plane(operator)] if "noise" in planes else []
    coverage = coverage_planes(operator) if "coverage" in planes else []
    per_image = isinstance(operator, PerImageProjector)
    kind = functools.partial(ScanPerImage, directions=bool(coverage)) if per_image else InverseProblem
    if norm is None and isinstance(operator, PerImageProjector):
        norm = norms(operator, len(operator.geometries), NORM).to(operator.device)
    norm = norm if norm is not None else operator.norm
    return kind(
        operator,
        initial_image=FirstImage(operator, norm, tv_iterations) if tv_iterations else None,
        norm=norm,
        planes=coarse,
        residual_planes=filtered,
        data_planes=(*level, *noise, *coverage),
        levelled=bool(level),
    )


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ScanPerImage(InverseProblem):
    """A problem in which every image has a scan of its own."""

    directions: bool = False  # whether the last two planes of the data are the means of cos 2t and sin 2t

    def batch(self, count: int) -> "ScanPerImage":
        """A problem of so many scans, with tensors of its own, into which `load` puts scans of this problem.

        It has no planes of the data: they are those of the scan for which they were computed.
        """
        parent = self.operator
        assert isinstance(parent, PerImageProjector)
        operator = PerImageProjector(parent.geometries[:count], parent.device, parent.dtype, parent.room)
        filtered = (operator.fbp,) if self.residual_planes else ()
        assert isinstance(self.norm, Tensor)
        return ScanPerImage(
            operator,
            norm=self.norm[:count].clone(),
            planes=self.planes,
            residual_planes=filtered,
            levelled=self.levelled,
            directions=self.directions,
        )

    @property
    def exchange(self) -> Hashable:
        assert isinstance(self.operator, PerImageProjector)
        operator = self.operator
        return type(operator.geometries[0]), operator.room, operator.domain_shape, operator.range_shape

    @property
    def moves(self) -> int:
        height, width = self.operator.domain_shape[-2:]
        return len(SYMMETRIES) if height == width else 1

    def moved(self, images: Tensor, move: int) -> Tensor:
        return SYMMETRIES[move].image(images)

    def moved_known(self, known: Tensor, move: int) -> Tensor:
        symmetry = SYMMETRIES[move]
        planes = symmetry.image(known)
        if self.directions:
            planes = planes.clone()
            planes[:, -2:] *= -1 if symmetry.turns % 2 else 1
            planes[:, -1] *= -1 if symmetry.mirrored else 1  # a mirror image has the angles pi - t
        return planes

    def load(self, other: InverseProblem, indices: Tensor, move: int = 0) -> None:
        """Takes over the scans of another problem with these indices, moved by a symmetry of the pixel grid."""
        assert isinstance(self.operator, PerImageProjector)
        assert isinstance(other.operator, PerImageProjector)
        assert isinstance(self.norm, Tensor)
        assert isinstance(other.norm, Tensor)
        self.operator.load(other.operator, indices)
        torch.index_select(other.norm, 0, indices, out=self.norm)
        self.operator.move(SYMMETRIES[move])


def level_plane(operator: Operator) -> DataPlane:
    """log10 of 1 / level of the image, the same in all pixels."""

    def plane(y: Tensor) -> Tensor:
        return -torch.log10(image_levels(operator, y)).reshape(-1, 1, 1, 1).expand(-1, *operator.domain_shape)

    return plane


def noise_plane(operator: Operator) -> DataPlane:
    """log10 of the standard deviation of the noise in FBP, the same in all pixels.

    With N views and rays at distance w of white noise s, it is s pi / (w sqrt(12 N)): the taps h of the band-limited ramp
    have w^2 sum h^2 = 1 / (12 w^2). The interpolation between bins lowers it, by less than a factor of 2.
    """
    geometries, shapes = geometries_of(operator), shapes_of(operator)
    factors = torch.tensor([math.pi / (g.ray_spacing * math.sqrt(12 * g.views)) for g in geometries])
    factors = factors.to(operator.device, operator.dtype)

    def plane(y: Tensor) -> Tensor:
        times = len(y) // len(factors)
        std = noise_std(y, shapes * times if shapes is not None else None) * factors.repeat(times)
        return torch.log10(std.clamp(LEAST_NOISE, MOST_NOISE)).reshape(-1, 1, 1, 1).expand(-1, *operator.domain_shape)

    return plane


def coverage_planes(operator: Operator) -> list[DataPlane]:
    """How many rays meet a pixel, and the second moment of their directions; computed once."""
    if isinstance(operator, PerImageProjector):
        lines = operator.lines
    else:
        lines = scan_lines([operator.geometry]).to(operator.device, operator.dtype)
    cosine, sine = (values[:, None].to(operator.dtype) for values in lines.directions)
    ones = torch.ones_like(cosine)
    count, cosine_sum, sine_sum = (
        operator.adjoint(values.expand(-1, *operator.range_shape).contiguous())
        for values in (ones, cosine**2 - sine**2, 2 * sine * cosine)
    )
    count = count.clamp_min(1e-3)
    maps = [torch.log2(count), cosine_sum / count, sine_sum / count]
    return [lambda y, plane=plane: plane.repeat(len(y) // len(plane), 1, 1, 1) for plane in maps]  # type: ignore[misc]


def averaged(edge: int, x: Tensor, y: Tensor) -> Tensor:
    """Means of the images x over squares, interpolated to the size of the images: what a block sees from further away."""
    squares = avg_pool2d(x, edge, ceil_mode=True, count_include_pad=False)
    return interpolate(squares, x.shape[-2:], mode="bilinear", align_corners=False)
