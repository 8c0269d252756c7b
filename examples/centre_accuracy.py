"""How accurate is the centre of rotation that is found from the data, and is its standard error right?

    python examples/centre_accuracy.py --scans 100

Each row is a geometry with a fault. The stated centre is wrong by -2 to 2 bins (uniform) and counts for nothing. The errors
of the methods are calibrated on clean scans of the same geometry, as in `bayescade reconstruct`; the scans of the table are
others. `z` is error / standard error. A centre that is declared unknown is left out of RMSE and z. About 20 s a row.
"""

import argparse
import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bayescade.calibration.calibrate import calibrate_data
from bayescade.calibration.examine import Examiner
from bayescade.calibration.simulated import ScanKind
from bayescade.data.noise import common_noise
from bayescade.data.objects import seen_whole
from bayescade.data.scanner import ScanErrors, Scanner, no_errors
from bayescade.data.simulate import scans_with_these_errors
from bayescade.data.sources import image_source
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.pipeline.shift_rows import drift, hardening
from bayescade.seeds import derived_seed

SIZE, BINS = 128, 183
MOST = 2.0  # bins: error of the stated centre
SCANNER = Scanner(grid_factor=2, rays_per_bin=2)
AT_ONCE = 20


def parallel(views: int = 32, arc: float = 180.0, bins: int = BINS) -> ParallelBeam:
    """A parallel beam over an arc in degrees."""
    angles = [math.radians(arc) * (view + 0.5) / views for view in range(views)]
    return ParallelBeam(angles, bins, 1.0, image_shape=(SIZE, SIZE))


def fan(views: int, arc: float) -> FanBeam:
    """A fan beam over an arc in degrees."""
    angles = [math.radians(arc) * view / views for view in range(views)]
    return FanBeam(angles, BINS, 1.5, 0.0, 1.0, (SIZE, SIZE), source_origin=260.0, source_detector=390.0)


def background(sinogram: Tensor) -> Tensor:
    """1 % of the largest value in every ray."""
    return sinogram + 0.01 * sinogram.amax((1, 2, 3), keepdim=True)


@dataclasses.dataclass(frozen=True)
class Row:
    """A geometry and a fault."""

    name: str
    geometry: Geometry
    errors: Callable[[Geometry, np.random.Generator], ScanErrors] | None = None
    change: Callable[[Tensor], Tensor] | None = None
    lost: int = 0  # bins at each end


ROWS = [
    Row("parallel, 32 views", parallel()),
    Row("parallel, 90 views", parallel(90)),
    Row("parallel, [0, 60), 60 views", parallel(60, 60)),
    Row("fan, full circle, 32 views", fan(32, 360)),
    Row("fan, short scan of 240 degrees, 60 views", fan(60, 240)),
    Row("background 1 %", parallel(), change=background),
    Row("gain drift 2 %", parallel(), errors=drift(0.02)),
    Row("hardening 15 %", parallel(), errors=hardening(0.15)),
    Row("truncation: two thirds of the detector", parallel(), lost=BINS // 6),
]


def scans(row: Row, geometry: Geometry, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sinograms (count, 1, views, bins) and the errors of their stated centres in bins."""
    source = image_source("ellipses", geometry.image_shape, seed=seed, split="validation")
    sinograms, shifts = [], []
    for first in range(0, count, AT_ONCE):
        number = min(AT_ONCE, count - first)
        images = seen_whole(source.images(first, number, SCANNER.grid_factor), [geometry] * number)
        errors = []
        for index in range(first, first + number):
            rng = np.random.default_rng(derived_seed(seed, "centre accuracy", index))
            made = row.errors(geometry, rng) if row.errors is not None else no_errors(geometry)
            errors.append(dataclasses.replace(made, centre=float(rng.uniform(-MOST, MOST))))
        indices = range(first, first + number)
        made_scans = scans_with_these_errors(
            images, [geometry] * number, SCANNER, errors, common_noise(), seed, list(indices)
        )
        sinograms.append(made_scans.sinogram)
        shifts += [error.centre for error in errors]
    sinogram = torch.cat(sinograms)
    return (row.change(sinogram) if row.change is not None else sinogram), torch.tensor(shifts, dtype=torch.float64)


def measured(row: Row, count: int, seed: int) -> str:
    """A line of the table."""
    seen = dataclasses.replace(row.geometry, bins=row.geometry.bins - 2 * row.lost)
    examiner = Examiner("fbp", seen, samples=1, stated_std=math.inf)
    calibrate_data(examiner, ScanKind(seen, common_noise()), seed=seed)
    sinogram, shift = scans(row, row.geometry, count, seed)
    sinogram = sinogram[..., row.lost : sinogram.shape[-1] - row.lost].contiguous()
    centres = [examiner.data_only(sinogram[i : i + AT_ONCE])[0] for i in range(0, count, AT_ONCE)]
    error = torch.cat([centre.estimate for centre in centres]) - shift
    std = torch.cat([centre.estimate_std for centre in centres])
    known = torch.cat([centre.known for centre in centres])
    rmse, z = (float(values[known].square().mean().sqrt()) for values in (error, error / std))
    typical = float(std[known].median())
    return f"| {row.name} | {rmse:.3f} | {typical:.3f} | {z:.2f} | {1 - float(known.double().mean()):.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scans", type=int, default=100)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--rows", default="", help="only rows whose name has this part")
    options = parser.parse_args()
    print("| scan | RMSE, bins | standard error, median | rms of z | declared unknown |\n|---|---|---|---|---|")
    for row in ROWS:
        if options.rows in row.name:
            print(measured(row, options.scans, options.seed), flush=True)


if __name__ == "__main__":
    main()
