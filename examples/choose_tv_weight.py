"""Chooses the weight of total variation for each of the paper's cases, on validation images.

    w = c median_j n_j / (h ||A||^2)

(`bayescade.physics.tv_weight`) leaves one constant c for each case: a grid search over c on ellipses and random
variants of the Shepp-Logan phantom of the validation split, scored by the mean PSNR over both kinds. The test images are not
used.

    python examples/choose_tv_weight.py --device cuda
"""

import argparse
import json

import torch

from bayescade.data.noise import Noise, add_noise
from bayescade.data.sources import image_source
from bayescade.devices import choose_device
from bayescade.methods import tv
from bayescade.metrics.psnr import psnr
from bayescade.physics.cases import PAPER_CASES, case_geometry
from bayescade.physics.fidelity import LeastSquares
from bayescade.physics.total_variation import batch_last
from bayescade.physics.tv_weight import gradient_noise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(PAPER_CASES))
    parser.add_argument("--constants", default="0.05,0.08,0.12,0.16,0.2,0.3,0.4,0.6,0.8")
    parser.add_argument("--images", type=int, default=50, help="of each kind")
    parser.add_argument("--iterations", type=int, default=10000)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = choose_device(options.device)
    for case in options.cases.split(","):
        search(case, [float(c) for c in options.constants.split(",")], options.images, options.iterations, device)


def search(case: str, constants: list[float], count: int, iterations: int, device: torch.device) -> None:
    """Prints one line of JSON for every constant."""
    geometry = case_geometry(case)
    method = tv.build(geometry, tv.Settings(), device)
    kinds = [image_source(name, (128, 128), seed=0, split="validation") for name in ("ellipses", "random-shepp-logan")]
    truth = torch.cat([kind.images(0, count, 1) for kind in kinds]).to(device)
    sinogram = batch_last(add_noise(method.operator(truth), Noise(), seed=1))
    unit = gradient_noise(method.operator, method.norm, LeastSquares(), sinogram).reshape(-1, 1, 1, 1)
    for constant in constants:
        image, gap = tv.solve(
            method.operator, method.norm, LeastSquares(), sinogram, constant * unit, iterations=iterations
        )
        scores = psnr(image, truth, 1.0)
        row = {
            "case": case,
            "constant": constant,
            "psnr": round(float(scores.mean()), 3),
            "ellipses": round(float(scores[:count].mean()), 3),
            "random_shepp_logan": round(float(scores[count:].mean()), 3),
            "late": len(gap) - int((gap <= 1e-3).sum()),
            "mean weight": float((constant * unit).mean()),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
