"""`bayescade demo`: a phantom from 32 noisy views, reconstructed by a shipped cascade, scored and drawn."""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

from bayescade.data.noise import Noise
from bayescade.data.simulate import scan_batches
from bayescade.data.sources import image_source
from bayescade.devices import choose_device
from bayescade.figures.panels import Panel, draw_panels, reconstruction_panels
from bayescade.models import load_model
from bayescade.physics.cases import case_geometry
from bayescade.pipeline.scores import image_scores, result_scores, uncertainty_row
from bayescade.storage.files import check_folder, make_folder

FILES = ("reconstruction.h5", "figure.png")
CASE, MODEL, SEED = "sparse-32", "bdgd-plus/sparse-32", 5
PLAIN_SAMPLES = 100  # Monte-Carlo samples in the paper
# Relative standard error of a standard deviation that is estimated from PLAIN_SAMPLES Gaussian samples.
TOLERANCE = 1 / math.sqrt(2 * PLAIN_SAMPLES)


def demo(out: str = "demo", device: str = "auto") -> dict[str, Any]:
    """Writes reconstruction.h5 and figure.png into the folder; gives the scores."""
    check_folder(out, *FILES)
    torch_device = choose_device(device)
    folder = make_folder(out)
    geometry = case_geometry(CASE)
    source = image_source("ellipses", geometry.image_shape, seed=SEED, device=torch_device)
    (scans,) = scan_batches(source, geometry, Noise(), seed=SEED, count=1, device=torch_device)
    back_projection = load_model("fbp", geometry, device=torch_device)(scans.sinogram).image
    start = time.perf_counter()
    model = load_model(MODEL, geometry, settings=[f"inference.tolerance={TOLERANCE}"], device=torch_device)
    result = model(scans.sinogram, samples=10 * PLAIN_SAMPLES, seed=SEED)
    seconds = time.perf_counter() - start
    scores = result_scores(result, scans.truth)
    uncertainty = uncertainty_row(scores)
    assert uncertainty is not None
    fbp_psnr = image_scores(back_projection, scans.truth)["psnr"][0]
    result = dataclasses.replace(result, truth=scans.truth, scores=scores)
    result.save(folder / "reconstruction.h5")

    title = (
        f"{MODEL} from {geometry.views} views with 1 % noise: PSNR {scores['psnr'][0]:.2f} dB, "
        f"90 % intervals cover {uncertainty['coverage']['0.9']:.1%} of the pixels"
    )
    truth, image, error, *stds = reconstruction_panels(result)
    fbp = Panel(f"FBP, {fbp_psnr:.2f} dB", back_projection[0, 0].cpu().numpy())
    draw_panels([[truth, fbp, image], [error, *stds]], folder / "figure.png", result.geometry, title)
    return {
        "model": MODEL,
        "case": CASE,
        "psnr": scores["psnr"][0],
        "psnr_fbp": fbp_psnr,
        "ssim": scores["ssim"][0],
        "rmse": scores["rmse"][0],
        "coverage": uncertainty["coverage"],
        "epistemic_share": uncertainty["epistemic_share"],
        "samples": result.samples,
        "mc_relative_error": uncertainty["mc_relative_error"],
        "plain_samples": PLAIN_SAMPLES,
        "seconds": seconds,
        "files": [str(Path(folder) / name) for name in FILES],
    }
