"""Measured scans by FBP and by total variation.

    FBP:  x = back-projection of (ramp * y)        TV:  min over x >= 0 of D(y, A x) / (h ||A||^2) + w TV(x)

Three scans: a tooth (parallel beam, 181 views over 180 degrees, centre of rotation at bin 296), a metal sample (parallel beam,
91 views, centre at bin 85.75) and a Helsinki Tomography Challenge target (fan beam, 721 views over 360 degrees). `--coarsen N`
averages N bins into one and makes the pixels N times as large, for a quick look.

    python examples/measured_scans.py tooth --data DATA_FOLDER --out OUT_FOLDER
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayescade import FanBeam, ParallelBeam, load_model
from bayescade.figures.panels import Panel, draw_panels
from bayescade.physics.geometry import Geometry
from bayescade.storage.files import make_folder

# The weight constant of TV (settings of `tv`): the default rule looks for the noise beside the object, and in a measured scan
# there is more of it behind the object, where fewer photons arrive.
CONSTANTS = {"tooth": 2.0, "diamond": 2.0, "helsinki": 2.0}


def load_scan(name: str, folder: Path, coarsen: int = 1) -> tuple[NDArray[np.float32], Geometry, str]:
    """The sinogram (views, bins), its geometry, and the unit of its lengths."""
    if name == "tooth":
        file = np.load(folder / "sino_tooth.npz")
        sinogram, unit = file["sino"][0], "bin"
        geometry = parallel(sinogram, file["angles_deg"], float(file["cor_px"]), coarsen, size=540)
    elif name == "diamond":
        file = np.load(folder / "sino_diamond24737.npz")
        sinogram, unit = file["sino_rows"][3], "bin"
        geometry = parallel(sinogram, file["angles_deg"], float(file["cor_px"]), coarsen, size=160)
    else:
        file = np.load(folder / "sino_htc2022_ta_full.npz")
        sinogram, unit = file["sino"], "mm"
        geometry = FanBeam(
            np.deg2rad(file["angles_deg"])[:: 2 * coarsen],
            bins=sinogram.shape[1] // coarsen,
            bin_width=float(file["det_px_mm"]) * coarsen,
            offset=-(sinogram.shape[1] % coarsen) / 2 * float(file["det_px_mm"]),
            pixel_size=float(file["voxel_mm_512"]) * coarsen,
            image_shape=(512 // coarsen, 512 // coarsen),
            source_origin=float(file["sod_mm"]),
            source_detector=float(file["sdd_mm"]),
        )
        sinogram = sinogram[:: 2 * coarsen]  # every second view is plenty
    return bin_means(sinogram, coarsen), geometry, unit


def parallel(
    sinogram: NDArray[np.float32], degrees: NDArray[np.float64], centre: float, coarsen: int, size: int
) -> Geometry:
    """A parallel beam whose axis of rotation projects to bin `centre`, counted from 0; lengths in bins."""
    bins = sinogram.shape[1] // coarsen
    first = (coarsen - 1) / 2 - centre  # where the first coarse bin is
    return ParallelBeam(
        np.deg2rad(degrees),
        bins=bins,
        bin_width=coarsen,
        offset=first + (bins - 1) / 2 * coarsen,
        pixel_size=coarsen,
        image_shape=(size // coarsen, size // coarsen),
    )


def bin_means(sinogram: NDArray[np.float32], coarsen: int) -> NDArray[np.float32]:
    """The mean over each run of `coarsen` bins."""
    bins = sinogram.shape[1] // coarsen
    return sinogram[:, : bins * coarsen].reshape(len(sinogram), bins, coarsen).mean(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scan", choices=list(CONSTANTS))
    parser.add_argument("--data", type=Path, required=True, help="the folder with sino_tooth.npz and the others")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--coarsen", type=int, default=1)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    sinogram, geometry, unit = load_scan(options.scan, options.data, options.coarsen)
    panels = []
    for name, settings in (("fbp", []), ("tv", [f"constant={CONSTANTS[options.scan]}"])):
        start = time.perf_counter()
        result = load_model(name, geometry, settings=settings, device=options.device)(sinogram)
        seconds = time.perf_counter() - start
        panels.append(Panel(name.upper(), result.image[0, 0].cpu().numpy()))
        print(f"{options.scan}: {name} in {seconds:.1f} s; {result.warning or 'no warnings'}")
    limits = float(np.quantile(panels[1].image, 0.999))
    panels = [Panel(panel.title, panel.image.clip(0, limits)) for panel in panels]
    views, arc = geometry.views, math.degrees(max(geometry.angles) - min(geometry.angles))
    title = f"{options.scan}: {views} views over {arc:.0f} degrees, {geometry.bins} bins; attenuation per {unit}"
    path = make_folder(options.out) / f"measured_{options.scan}.png"
    draw_panels([panels], path, geometry.to_json(), title, unit)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
