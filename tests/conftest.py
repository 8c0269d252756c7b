"""What tests share: the data folder, the cache, and the skip that strict runs turn into a failure."""

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on the CPU, one program after the other
if "PYTEST_XDIST_WORKER" in os.environ:  # tests share the cores: one thread each, also in processes that a test starts
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

from bayescade.kernels._triton import available

ROOT = Path(__file__).parent.parent
STRICT = os.environ.get("BAYESCADE_STRICT") == "1"


def skip(reason: str) -> None:
    """Skips with a reason; under BAYESCADE_STRICT=1 what could not be tested is a failure."""
    if STRICT:
        pytest.fail(f"strict: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Measured scans and the paper's test set, which are not part of the project."""
    folder = Path(os.environ.get("BAYESCADE_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "paper_test_set.npz").exists():
        skip(f"no data in {folder}; set BAYESCADE_DATA to the folder that holds paper_test_set.npz")
    return folder


@pytest.fixture
def _interpreter() -> None:
    """For tests of the fused kernels on tensors of the CPU."""
    if torch.cuda.is_available():
        pytest.skip("here the kernels run on the GPU, not through Triton's interpreter")
    if not available():
        skip("Triton is not installed")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYESCADE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests run where there is a GPU; elsewhere they are left out, strict or not."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
