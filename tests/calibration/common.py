"""A small scan, and the shipped model for any scan on it."""

import functools
import math

from bayescade.calibration.calibrate import Calibration, calibrate
from bayescade.calibration.examine import Examiner
from bayescade.calibration.simulated import ScanKind
from bayescade.data.noise import common_noise
from bayescade.physics.geometry import ParallelBeam

GEOMETRY = ParallelBeam([math.pi * (i + 0.5) / 12 for i in range(12)], 37, 1.0, image_shape=(24, 24))
KIND = ScanKind(GEOMETRY, common_noise())
SCANS = 24


@functools.cache
def examiner(model: str = "any") -> Examiner:
    """Two passes of a model."""
    return Examiner(model, GEOMETRY, samples=2)


@functools.cache
def small_calibration() -> Calibration:
    """A calibration by a few scans; its examiner is not that of the other tests."""
    return calibrate(Examiner("any", GEOMETRY, samples=2), KIND, images=SCANS, seed=3)
