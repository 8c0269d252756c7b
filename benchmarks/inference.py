"""Samples of a cascade, for one image and many: fused kernels (on a CPU perturbation) over plain PyTorch, as ratios in one run.

    python benchmarks/inference.py [--blocks 10] [--channels 16] [--samples 100] [--images 100] [--json FILE]

The cascade has the paper's width and random weights, which do not matter for the time; the scan has 32 views of 128 x 128
pixels. A call is all of it: FBP, samples, blocks, projections, moments and their standard errors. On a GPU times are medians of
CUDA events, and the floor counts the multiplications of the blocks at the rate of a large matrix product measured here. On
a CPU one image is timed, the plain way and by perturbation in bfloat16.
"""

import argparse
import json
from collections.abc import Callable

import torch
from timing import median_ms

from bayescade.blocks import heteroscedastic
from bayescade.blocks.convolution import channels_last
from bayescade.blocks.settings import BlockSettings
from bayescade.inference.monte_carlo import InferenceSettings, Sampler
from bayescade.networks.cascade import Cascade
from bayescade.physics.cases import case_geometry
from bayescade.physics.problem import InverseProblem
from bayescade.projectors import scan_problem

WARM = 2  # calls: the first captures the graph


def cascade_of(blocks: int, channels: int, device: str) -> Cascade:
    """A cascade of BDGD+ blocks with the paper's shape and narrow posteriors, as trained ones have."""
    made = []
    for seed in range(blocks):
        block = heteroscedastic.build(BlockSettings(channels=channels), torch.Generator().manual_seed(seed))
        channels_last(block)
        made.append(block)
    return Cascade(made).requires_grad_(False).to(device)


def call_of(cascade: Cascade, problem: InverseProblem, images: int, samples: int, runner: str) -> Callable[[], object]:
    """A whole reconstruction."""
    sampler = Sampler(cascade, InferenceSettings(runner=runner))
    sinogram = problem.operator(torch.rand((images, *problem.operator.domain_shape), device=problem.device))
    return lambda: sampler.estimate(problem, sinogram, samples=samples, seed=0)


def floor_ms(cascade: Cascade, problem: InverseProblem, passes: int) -> float:
    """The multiplications of so many passes through the cascade at the rate of a large matrix product."""
    _, height, width = problem.operator.domain_shape
    weights = sum(parameter.numel() for parameter in cascade.parameters() if parameter.ndim == 4)
    a = torch.randn((8192, 8192), device="cuda", dtype=torch.float16)
    rate = 2 * 8192**3 / median_ms(lambda: a @ a, 10, WARM)
    return 2 * weights * height * width * passes / rate


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=11)
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    cascade = cascade_of(options.blocks, options.channels, device)
    problem = scan_problem(case_geometry("sparse-32"), device, ramp="shifted")
    found: dict[str, float] = {}
    for images in sorted({1, options.images}) if gpu else [1]:
        for runner in ("plain", "fused" if gpu else "perturbation"):
            call = call_of(cascade, problem, images, options.samples, runner)
            repeat = options.repeat if images == 1 else 3
            found[f"{images} image{'s' * (images > 1)}, {runner}"] = median_ms(call, repeat, WARM, gpu)
    name = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} CPU threads"
    print(f"{name}, {options.blocks} blocks of {options.channels} channels, {options.samples} samples")
    for what, milliseconds in found.items():
        ratio = found[f"{what.partition(',')[0]}, plain"] / milliseconds
        print(f"{what:20} {milliseconds:9.2f} ms   {ratio:5.2f} x plain")
    if gpu:
        found["floor, 1 image"] = floor_ms(cascade, problem, options.samples)
        print(f"floor for 1 image    {found['floor, 1 image']:9.2f} ms")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
