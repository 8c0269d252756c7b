"""Training by two processes: the same result as by one, and going on after one of them was killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bayescade.cli import run
from bayescade.errors import UserError
from bayescade.storage.manifest import read_manifest
from bayescade.storage.weights import read_blocks
from bayescade.training.distributed import ProcessGroup
from tests.pipeline.tiny import GEOMETRY, LONGER

SECONDS = 120


def arguments(folder: Path, out: str, blocks: int, *more: str) -> list[str]:
    (folder / "geo.toml").write_text(GEOMETRY)
    line = [
        "train",
        "bdgd-plus",
        "--geometry",
        str(folder / "geo.toml"),
        "--out",
        str(folder / out),
        "--device",
        "cpu",
        "--json",
    ]
    return [*line, *[part for text in (*LONGER, f"greedy.blocks={blocks}", *more) for part in ("--set", text)]]


def torchrun(line: list[str], *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    return subprocess.Popen(
        [*command, "-m", "bayescade", *line],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        out, error = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, error[-2000:]
    return out


def weights(folder: Path) -> torch.Tensor:
    blocks = read_blocks(folder, read_manifest(folder))
    return torch.cat([block[key].flatten() for block in blocks for key in sorted(block)])


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["side-by-side", "elbo"])
def test_two_processes_train_like_one(loss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(tmp_path, "one", 2, f"greedy.loss={loss}")) == 0
    capsys.readouterr()
    answer = json.loads(finish(torchrun(arguments(tmp_path, "two", 2, f"greedy.loss={loss}"))))
    assert answer["blocks"] == 2
    assert read_manifest(tmp_path / "two").processes == 2
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert float((one - two).norm() / one.norm()) < 1e-3
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("one", "two")]
    for a, b in zip(*lines, strict=True):
        assert json.loads(a)["loss"] == pytest.approx(json.loads(b)["loss"], rel=1e-3, abs=1e-3)


@pytest.mark.slow
def test_a_killed_worker_is_started_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slowly = "fit.learning_rate=0.001"  # rounding grows from block to block, the faster the faster they learn
    assert run(arguments(tmp_path, "one", 12, slowly)) == 0
    capsys.readouterr()
    process = torchrun(arguments(tmp_path, "two", 12, slowly), "--max-restarts", "2")
    begin = time.monotonic()
    while time.monotonic() - begin < SECONDS:
        if (tmp_path / "two" / "block-02.safetensors").exists():
            break
        time.sleep(0.01)
    workers = subprocess.run(
        ["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True
    ).stdout.split()
    assert len(workers) == 2
    os.kill(int(workers[1]), signal.SIGKILL)
    answer = json.loads(finish(process))
    assert answer["blocks"] == 12
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert float((one - two).norm() / one.norm()) < 1e-2


def test_a_batch_is_shared_evenly() -> None:
    parts = [ProcessGroup(rank, 2).part(6) for rank in (0, 1)]
    assert parts == [slice(0, 3), slice(3, 6)]
    with pytest.raises(UserError, match="expected a multiple of the 2 processes, got 3"):
        ProcessGroup(0, 2).part(3)
