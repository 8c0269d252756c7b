"""The eight symmetries of the pixel grid. An image that is moved by one of them has the data of a moved scan, exactly.

A mirror image, x -> -x, has the angles -t and the bins in reverse order; a quarter turn, (x, y) -> (-y, x), has the angles
t + pi / 2. So a scan without any symmetry of its own can be reconstructed in eight ways.
"""

import dataclasses
import math
from typing import final

from torch import Tensor

from bayescade.physics.geometry import Geometry


@final
@dataclasses.dataclass(frozen=True)
class Symmetry:
    """A mirror image or not, and then quarter turns."""

    turns: int  # 0 to 3
    mirrored: bool

    def geometry(self, geometry: Geometry) -> Geometry:
        """The scan of the moved image."""
        sign = -1 if self.mirrored else 1
        height, width = geometry.image_shape
        return dataclasses.replace(
            geometry,
            angles=tuple(sign * angle + self.turns * math.pi / 2 for angle in geometry.angles),
            offset=sign * geometry.offset,
            image_shape=(width, height) if self.turns % 2 else (height, width),
        )

    def data(
        self,
        y: Tensor,  # (..., views, bins)
    ) -> Tensor:
        """The data of the moved image."""
        return y.flip(-1) if self.mirrored else y

    def image(
        self,
        x: Tensor,  # (..., height, width)
    ) -> Tensor:
        """The moved image."""
        return (x.flip(-2) if self.mirrored else x).rot90(self.turns, (-2, -1))

    def restored(
        self,
        x: Tensor,  # (..., height, width)
    ) -> Tensor:
        """The image of which x is the moved image."""
        x = x.rot90(-self.turns, (-2, -1))
        return x.flip(-2) if self.mirrored else x


# The first ones of this list are as different from each other as can be.
SYMMETRIES = tuple(
    Symmetry(turns, mirrored)
    for turns, mirrored in (
        (0, False),
        (2, True),
        (1, False),
        (3, True),
        (2, False),
        (0, True),
        (3, False),
        (1, True),
    )
)
