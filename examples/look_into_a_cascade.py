"""What a trained cascade does, block by block, and what its epistemic map consists of.

    x_k = relu(x_{k-1} + f_k(grad D(y, A x_{k-1}), x_{k-1})),    epistemic = variance over samples of the random weights

For a model of one of the paper's cases, on the paper's own test set: PSNR after every block; standard deviations of the random
weights at the start and at the end of their training; and the mean epistemic variance with samples of weights or of
activations, with and without the jitter of 1e-6 that the authors' code adds to the variance of activations.

    python examples/look_into_a_cascade.py bdgd-plus/sparse-32 --images 10 --samples 20
"""

import argparse
import math

import torch

from bayescade.bayes.layers import MeanFieldConv
from bayescade.blocks.runner import PlainRunner
from bayescade.blocks.sampling import MeanWeights
from bayescade.data.noise import add_noise
from bayescade.devices import choose_device
from bayescade.inference.monte_carlo import InferenceSettings, Sampler
from bayescade.methods._cascade import TrainedCascade
from bayescade.metrics.psnr import psnr
from bayescade.models import load_model, model_folder
from bayescade.networks.cascade import first_iterate, first_state, iterates, step
from bayescade.phantoms import ellipses, shepp_logan
from bayescade.pipeline.benchmark_paper import NOISE
from bayescade.progress import progress, show_progress
from bayescade.storage.files import write_json
from bayescade.storage.manifest import read_manifest

REGION = slice(60, 68)  # pixels each way, in the middle of the image
WAYS = {
    "weights": ("all-weights", 0.0),
    "activations": ("activations", 0.0),
    "activations, jitter 1e-6": ("activations", 1e-6),
}


def test_scans(model: TrainedCascade, images: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sinograms and truths: ellipses of the paper's test set, then its Shepp-Logan phantom."""
    device = model.problem.device
    truth = torch.cat([ellipses.paper_test(device)[:images], shepp_logan.generate(1, device=device)])
    clean = model.problem.operator(truth)
    noisy = [add_noise(clean[:-1], NOISE, seed=0), add_noise(clean[-1:], NOISE, seed=0, first=ellipses.PAPER_TEST)]
    return torch.cat(noisy), truth


@torch.no_grad()
def by_block(model: TrainedCascade, sinogram: torch.Tensor, truth: torch.Tensor) -> list[tuple[float, float]]:
    """PSNR (ellipses, Shepp-Logan) of FBP and after every block, with mean weights."""
    runners = [PlainRunner(block) for block in model.cascade.all_blocks()]
    means = [MeanWeights()] * len(runners)
    state = first_state(model.problem.initial(sinogram), model.cascade.block(0).memory_channels)
    start = first_iterate(runners[0], model.problem, sinogram, state)
    rows = []
    with progress("blocks", len(runners)) as advance:
        for now in iterates(runners, model.problem, sinogram, start, means):
            rows.append(scores(now.state.image, truth))
            advance(1)
    last = step(runners[-1], now.state, now.features, means[-1])
    return [*rows, scores(last.image, truth)]


def scores(image: torch.Tensor, truth: torch.Tensor) -> tuple[float, float]:
    """PSNR of the ellipses (mean) and of the Shepp-Logan phantom, the last image."""
    values = psnr(image, truth, 1.0)
    return float(values[:-1].mean()), float(values[-1])


def weight_stds(model_name: str) -> list[tuple[float, float, float]]:
    """Median standard deviation of each block's last layer: at the start, as trained, and as it is used."""
    folder = model_folder(model_name)
    assert folder is not None
    records = [block.log_std for block in read_manifest(folder).blocks if block.log_std is not None]
    return [(math.exp(r["start"][0]), math.exp(r["trained"][0]), math.exp(r["final"][0])) for r in records]


def epistemic(model: TrainedCascade, sinogram: torch.Tensor, samples: int) -> list[dict[str, object]]:
    """Of the ellipse images, for each way to sample: mean epistemic variance, and that of the mean over a small region."""
    rows: list[dict[str, object]] = []
    for name, (sampling, jitter) in WAYS.items():
        for module in model.cascade.modules():
            if isinstance(module, MeanFieldConv):
                module.jitter = jitter
        sampler = Sampler(model.cascade, InferenceSettings(sampling=sampling, runner="plain"))
        pixels, regions = [], []
        with progress(name, len(sinogram) - 1) as advance:
            for one in sinogram[:-1].split(1):
                images = sampler.images(model.problem, one, samples=samples, seed=0).double()
                pixels.append(float(images.var(0, correction=0).mean()))
                regions.append(float(images[..., REGION, REGION].mean((-1, -2)).var(0, correction=0)))
                advance(1)
        count = len(pixels)
        rows.append({"sampling": name, "pixel": sum(pixels) / count, "region": sum(regions) / count})
    return rows


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", help="a shipped model or a run folder, of one of the paper's cases")
    parser.add_argument("--images", type=int, default=100, help="how many of the paper's 100 ellipse images")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    show_progress()
    model = load_model(options.model, device=choose_device(options.device))
    assert isinstance(model, TrainedCascade)
    sinogram, truth = test_scans(model, options.images)
    blocks = by_block(model, sinogram, truth)
    weights = weight_stds(options.model)
    print("| k | ellipses (dB) | Shepp-Logan (dB) | std of weights: start | trained | used |")
    print("|---|---|---|---|---|---|")
    print(f"| 0 (FBP) | {blocks[0][0]:.2f} | {blocks[0][1]:.2f} | | | |")
    for number, (values, stds) in enumerate(zip(blocks[1:], weights, strict=True), 1):
        print(f"| {number} | {values[0]:.2f} | {values[1]:.2f} | " + " | ".join(f"{std:.1e}" for std in stds) + " |")
    maps = epistemic(model, sinogram, options.samples)
    print("\n| sampling | mean epistemic variance of a pixel | of the mean of 8 x 8 pixels |")
    print("|---|---|---|")
    for row in maps:
        print(f"| {row['sampling']} | {row['pixel']:.2e} | {row['region']:.2e} |")
    if options.json:
        write_json(options.json, {"psnr": blocks, "weight_stds": weights, "epistemic": maps})


if __name__ == "__main__":
    main()
