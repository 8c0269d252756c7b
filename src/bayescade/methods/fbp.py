"""Filtered back-projection: the reconstruction that everything else is measured against."""

import dataclasses
import json
from typing import final

import torch
from torch import Tensor

from bayescade.physics.filters import ramp_kernel
from bayescade.physics.geometry import Geometry
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
    """FBP for a geometry."""
    return FBP(ray_transform(geometry, device), settings)


@final
class FBP(Reconstructor):
    """x = c A' (ramp * y), not clipped, without uncertainty."""

    name = "fbp"

    def __init__(self, operator: RayTransform, settings: Settings):
        self.operator = operator
        self.settings = settings
        self.sinogram_shape = operator.geometry.sinogram_shape

    def reconstruct(self, sinogram: Tensor, *, samples: int, seed: int) -> Reconstruction:
        return Reconstruction(
            image=self.operator.fbp(sinogram.to(self.operator.device), self.settings.window),
            model=self.name,
            geometry=self.operator.geometry.to_json(),
            seed=seed,
            settings=json.dumps(dataclasses.asdict(self.settings)),
        )
