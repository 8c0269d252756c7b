"""Makes the calibrations that ship with the models: those of the demo and of the paper's scans.

    python examples/shipped_calibrations.py                # all that are missing; about three minutes each on two cores
    python examples/shipped_calibrations.py any sparse-32  # one

They are written into the folders of the models. When weights, the ratio of errors to disagreement or the steps of a
calibration change, delete the folders `calibrations` and make them again.
"""

import argparse
from pathlib import Path

import torch

from bayescade.calibration.calibrate import calibrate
from bayescade.calibration.examine import Examiner
from bayescade.calibration.simulated import ScanKind
from bayescade.calibration.store import FOLDER, find, key_of, save
from bayescade.data.noise import common_noise
from bayescade.devices import choose_device
from bayescade.models import ANY_MODEL, model_folder
from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.pipeline.demo import demo_scan, demo_worker
from bayescade.progress import message, progress, show_progress

DEMO = "demo"
SAMPLES = 8
IMAGES = 100
# Not for 128 views, which take twice as long and are made when they are asked for.
SHIPPED = [
    ("bdgd-plus/sparse-32", "sparse-32"),
    ("bdgd-plus/limited-90", "limited-90"),
    *((ANY_MODEL, scan) for scan in (DEMO, *(case for case in PAPER_CASES if case != "sparse-128"))),
]


def examined_kind(model: str, scan: str, device: torch.device) -> tuple[Examiner, ScanKind]:
    """The model for a scan, and which scans are simulated."""
    if scan != DEMO:
        geometry = case_geometry(scan)
        return Examiner(model, geometry, samples=SAMPLES, device=device), ScanKind(geometry, common_noise())
    worker = demo_worker(device)
    assert worker.examiner is not None
    return worker.examiner, worker.kind(demo_scan(device).sinogram)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="", help="a part of the name of the models")
    parser.add_argument("scan", nargs="?", default="", help=f"{DEMO}, or a case of the paper")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    show_progress()
    for model, scan in SHIPPED:
        if options.model not in model or options.scan not in ("", scan):
            continue
        folder, images = model_folder(model), IMAGES
        assert folder is not None
        examiner, kind = examined_kind(model, scan, choose_device(options.device))
        if find(key_of(examiner, kind), images) is not None:
            message(f"{model} for {scan}: there is one")
            continue
        with progress(f"{model} for {scan}", images) as advance:
            calibration = calibrate(examiner.for_calibration(), kind, images=images, advance=advance)
        path = save(key_of(examiner, kind), calibration, Path(folder) / FOLDER)
        message(f"wrote {path.name}")


if __name__ == "__main__":
    main()
