"""How far should a bootstrap move an image? Error bars of FBP and total variation on validation scans, by angle and shift.

    python examples/bootstrap_range.py --images 10

prints, for movements of up to so many degrees and pixels, claimed / found (root of the mean over images of each), the mean
rank correlation of error and error bar, and the negative log-likelihood. The first row has no movements: noise alone.
"""

import argparse

import numpy as np
import torch

from bayescade.data.noise import common_noise
from bayescade.data.scanner import Scanner
from bayescade.data.simulate import scan_set
from bayescade.data.sources import image_source
from bayescade.methods._bootstrap import Bootstrapped, Movements
from bayescade.models import load_model
from bayescade.physics.cases import case_geometry
from bayescade.uncertainty.scores import nll, spearman

RANGES = ((0.0, 0.0), (0.0, 1.0), (3.0, 0.0), (5.0, 1.0), (10.0, 2.0), (20.0, 3.0), (45.0, 5.0), (180.0, 8.0))
SCANNER = Scanner(grid_factor=2, rays_per_bin=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["sparse-32", "limited-90"])
    parser.add_argument("--methods", nargs="+", default=["fbp", "tv"])
    parser.add_argument("--phantoms", nargs="+", default=["ellipses", "textured"])
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--replicates", type=int, default=16)
    options = parser.parse_args()
    print("| method | scan | objects | degrees | pixels | claimed/found | rank correlation | NLL |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.methods:
        for case in options.cases:
            geometry, noise = case_geometry(case), common_noise()
            method = load_model(name, geometry)
            for phantom in options.phantoms:
                source = image_source(phantom, geometry.image_shape, seed=0, split="validation")
                scans = scan_set(source, geometry, noise, seed=0, count=options.images, scanner=SCANNER)
                for degrees, pixels in RANGES:
                    moving = Bootstrapped(method, geometry, noise, movements=Movements(degrees, pixels))
                    result = moving(scans.sinogram, samples=options.replicates)
                    error, std = (result.image - scans.truth).double().flatten(1), result.std.double().flatten(1)
                    pooled = float((std.square().mean() / error.square().mean()).sqrt())
                    pairs = list(zip(error, std, strict=True))
                    rank = np.mean([spearman(e.abs(), s) for e, s in pairs])
                    likelihood = np.mean([nll(e, s) for e, s in pairs])
                    print(
                        f"| {name} | {case} | {phantom} | {degrees:g} | {pixels:g} | {pooled:.2f} | {rank:.2f} "
                        f"| {likelihood:.2f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
