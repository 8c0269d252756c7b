"""The first image of a model for any scan: how near it is to the truth, for several constants and numbers of iterations.

    python examples/first_image.py

Mean PSNR of validation scans (rows of `bayescade benchmark any`), which chose the constants of `projectors/first_image.py`.
`--constants 0` is the constant of the geometry; `--iterations 0` is FBP.
"""

import argparse

import torch

from bayescade.devices import choose_device
from bayescade.metrics.psnr import psnr
from bayescade.pipeline.any_rows import Row, all_rows
from bayescade.pipeline.benchmark_any import VALIDATION, AnyBenchmark, Bench, row_scans
from bayescade.projectors import ray_transform
from bayescade.projectors.any_scan import image_levels, in_pixels
from bayescade.projectors.first_image import FirstImage

ROWS = (
    "ellipses-views-16",
    "ellipses-views-32",
    "ellipses-views-180",
    "ellipses-fan-64",
    "ellipses-arc-90",
    "ellipses-arc-120",
)


def scores(bench: Bench, row: Row, constants: list[float], iterations: list[int]) -> list[str]:
    """A line of the table for every constant."""
    scans = row_scans(bench, row, VALIDATION)
    geometry = in_pixels(row.geometry)
    operator = ray_transform(geometry, bench.device)
    y = scans.sinogram / row.geometry.pixel_size
    levels = image_levels(operator, y).reshape(-1, 1, 1, 1)
    lines = []
    for value in constants:
        cells = []
        for count in iterations:
            first = FirstImage(operator, operator.norm, count)
            if value:
                first.constants = torch.full_like(first.constants, value)
            image = first(y / levels) * levels if count else operator.fbp(y)
            cells.append(f"{float(psnr(image, scans.truth, 1.0).mean()):.1f}")
        lines.append(f"| {row.name} | {value or 'own'} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=ROWS)
    parser.add_argument("--constants", nargs="+", type=float, default=[0.0])
    parser.add_argument("--iterations", nargs="+", type=int, default=[0, 50, 150, 400])
    parser.add_argument("--scans", type=int, default=4, help="validation scans of a row")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    request = AnyBenchmark("fbp", images=1, validation_images=options.scans)
    bench = Bench(request, choose_device(options.device), None, None, "")
    print(f"| row | constant | {' | '.join(str(count) for count in options.iterations)} |")
    print("|---|---|" + "---|" * len(options.iterations))
    for row in all_rows():
        if row.name in options.rows:
            print("\n".join(scores(bench, row, options.constants, options.iterations)), flush=True)


if __name__ == "__main__":
    main()
