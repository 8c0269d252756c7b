"""Filtered back-projection: the standard method, with which the other methods are compared."""

import dataclasses
import json
import math
from collections.abc import Callable
from functools import partial
from typing import final

import torch
from torch import Tensor

from bayescade.devices import choose_device
from bayescade.physics.filters import check_ramp, check_window
from bayescade.physics.geometry import FanBeam, Geometry
from bayescade.physics.redundancy import scan_kind
from bayescade.projectors import ray_transform
from bayescade.results import Reconstruction, Reconstructor

Apply = Callable[[Tensor], Tensor]  # sinogram -> image

ANY_GEOMETRY = True  # the method works for any geometry; nothing is trained


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of FBP."""

    window: str = "ram-lak"  # ram-lak (the paper), shepp-logan, cosine, hann: from sharp to smooth
    ramp: str = "band-limited"  # band-limited (exact), shifted (the paper; image values about 0.02 too high)

    def __post_init__(self) -> None:
        check_window(self.window)
        check_ramp(self.ramp)


def build(geometry: Geometry, settings: Settings, device: torch.device | str = "cpu") -> "FBP":
    """FBP for a geometry, without a stored matrix."""
    operator = ray_transform(geometry, device, calls=1)
    apply = partial(operator.fbp, window=settings.window, ramp=settings.ramp)
    return FBP(geometry, apply, settings, choose_device(device))


@final
class FBP(Reconstructor):
    """Ramp filter and back-projection, without uncertainty; negative values are not clipped."""

    name = "fbp"

    def __init__(self, geometry: Geometry, apply: Apply, settings: Settings, device: torch.device):
        self.geometry = geometry
        self.apply = apply
        self.settings = settings
        self.device = device
        self.data_shape = (1, *geometry.sinogram_shape)

    def reconstruct(self, data: Tensor, *, samples: int, seed: int, index: int) -> Reconstruction:
        return Reconstruction(
            image=self.apply(data.to(self.device)),
            model=self.name,
            geometry=self.geometry.to_json(),
            seed=seed,
            settings=json.dumps(dataclasses.asdict(self.settings)),
            warning=limited_angle_warning(self.geometry),
        )


def limited_angle_warning(geometry: Geometry) -> str | None:
    """A warning if the arc of a fan scan is too short for FBP, otherwise None."""
    if not isinstance(geometry, FanBeam) or scan_kind(geometry) != "limited":
        return None
    needed = 180 + 2 * math.degrees(float(abs(geometry.fan_angles()).max()))
    return f"limited-angle scan: FBP of this fan needs an arc of {needed:.0f} degrees; edges along the missing rays are lost"
