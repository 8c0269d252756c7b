"""One training step of a block on a GPU: fused kernels against plain PyTorch, as ratios in one run, and how far the floor is.

    python benchmarks/training.py [--batch 128] [--channels 16] [--json FILE]

A step is: load a batch, forward, loss, backward, Adam. Plain PyTorch is bfloat16 autocast with channels last, eager and
as a CUDA graph. Times are medians of CUDA events; each way is warmed up first. The floor counts the block's multiplications at
the rate of a large matrix product, and the features written and read once each way at the rate of a large copy, both measured
here.
"""

import argparse
import json
from collections.abc import Callable

import torch
from timing import median_ms

from bayescade.blocks import heteroscedastic
from bayescade.blocks.block import Block
from bayescade.blocks.convolution import channels_last
from bayescade.blocks.settings import BlockSettings
from bayescade.physics.cases import case_geometry
from bayescade.physics.problem import InverseProblem
from bayescade.projectors import ray_transform
from bayescade.training import losses
from bayescade.training.fit import BlockStep, FitSettings, adam
from bayescade.training.runner import training_runner
from bayescade.training.stage import ImageGroup, Measured

SIZE = 128
WARM = 10  # calls


def images_of(images: int) -> ImageGroup:
    """Random images; their values do not matter for the time."""
    operator = ray_transform(case_geometry("sparse-32"), "cuda")
    truth = torch.rand((images, 1, SIZE, SIZE), device="cuda")
    sinogram = torch.zeros((images, 1, *operator.geometry.sinogram_shape), device="cuda")
    measured = Measured(InverseProblem(operator, norm=63.0), sinogram)
    return ImageGroup((measured,), truth, truth + 0.1 * torch.rand_like(truth), torch.randn_like(truth))


def step_of(block: Block, images: ImageGroup, batch: int, runner: str, graph: bool) -> Callable[[], object]:
    """A step as it is trained."""
    settings = FitSettings(batch=batch, precision="bf16", runner=runner)
    kernels = training_runner(runner, "bf16", images.truth[:1])
    step = BlockStep(block, losses.side_by_side(len(images)), adam(block, settings), images, settings, kernels)
    generator = torch.Generator("cuda").manual_seed(0)
    indices = torch.arange(batch, device="cuda")
    if not graph:
        step.compute.stream = None

    def run() -> None:
        step.load(images, indices, generator)
        step.run(1e-4)

    return run


def floor_ms(block: Block, batch: int) -> dict[str, float]:
    """Milliseconds for the arithmetic and for the memory of a step, at rates measured here."""
    pixels = batch * SIZE * SIZE
    weights = sum(parameter.numel() for parameter in block.parameters() if parameter.ndim == 4)
    outputs = sum(module.out_channels for module in block.modules() if isinstance(module, torch.nn.Conv2d))
    a = torch.randn((8192, 8192), device="cuda", dtype=torch.bfloat16)
    rate = 2 * 8192**3 / median_ms(lambda: a @ a, 10, WARM)
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * 2**30 / median_ms(lambda: target.copy_(source), 10, WARM)
    return {
        "arithmetic": 3 * 2 * weights * pixels / rate,  # forward, and two gradients
        "memory": 2
        * outputs
        * pixels
        * (1 + 1 + 1 + 2 + 1)
        / copy,  # features: written, read, read again; slopes: w, r, r
        "tflops": rate / 1e9,
        "gigabytes_per_second": copy / 1e6,
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()
    images = images_of(2 * options.batch)
    found: dict[str, float] = {}
    for name, runner, graph in (
        ("plain, eager", "plain", False),
        ("plain, CUDA graph", "plain", True),
        ("fused, eager", "fused", False),
        ("fused, CUDA graph", "fused", True),
    ):
        block = heteroscedastic.build(BlockSettings(channels=options.channels), torch.Generator().manual_seed(0)).cuda()
        channels_last(block)
        found[name] = median_ms(step_of(block, images, options.batch, runner, graph), 50, WARM)
    floor = floor_ms(block, options.batch)
    print(f"{torch.cuda.get_device_name()}, batch {options.batch}, {options.channels} channels, {SIZE} x {SIZE}")
    for name, time in found.items():
        print(f"{name:20} {time:7.2f} ms   {found['plain, eager'] / time:5.2f} x plain eager")
    print(
        f"floor: arithmetic {floor['arithmetic']:.2f} ms at {floor['tflops']:.0f} TFLOP/s, "
        f"memory {floor['memory']:.2f} ms at {floor['gigabytes_per_second']:.0f} GB/s"
    )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({**found, "floor": floor}, file, indent=1)


if __name__ == "__main__":
    main()
