"""`bayescade demo`: a phantom from a fan-beam scan of 50 views, in millimetres, reconstructed by the model for any scan.

The scan file states a centre of rotation that is wrong by half a bin: it is found, corrected and noted.
"""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescade.data.noise import Noise, noise_model
from bayescade.data.objects import measured_with_border
from bayescade.data.scanner import Scanner
from bayescade.data.simulate import Scans, scan_batches
from bayescade.data.sources import Source, image_source
from bayescade.devices import choose_device
from bayescade.figures.panels import Panel, draw_panels, ratio_panel, reconstruction_panels
from bayescade.models import ANY_MODEL, load_model
from bayescade.physics.geometry import FanBeam
from bayescade.pipeline.reconstruct import Request, Worker
from bayescade.pipeline.scores import image_scores, result_scores, uncertainty_row
from bayescade.results import Reconstruction
from bayescade.storage.files import check_folder, make_folder

FILES = ("reconstruction.h5", "figure.png")
SEED = 5
VIEWS, PHOTONS = 50, 2e4
VALUE = 0.04  # per millimetre: the largest attenuation of the phantom; about that of bone at 80 keV
SCANNER = Scanner(grid_factor=3, rays_per_bin=2)  # the data are not simulated on the grid of the reconstruction
CENTRE_ERROR = 0.5  # bins
BORDER = 7  # bins at each end of the detector that stay empty


def demo_geometry() -> FanBeam:
    """A full circle of views; lengths in millimetres."""
    angles = [2 * math.pi * view / VIEWS for view in range(VIEWS)]
    return FanBeam(angles, 160, 0.65, 0.0, 0.5, (128, 128), source_origin=250.0, source_detector=375.0)


def demo_noise() -> Noise:
    """Counted photons, for images in 1 / mm."""
    return noise_model("poisson", [f"photons={PHOTONS}", "attenuation=1.0"])


def demo_scan(device: torch.device) -> Scans:
    """The scan, with its truth; its centre is not that of `demo_geometry`."""
    stated = demo_geometry()
    geometry = dataclasses.replace(stated, offset=stated.offset + CENTRE_ERROR * stated.bin_width)
    phantoms = image_source("ellipses", geometry.image_shape, seed=SEED, device=device)

    def images(first: int, count: int, supersample: int) -> Tensor:
        return VALUE * measured_with_border(phantoms.images(first, count, supersample), stated, BORDER)

    source = Source(images, 1, None)
    (scan,) = scan_batches(source, geometry, demo_noise(), seed=SEED, count=1, scanner=SCANNER, device=device)
    return scan


def demo_worker(device: torch.device) -> Worker:
    """What reconstructs the scan: as `bayescade reconstruct` does it."""
    return Worker(Request(ANY_MODEL, seed=SEED, device=str(device)), demo_geometry(), demo_noise())


def demo(out: str = "demo", device: str = "auto") -> dict[str, Any]:
    """Writes reconstruction.h5 and figure.png into the folder; gives the scores."""
    check_folder(out, *FILES)
    torch_device = choose_device(device)
    folder = make_folder(out)
    scan = demo_scan(torch_device)
    truth = scan.truth
    back_projection = load_model("fbp", demo_geometry(), device=torch_device)(scan.sinogram).image
    start = time.perf_counter()
    worker = demo_worker(torch_device)
    result = worker(scan.sinogram, 0)
    seconds = time.perf_counter() - start
    in_range = torch.full((1,), 1 / VALUE, device=torch_device)  # scores are those of images from 0 to 1
    scores = result_scores(result.scaled(in_range), truth / VALUE)
    uncertainty = uncertainty_row(scores)
    assert uncertainty is not None
    assert result.lower is not None
    assert result.upper is not None
    covered = float(((result.lower <= truth) & (truth <= result.upper)).double().mean())
    fbp_psnr = image_scores(back_projection / VALUE, truth / VALUE)["psnr"][0]
    assert fbp_psnr is not None
    result = dataclasses.replace(result, truth=truth, scores=scores)
    result.save(folder / "reconstruction.h5")

    title = (
        f"{ANY_MODEL} from a fan beam, {VIEWS} views, {PHOTONS:g} photons per bin: "
        f"PSNR {scores['psnr'][0]:.2f} dB, calibrated 90 % intervals cover {covered:.1%} of the pixels"
    )
    draw_panels(
        panels(result, back_projection, fbp_psnr),
        folder / "figure.png",
        result.geometry,
        title,
        unit="mm",
        value_unit="attenuation (1/mm)",
    )
    return {
        "model": ANY_MODEL,
        "views": VIEWS,
        "photons": PHOTONS,
        "psnr": scores["psnr"][0],
        "psnr_fbp": fbp_psnr,
        "ssim": scores["ssim"][0],
        "rmse": scores["rmse"][0],
        "coverage": uncertainty["coverage"],
        "coverage_calibrated": covered,
        "calibration": result.calibration,
        "warnings": (result.warnings or [[]])[0],
        "notes": (result.notes or [[]])[0],
        "epistemic_share": uncertainty["epistemic_share"],
        "samples": result.samples,
        "seconds": seconds,
        "files": [str(Path(folder) / name) for name in FILES],
    }


def panels(result: Reconstruction, back_projection: Tensor, fbp_psnr: float) -> list[list[Panel | None]]:
    """Truth, FBP, reconstruction and error; standard deviations."""
    truth, image, error, *stds = reconstruction_panels(result)
    fbp = Panel(f"FBP, stated centre, {fbp_psnr:.2f} dB", back_projection[0, 0].cpu().numpy())
    return [[truth, fbp, image, error], [ratio_panel(result), *stds]]
