"""Training images beyond the memory set aside for them are kept in files: the same weights, in far less memory."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from bayescade.physics.geometry import ParallelBeam
from bayescade.pipeline.train import fits
from tests.geometries import small_parallel

SCRIPT = Path(__file__).parent / "train_within_memory.py"
SCAN = "bins = 95\nviews = 8\nimage_shape = [64, 64]\n"
NUMBERS = 400 * (7 * 64 * 64 + 8 * 95)  # of the training set in memory


def trained(folder: Path, memory: float) -> dict:
    folder.mkdir()
    (folder / "geo.toml").write_text(SCAN)
    arguments = [sys.executable, str(SCRIPT), str(folder), str(folder / "geo.toml"), str(memory)]
    kept_small = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back at once
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=300, cwd=SCRIPT.parents[2], env={**os.environ, **kept_small}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict = json.loads(done.stdout)
    assert not [
        path for path in (folder / "large").iterdir() if path.suffix not in (".safetensors", ".json", ".jsonl", ".md")
    ]
    return answer


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux counts it")
def test_a_training_that_does_not_fit_is_the_same_in_less_memory(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as both:  # each is a process of one thread
        whole, filed = both.map(trained, [tmp_path / "whole", tmp_path / "filed"], [100, 0.01])
    assert filed["hashes"] == whole["hashes"]
    assert whole["grown"] > 0.5 * 4 * NUMBERS
    assert filed["grown"] < 0.2 * 4 * NUMBERS


def test_what_fits() -> None:
    geometry: ParallelBeam = small_parallel(10)
    rays = geometry.views * geometry.bins
    needed = 4 * 1000 * (7 * 100 + rays)
    assert fits(geometry, 1000, needed / 1e9, torch.device("cpu"))
    assert not fits(geometry, 1001, needed / 1e9, torch.device("cpu"))
    assert fits(geometry, 10, 0.0, torch.device("cpu"))
