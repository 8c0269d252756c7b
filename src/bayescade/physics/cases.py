"""The paper's scans by name, e.g. `sparse-32` and `limited-90`; any other number is also possible.

`sparse-n`: n angles at (i + 1/2) 180/n degrees. `limited-n`: n angles at i + 1/2 degrees, in the range [0, n). The detector has
2 ceil(rho) + 1 bins in the interval [-rho, rho], rho = half the diagonal of the image: 183 bins for 128 x 128 pixels.
"""

import math
import re

from bayescade.errors import UserError
from bayescade.physics.geometry import ParallelBeam

# The eight columns of Table 1 of the paper.
PAPER_CASES = (
    "sparse-8",
    "sparse-16",
    "sparse-32",
    "sparse-64",
    "sparse-128",
    "limited-90",
    "limited-120",
    "limited-150",
)


def case_geometry(case: str, size: int = 128) -> ParallelBeam:
    """The parallel-beam geometry of a case, for an image of `size` x `size` pixels; a pixel has width 1."""
    match = re.fullmatch(r"(sparse|limited)-([0-9]{1,5})", str(case))
    number = int(match[2]) if match else 0
    if match is None or number < 1:
        raise UserError(f"unknown case '{case}'; expected sparse-N (N views) or limited-N (N degrees), e.g. sparse-32")
    if match[1] == "limited" and number > 180:
        raise UserError(f"unknown case '{case}'; limited-N has at most 180 degrees, e.g. limited-90")
    step = math.pi / (number if match[1] == "sparse" else 180)
    radius = size / math.sqrt(2)
    bins = 2 * math.ceil(radius) + 1
    return ParallelBeam(
        angles=[(i + 0.5) * step for i in range(number)],
        bins=bins,
        bin_width=2 * radius / bins,
        image_shape=(size, size),
    )
