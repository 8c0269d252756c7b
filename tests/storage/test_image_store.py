"""Images in a file are those of a tensor."""

import os
from pathlib import Path

import pytest
import torch

from bayescade.errors import Failure
from bayescade.storage.image_store import FileImageStore, copy_images, new_store, store_like

CPU = torch.device("cpu")


def filed(tensor: torch.Tensor, folder: Path) -> FileImageStore:
    store = FileImageStore(folder, tensor.shape, tensor.dtype, CPU)
    store[:] = tensor
    return store


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_images_come_back_as_they_were_written(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.randn((7, 1, 3, 2), generator=torch.Generator().manual_seed(0), dtype=dtype)
    store = filed(tensor, tmp_path)
    assert (len(store), store.shape, store.dtype, store.device) == (7, tensor.shape, dtype, CPU)
    assert torch.equal(store[:], tensor)
    assert torch.equal(store[2:5], tensor[2:5])
    assert torch.equal(store[5:5], tensor[5:5])
    indices = torch.tensor([6, 0, 0, 3])
    assert torch.equal(store[indices], tensor[indices])
    out = torch.empty((4, 1, 3, 2), dtype=dtype)
    copy_images(store, indices, out)
    assert torch.equal(out, tensor[indices])
    store[1:3] = tensor[4:6]
    assert torch.equal(store[:4], torch.cat([tensor[:1], tensor[4:6], tensor[3:4]]))
    other = store_like(store)
    assert isinstance(other, FileImageStore)
    other[:] = tensor
    assert torch.equal(store[1:2], tensor[4:5])


def test_files_have_no_name_and_need_none(tmp_path: Path) -> None:
    store = new_store(tmp_path, (3, 2), CPU)
    store[:] = torch.ones(3, 2)
    assert not list(tmp_path.iterdir())
    assert isinstance(new_store(None, (3, 2), CPU), torch.Tensor)


def test_wrong_shapes_and_lost_files_are_named(tmp_path: Path) -> None:
    store = filed(torch.ones(4, 2), tmp_path)
    with pytest.raises(ValueError, match="expected 2 images"):
        store[:2] = torch.ones(3, 2)
    os.ftruncate(store._file.fileno(), 10)
    with pytest.raises(Failure, match="shorter than it was"):
        store[:]


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(Failure, match="do not fit: No space left on device"):
        filed(torch.ones(4, 2), tmp_path)
