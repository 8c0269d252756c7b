"""Trains with a limit on the memory of training images; prints as JSON what the process took, in bytes, and what came out."""

import json
import sys

import torch

torch.set_num_threads(1)

from bayescade.data.noise import Noise  # noqa: E402
from bayescade.pipeline.train import train  # noqa: E402

IMAGES = 400
SETTINGS = [
    "fit.batch=16",
    "fit.epochs=1",
    "greedy.blocks=2",
    "greedy.resample=1",
    "greedy.restarts=0",
    "block.channels=1",
    "data.validation_images=2",
]


def peak() -> int:
    """The most memory this process has had (the system's other figure starts with what its parent had)."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def main(folder: str, geometry: str, memory: str) -> None:
    """A small training for what every training takes, then the one that is measured."""
    for name, images in (("small", 80), ("large", IMAGES)):
        before = peak()
        settings = [*SETTINGS, f"data.images={images}", f"data.memory={memory}"]
        train("bdgd-plus", f"{folder}/{name}", geometry_file=geometry, noise=Noise(), settings=settings, device="cpu")
    with open(f"{folder}/large/manifest.json") as file:
        hashes = [block["sha256"] for block in json.load(file)["blocks"]]
    print(json.dumps({"grown": peak() - before, "hashes": hashes}))


main(*sys.argv[1:])
