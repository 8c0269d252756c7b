"""What is done to every scan of a geometry, measured or simulated: find its centre, reconstruct it, look for faults."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from bayescade.consistency.centre import STATED, Centre, CentreErrors, find_centre
from bayescade.consistency.centre_fit import shifted
from bayescade.consistency.field import ObjectField
from bayescade.consistency.symptoms import Borders, symptoms
from bayescade.data.noise import Noise
from bayescade.methods._any_scan import AnyScanReconstructor
from bayescade.methods._bootstrap import Bootstrapped
from bayescade.models import load_model
from bayescade.physics.geometry import Geometry
from bayescade.physics.noise_level import noise_std
from bayescade.projectors import ray_transform
from bayescade.results import Reconstruction

TINY = 1e-12
CALIBRATION_SAMPLES = 8
TRUNCATED = 0.03  # borders above this part of the largest value: moments would be wrong
LEAST_BINS, LEAST_VIEWS = 24, 4  # of scans that can be examined


@dataclasses.dataclass(frozen=True)
class Bootstrap:
    """What a bootstrap assumes of the noise."""

    noise: Noise | None  # as a scan file states it; None: it is estimated from the data


def can_examine(geometry: Geometry) -> bool:
    """Whether a scan is large enough to look for its faults."""
    return geometry.bins >= LEAST_BINS and geometry.views >= LEAST_VIEWS


@dataclasses.dataclass(frozen=True)
class Examined:
    """One scan: its image with variances that are not calibrated, its centre, and its symptoms."""

    result: Reconstruction
    centre: Centre
    symptoms: dict[str, float]
    corrected: bool = True  # whether the image was made with this centre; if not, with the stated one


@final
class Examiner:
    """A model for the scans of one geometry. A call examines one scan; it is the same for simulated and for measured scans."""

    def __init__(
        self,
        model: str,
        geometry: Geometry,
        *,
        samples: int,
        settings: Sequence[str] = (),
        device: torch.device | str = "cpu",
        # Bins: of the centre in the geometry. 0: the image is made with it as it is; infinite: it counts for nothing.
        stated_std: float = STATED,
        bootstrap: Bootstrap | None = None,  # variances by a bootstrap instead of those of the model
    ):
        self.name, self.geometry, self.samples, self.bootstrap = model, geometry, samples, bootstrap
        self.device = torch.device(device)
        self.find = stated_std > 0  # whether the image is made with the centre that was found
        self.stated_std = stated_std if self.find else STATED
        self.field = ObjectField(geometry)
        self.errors = CentreErrors()
        self.settings = tuple(settings)
        loaded = load_model(model, geometry, settings=settings, device=device)
        self._any = loaded.model if isinstance(loaded, AnyScanReconstructor) and bootstrap is None else None
        self._fixed = loaded if bootstrap is None else Bootstrapped(loaded, geometry, bootstrap.noise, device)

    @property
    def has_variance(self) -> bool:
        """Whether the model gives variances, which can be calibrated."""
        return self._fixed.has_variance

    def for_calibration(self) -> "Examiner":
        """The same with at most CALIBRATION_SAMPLES samples, one for each symmetry of a model for any scan.

        More samples refine the image and the part of the weights a little: intervals are then a little too wide.
        """
        other = copy.copy(self)
        if self.bootstrap is not None:
            return other
        most = self._any.settings.symmetries if self._any is not None else CALIBRATION_SAMPLES
        other.samples = min(self.samples, most)
        return other

    def data_only(
        self,
        sinogram: Tensor,  # (batch, 1, views, bins)
        noise: Noise | None = None,  # as the scan file states it
    ) -> tuple[Centre, list[dict[str, float]]]:
        """The centres of scans, and their symptoms, from the data alone."""
        sinogram = sinogram.cpu()
        truncated = Borders(sinogram).symptoms()["truncation"] > math.log(TRUNCATED)
        centre = find_centre(self.field, sinogram, self.errors, stated_std=self.stated_std, truncated=truncated)
        stated = stated_std_of(noise, sinogram) if noise is not None else None
        found = symptoms(self.field, sinogram, centre.shift, noise_std(sinogram), stated)
        return centre, [{name: float(values[i]) for name, values in found.items()} for i in range(len(sinogram))]

    def __call__(
        self,
        sinogram: Tensor,  # (1, 1, views, bins)
        *,
        noise: Noise | None = None,  # as the scan file states it
        seed: int = 0,
        index: int = 0,
    ) -> Examined:
        """Examines one scan."""
        centre, (found,) = self.data_only(sinogram, noise)
        shift, std = (float(centre.shift), float(centre.std)) if self.find else (0.0, 0.0)
        result, operator_geometry, data = self._reconstructed(sinogram, shift, std, seed, index)
        operator = ray_transform(operator_geometry, self.device)
        residual = operator(result.image) - data.to(operator.device)
        level = noise_std(sinogram).clamp_min(TINY)
        found["residual"] = math.log(max(float(residual.square().mean().sqrt()) / float(level), TINY))
        return Examined(result, centre, found, self.find)

    def with_centre(self, sinogram: Tensor, shift: float, *, seed: int = 0, index: int = 0) -> Reconstruction:
        """The result of a scan whose centre is taken to be `shift` bins from the stated one, and exactly known."""
        return self._reconstructed(sinogram, shift, 0.0, seed, index)[0]

    def _reconstructed(
        self, sinogram: Tensor, shift: float, std: float, seed: int, index: int
    ) -> tuple[Reconstruction, Geometry, Tensor]:
        """The result of a scan with its centre, the geometry and the data with which A x can be compared."""
        if self._any is not None:
            offset = self.geometry.offset + shift * self.geometry.bin_width
            geometry = dataclasses.replace(self.geometry, offset=offset)
            bound = self._any.bound(geometry, centre_std=std)
            return bound(sinogram, samples=self.samples, seed=seed, index=index), geometry, sinogram
        data = shifted(sinogram.double(), torch.tensor([shift])).to(sinogram)
        result = self._fixed(data, samples=self.samples, seed=seed, index=index)
        return result, self.geometry, data


def stated_std_of(noise: Noise, sinogram: Tensor) -> Tensor | None:
    """The standard deviation of the noise beside the object, as a noise model states it, (batch,); None if it is unknown."""
    if noise.model == "gaussian":
        return noise.settings.relative * sinogram.double().abs().mean((1, 2, 3))
    if noise.model == "poisson":
        s = noise.settings
        std = math.sqrt(s.photons + s.electronic**2) / s.photons / s.attenuation
        return torch.full((len(sinogram),), std, dtype=torch.float64)
    return None
