import warnings
from pathlib import Path

import numpy as np
import pytest

from bayescade.data.cache import Arrays, cached


def maker(value: float, calls: list[float]):
    def make() -> Arrays:
        calls.append(value)
        return {"a": np.full(1000, value), "b": np.arange(6.0).reshape(2, 3)}

    return make


def test_made_once_and_found_again(tmp_path: Path) -> None:
    calls: list[float] = []
    for _ in range(3):
        arrays = cached({"x": 1}, maker(4.0, calls), tmp_path)
        np.testing.assert_array_equal(arrays["a"], np.full(1000, 4.0))
        assert arrays["b"].shape == (2, 3)
    cached({"x": 2}, maker(5.0, calls), tmp_path)
    assert calls == [4.0, 5.0]


def test_without_a_folder_nothing_is_cached(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    calls: list[float] = []
    for _ in range(2):
        cached({"x": 1}, maker(4.0, calls), tmp_path / "file" / "cache")
    assert calls == [4.0, 4.0]


@pytest.mark.parametrize("damage", ["cut", "flip", "swap", "empty"])
def test_a_damaged_file_is_named_and_made_again(tmp_path: Path, damage: str) -> None:
    calls: list[float] = []
    cached({"x": 1}, maker(4.0, calls), tmp_path)
    (path,) = tmp_path.glob("*.npz")
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[600] ^= 0xFF  # inside the array: only its checksum can tell
        path.write_bytes(content)
    elif damage == "swap":
        cached({"x": 2}, maker(5.0, []), tmp_path)
        (other,) = (found for found in tmp_path.glob("*.npz") if found != path)
        other.replace(path)
    else:
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match=rf"{path.name}.*made again"):
        arrays = cached({"x": 1}, maker(4.0, calls), tmp_path)
    assert calls == [4.0, 4.0]
    np.testing.assert_array_equal(arrays["a"], np.full(1000, 4.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached({"x": 1}, maker(4.0, calls), tmp_path)
    assert len(calls) == 2
