"""Random geometries for property tests: odd sizes, one view, non-square images, offsets, angles anywhere."""

import math
from collections.abc import Callable

import torch
from hypothesis import assume
from hypothesis import strategies as st

from bayescade.errors import UserError
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.physics.operator import LinearOperator

lengths = st.floats(0.3, 3.0)
sizes = st.integers(1, 17)
# Multiples of 45 degrees, where a ray changes its dominant axis, as well as angles anywhere.
angles = st.one_of(st.floats(-2 * math.pi, 2 * math.pi), st.integers(-8, 8).map(lambda k: k * math.pi / 4))


def covering(build: Callable[..., Geometry]) -> Callable[..., Geometry]:
    """The geometry, where some ray meets the image."""

    def made(**values: object) -> Geometry:
        try:
            return build(**values)
        except UserError as error:
            assume("no ray meets" not in str(error))
            raise

    return made


parallel_beams = st.builds(
    covering(ParallelBeam),
    angles=st.lists(angles, min_size=1, max_size=5),
    bins=st.integers(1, 25),
    bin_width=lengths,
    offset=st.floats(-3, 3),
    pixel_size=lengths,
    image_shape=st.tuples(sizes, sizes),
)


@st.composite
def fan_beams(draw: st.DrawFn) -> FanBeam:
    """Fans whose source is outside the image, near or far."""
    shape = draw(st.tuples(sizes, sizes))
    pixel_size = draw(lengths)
    reach = math.hypot(*shape) * pixel_size / 2
    source_origin = reach * draw(st.floats(1.1, 20))
    return covering(FanBeam)(  # type: ignore[return-value]
        angles=draw(st.lists(angles, min_size=1, max_size=5)),
        bins=draw(st.integers(1, 25)),
        bin_width=draw(lengths),
        offset=draw(st.floats(-3, 3)),
        pixel_size=pixel_size,
        image_shape=shape,
        source_origin=source_origin,
        source_detector=source_origin * draw(st.floats(1, 3)),
    )


geometries = st.one_of(parallel_beams, fan_beams())


def small_parallel(size: int = 8, views: int = 6) -> ParallelBeam:
    """A parallel beam over a square image of a few pixels."""
    angles = [(i + 0.5) * math.pi / views for i in range(views)]
    return ParallelBeam(angles, bins=size + 5, bin_width=1.0, image_shape=(size, size))


def touches_little(
    operator: LinearOperator,
    x: torch.Tensor,
    pixel_size: float,  # the smallest
) -> bool:
    """Whether no ray meets more than a third of a pixel: a lone small weight is mostly rounding, so a relative mismatch
    says nothing about the operator."""
    return float(operator(x).abs().max()) < pixel_size / 3 * float(x.abs().max())
