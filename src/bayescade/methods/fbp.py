"""Filtered back-projection: the reconstruction that everything else is measured against."""

import dataclasses
import json
import math
from typing import final

import torch
from torch import Tensor

from bayescade.devices import choose_device
from bayescade.physics.fan_fbp import fan_filtered_back_projection, scan_kind
from bayescade.physics.filters import ramp_kernel
from bayescade.physics.geometry import FanBeam, Geometry
from bayescade.physics.operator import RayTransform
from bayescade.projectors import ray_transform
from bayescade.results import Reconstruction, Reconstructor

ANY_GEOMETRY = True  # a model for any geometry, without weights


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of FBP."""

    window: str = "ram-lak"  # ram-lak (the paper), shepp-logan, cosine, hann: from sharp to smooth

    def __post_init__(self) -> None:
        ramp_kernel(1, 1.0, self.window)  # names the windows when it is not one of them


def build(geometry: Geometry, settings: Settings, device: torch.device | str = "cpu") -> "FBP":
    """FBP for a geometry. That of a fan beam needs no projector."""
    operator = None if isinstance(geometry, FanBeam) else ray_transform(geometry, device)
    return FBP(geometry, operator, settings, choose_device(device))


@final
class FBP(Reconstructor):
    """Ramp filter and back-projection, not clipped, without uncertainty."""

    name = "fbp"

    def __init__(self, geometry: Geometry, operator: RayTransform | None, settings: Settings, device: torch.device):
        self.geometry = geometry
        self.operator = operator
        self.settings = settings
        self.device = device
        self.sinogram_shape = geometry.sinogram_shape

    def reconstruct(self, sinogram: Tensor, *, samples: int, seed: int) -> Reconstruction:
        sinogram, window = sinogram.to(self.device), self.settings.window
        warning = None
        if self.operator is not None:
            image = self.operator.fbp(sinogram, window)
        else:
            assert isinstance(self.geometry, FanBeam)
            image = fan_filtered_back_projection(self.geometry, sinogram, window)
            warning = limited_angle(self.geometry)
        return Reconstruction(
            image=image,
            model=self.name,
            geometry=self.geometry.to_json(),
            seed=seed,
            settings=json.dumps(dataclasses.asdict(self.settings)),
            warning=warning,
        )


def limited_angle(geometry: FanBeam) -> str | None:
    """A sentence for a scan that is too short for FBP, else None."""
    if scan_kind(geometry) != "limited":
        return None
    needed = 180 + 2 * math.degrees(float(abs(geometry.fan_angles()).max()))
    return f"limited-angle scan: FBP of this fan needs an arc of {needed:.0f} degrees; edges along the missing rays are lost"
