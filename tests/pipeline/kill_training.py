"""Trains in child processes that are killed at random moments; prints what came of it as JSON.

Everything is imported once and children are forked, so that a try takes the time of the training only.
"""

import json
import os
import random
import signal
import sys
import time

import torch

torch.set_num_threads(1)

from bayescade.data.noise import Noise  # noqa: E402
from bayescade.methods import bdgd_plus  # noqa: E402, F401
from bayescade.physics.geometry import ParallelBeam  # noqa: E402
from bayescade.pipeline.train import train  # noqa: E402
from bayescade.projectors import ray_transform  # noqa: E402
from tests.pipeline.tiny import LONGER  # noqa: E402

BLOCKS = 12
SETTINGS = [*LONGER, f"greedy.blocks={BLOCKS}"]


def start(folder: str, geometry: str) -> int:
    child = os.fork()
    if child:
        return child
    train("bdgd-plus", folder, geometry_file=geometry, noise=Noise(), settings=SETTINGS, device="cpu")
    os._exit(0)


def blocks_in(folder: str) -> int:
    try:
        with open(f"{folder}/manifest.json") as file:
            return len(json.load(file)["blocks"])
    except FileNotFoundError:
        return 0


def main(folder: str, geometry: str, least: int) -> None:
    """Kills until there were enough kills; a run that is done before that is followed by another."""
    for projector in ("matrix", "matrix-free"):  # loads the compiled functions
        operator = ray_transform(ParallelBeam([0.1], 5, image_shape=(4, 4)), projector=projector)
        operator.adjoint(operator(torch.zeros(1, 1, 4, 4)))
    begin = time.monotonic()
    os.waitpid(start(f"{folder}/whole", geometry), 0)
    whole = time.monotonic() - begin
    chance = random.Random(0)
    rounds, kills, progress = 0, 0, []
    while kills < least:
        child = start(f"{folder}/killed-{rounds}", geometry)
        time.sleep(chance.uniform(0.02, 0.4) * whole)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        kills += os.WIFSIGNALED(status)
        progress.append(blocks_in(f"{folder}/killed-{rounds}"))
        rounds += progress[-1] == BLOCKS
    for number in range(rounds + 1):
        os.waitpid(start(f"{folder}/killed-{number}", geometry), 0)
    print(json.dumps({"kills": kills, "progress": progress, "seconds": whole}))


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
