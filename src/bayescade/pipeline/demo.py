"""`bayescade demo`: a phantom from 32 noisy views, reconstructed, scored and drawn."""

import dataclasses
import time
from pathlib import Path
from typing import Any

from bayescade.data.simulate import Noise, scan_batches
from bayescade.data.sources import image_source
from bayescade.devices import choose_device
from bayescade.figures.panels import draw_panels, reconstruction_panels
from bayescade.files import check_folder, make_folder
from bayescade.physics.cases import case_geometry
from bayescade.pipeline.models import load_model
from bayescade.pipeline.scores import image_scores

FILES = ("reconstruction.h5", "figure.png")
CASE, MODEL, SEED = "sparse-32", "fbp", 5


def demo(out: str = "demo", device: str = "auto") -> dict[str, Any]:
    """Writes reconstruction.h5 and figure.png into the folder; says how well it went."""
    check_folder(out, *FILES)
    place = choose_device(device)
    folder = make_folder(out)
    geometry = case_geometry(CASE)
    source = image_source("ellipses", geometry.image_shape, seed=SEED, device=place)
    (scans,) = scan_batches(source, geometry, Noise(), seed=SEED, count=1, device=place)
    start = time.perf_counter()
    result = load_model(MODEL, geometry, device=place)(scans.sinogram, seed=SEED)
    seconds = time.perf_counter() - start
    scores = image_scores(result.image, scans.truth)
    result = dataclasses.replace(result, truth=scans.truth, scores=scores)
    result.save(folder / "reconstruction.h5")
    title = f"{MODEL.upper()} from {geometry.views} views with 1 % noise: PSNR {scores['psnr'][0]:.2f} dB"
    draw_panels([reconstruction_panels(result)], folder / "figure.png", result.geometry, title)
    return {
        "model": MODEL,
        "case": CASE,
        "psnr": scores["psnr"][0],
        "ssim": scores["ssim"][0],
        "rmse": scores["rmse"][0],
        "seconds": seconds,
        "files": [str(Path(folder) / name) for name in FILES],
    }
