"""The kernels compile for a GPU on a machine without one, and what a thread works with fits its registers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayescade.kernels._triton import available
from tests.conftest import skip

SHARED = 227 * 1024  # bytes that a program can share on an H100 or H200


@pytest.mark.slow
def test_every_kernel_compiles_without_spilling() -> None:
    if not available() or sys.platform != "linux":
        skip("Triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    script = Path(__file__).parent / "compile_kernels.py"
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    used = json.loads(done.stdout)
    assert len(used) == 33
    spilled = {name: usage["spilled"] for name, usage in used.items() if usage["spilled"] > 0 and "float" not in name}
    assert not spilled, f"bytes spilled: {spilled}"
    shared = {name: usage["shared"] for name, usage in used.items() if usage["shared"] > SHARED}
    assert not shared, f"bytes shared: {shared}"
