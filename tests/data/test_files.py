"""Scan and result files: what goes in comes out, whole or not at all."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from bayescade import ParallelBeam, Reconstruction, __version__
from bayescade.data.images import read_images
from bayescade.data.noise import Noise, common_noise
from bayescade.data.scan import ScanReader, ScanWriter
from bayescade.data.simulate import Scans
from bayescade.errors import UserError
from bayescade.results import ResultWriter
from bayescade.storage.arrays import ArrayReader, ArrayWriter
from bayescade.storage.files import _temporary_prefix, replacing, write_json

GEOMETRY = ParallelBeam([0.1, 0.5, 1.0], bins=7, image_shape=(5, 6))
SUFFIXES = [".h5", ".hdf5", ".npz"]


def scans(count: int, seed: int = 0) -> Scans:
    generator = torch.Generator().manual_seed(seed)
    return Scans(torch.rand(count, 1, 3, 7, generator=generator), torch.rand(count, 1, 5, 6, generator=generator))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_scans_round_trip(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"scan{suffix}"
    parts = [scans(2, 0), scans(3, 1)]
    with ScanWriter(path, GEOMETRY, common_noise(0.02), seed=9) as writer:
        for part in parts:
            writer.append(part)
    with ScanReader(path) as reader:
        assert reader.geometry == GEOMETRY
        assert reader.count == 5
        batch = reader.read(1, 3)
    assert torch.equal(batch.sinogram, torch.cat([part.sinogram for part in parts])[1:4])
    assert batch.truth is not None
    assert torch.equal(batch.truth, torch.cat([part.truth for part in parts])[1:4])
    with ArrayReader(path) as file:
        assert file.attribute("noise") == 0.02
        assert file.attribute("seed") == 9
        assert file.attribute("bayescade_version") == __version__
        assert file.attribute("nothing") is None
        assert json.loads(file.attribute("geometry"))["kind"] == "parallel"


def test_scan_files_have_the_names_of_the_contract(tmp_path: Path) -> None:
    with ScanWriter(tmp_path / "scan.h5", GEOMETRY, common_noise(photons=1e4), seed=9) as writer:
        writer.append(scans(2))
    with h5py.File(tmp_path / "scan.h5") as file:
        assert file["sinogram"].shape == (2, 3, 7)
        assert file["truth"].shape == (2, 5, 6)
        assert set(file.attrs) == {
            "geometry",
            "noise",
            "seed",
            "bayescade_version",
            "photons",
            "attenuation",
            "electronic",
            "noise_model",
            "scanner",
        }


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("noise", [Noise(), common_noise(0.2), common_noise(photons=1e4, attenuation=0.1)])
def test_the_noise_of_a_scan_file_is_read(tmp_path: Path, noise: Noise, suffix: str) -> None:
    path = tmp_path / f"scan{suffix}"
    with ScanWriter(path, GEOMETRY, noise, seed=9) as writer:
        writer.append(scans(1))
    with ScanReader(path) as reader:
        assert reader.noise() == noise


@pytest.mark.parametrize(
    ("attributes", "noise"),
    [
        ({}, None),
        ({"noise": 0.02}, common_noise(0.02)),
        ({"noise": 0.0, "photons": 1e4, "attenuation": 0.1}, common_noise(photons=1e4, attenuation=0.1)),
    ],
)
def test_the_noise_of_an_older_scan_file_is_read(
    tmp_path: Path, attributes: dict[str, float], noise: Noise | None
) -> None:
    with ScanWriter(tmp_path / "scan.h5", GEOMETRY, Noise(), seed=9) as writer:
        writer.append(scans(1))
    with h5py.File(tmp_path / "scan.h5", "a") as file:
        for name in ("noise", "noise_model"):
            del file.attrs[name]
        file.attrs.update(attributes)
    with ScanReader(tmp_path / "scan.h5") as reader:
        assert reader.noise() == noise


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_geometry_of_many_views_fits_its_attribute(tmp_path: Path, suffix: str) -> None:
    geometry = ParallelBeam(np.linspace(0, 3, 9000), bins=1, image_shape=(2, 2))
    with ScanWriter(tmp_path / f"scan{suffix}", geometry, Noise(), seed=0) as writer:
        writer.append(Scans(torch.zeros(1, 1, 9000, 1), torch.zeros(1, 1, 2, 2)))
    with ScanReader(tmp_path / f"scan{suffix}") as reader:
        assert reader.geometry == geometry


def full_result(count: int = 2) -> Reconstruction:
    maps = {name: torch.rand(count, 1, 5, 6) for name in ("image", "aleatoric", "epistemic", "mc_standard_error")}
    maps |= {name: torch.rand(count, 1, 5, 6) for name in ("lower", "upper", "truth", "support")}
    return Reconstruction(
        **maps,
        sample_images=torch.rand(4, count, 1, 5, 6),
        model="bdgd-plus/sparse-32",
        geometry=GEOMETRY.to_json(),
        samples=4,
        seed=3,
        calibration="covers 90 %",
        warning="far from the training data",
        scores={"psnr": [30.0] * count, "ssim": [None] * count},
    )


def assert_same(a: Reconstruction, b: Reconstruction) -> None:
    for name, value in vars(a).items():
        other = getattr(b, name)
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, name


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_results_round_trip(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"result{suffix}"
    full = full_result()
    full.save(path)
    assert_same(full, Reconstruction.load(path))
    plain = Reconstruction(image=torch.rand(1, 1, 5, 6), model="fbp", geometry=GEOMETRY.to_json())
    plain.save(path)
    assert_same(plain, Reconstruction.load(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_results_written_batch_by_batch(tmp_path: Path, suffix: str) -> None:
    parts = [full_result(2), full_result(3)]
    with ResultWriter(tmp_path / f"result{suffix}") as writer:
        for part in parts:
            writer.append(part)
    loaded = Reconstruction.load(tmp_path / f"result{suffix}")
    assert torch.equal(loaded.image, torch.cat([part.image for part in parts]))
    assert loaded.sample_images is not None
    assert loaded.sample_images.shape == (4, 5, 1, 5, 6)
    assert loaded.scores == {"psnr": [30.0] * 5, "ssim": [None] * 5}


def test_a_result_explains_itself() -> None:
    assert "2 images of 5 x 6 by bdgd-plus/sparse-32" in full_result().describe()
    assert "far from the training data" in full_result().describe()
    assert torch.equal(full_result().std ** 2 > 0, torch.ones(2, 1, 5, 6, dtype=torch.bool))
    plain = Reconstruction(image=torch.rand(1, 1, 5, 6), model="fbp", geometry="{}")
    with pytest.raises(UserError, match="fbp gives an image without uncertainty"):
        _ = plain.std


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failure_inside_leaves_the_old_file_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"scan{suffix}"
    path.write_text("old")

    def fail_half_way() -> None:
        with ArrayWriter(path) as writer:
            writer.append({"a": np.zeros((2, 3))})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_the_remains_of_a_dead_process_are_removed(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    start = _temporary_prefix(tmp_path / "out.json")
    remains = tmp_path / f"{start}{process.stdout.strip()}-00.partial"
    remains.write_text("half")
    other = tmp_path / f"{start}{os.getpid()}-00.partial"
    other.write_text("of a process that lives")
    write_json(tmp_path / "out.json", {"a": 1})
    assert not remains.exists()
    assert other.exists()


def test_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: write_json(tmp_path / "out.json", [n] * 1000), range(40)))
    assert len(set(json.loads((tmp_path / "out.json").read_text()))) == 1
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["a**b.json", "o[1].json", "größe.json", "n" * 250 + ".json", "-o.json"])
def test_names_of_any_kind(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / name, {"a": 1})
    assert [found.name for found in tmp_path.iterdir()] == [name]


def test_a_link_and_its_mode_are_kept(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "real.json").chmod(0o600)
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    write_json(tmp_path / "link.json", {"a": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text()) == {"a": 1}
    assert (tmp_path / "real.json").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_said_before_hdf5_meets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="not enough space on the disk: 8"), ArrayWriter(tmp_path / "out.h5") as writer:
        writer.append({"a": np.zeros((1, 1000, 1000))})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": torch.zeros(1, 5, 6)}, "image: expected shape"),
        ({"truth": torch.zeros(1, 1, 5, 6)}, "truth: expected the shape of the image"),
        ({"sample_images": torch.zeros(2, 1, 5, 6)}, "sample_images: expected shape"),
    ],
)
def test_a_result_of_odd_shapes_cannot_be_made(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Reconstruction(**{"image": torch.zeros(2, 1, 5, 6), "model": "fbp", "geometry": "{}", **change})


@pytest.mark.parametrize(
    ("arrays", "attributes", "message"),
    [
        ({"image": np.zeros((16, 16))}, {}, "expected 'image' of shape"),
        ({"other": np.zeros((2, 4, 4))}, {}, "not a result file"),
        ({"image": np.zeros((2, 4, 4)), "truth": np.zeros((1, 4, 4))}, {}, "truth: expected the shape of the image"),
        ({"image": np.zeros((2, 4, 4))}, {"samples": "many"}, "expected a whole number in the attribute 'samples'"),
        ({"image": np.zeros((2, 4, 4))}, {"seed": [1, 2]}, "attribute 'seed'"),
        ({"image": np.zeros((2, 4, 4))}, {"model": 3}, "expected text in the attribute 'model'"),
        ({"image": np.zeros((2, 4, 4))}, {"scores": "{"}, "expected a JSON object"),
        ({"image": np.zeros((2, 4, 4))}, {"scores": h5py.Empty("f")}, "attribute 'scores'"),
        ({"image": np.zeros((2, 4, 4))}, {"geometry": np.bytes_(b"\xff")}, "damaged or of another kind"),
    ],
)
def test_bad_result_files_are_named(tmp_path: Path, arrays: dict, attributes: dict, message: str) -> None:
    with h5py.File(tmp_path / "bad.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
        for name, value in attributes.items():
            file.attrs[name] = value
    with pytest.raises(UserError, match=rf"bad\.h5.*{message}"):
        Reconstruction.load(tmp_path / "bad.h5")


def test_a_result_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    bad = Reconstruction(image=torch.full((1, 1, 2, 2), float("nan")), model="fbp", geometry="{}")
    with pytest.raises(UserError, match="fbp: image has 4 values that are NaN"):
        bad.save(tmp_path / "out.h5")
    assert list(tmp_path.iterdir()) == []


def test_json_has_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "out.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []


WRITE_FOREVER = """
import sys, numpy as np
from bayescade.storage.arrays import ArrayWriter
path = sys.argv[1]
print("ready", flush=True)
for version in range(1, 10**9):
    with ArrayWriter(path) as writer:
        for _ in range(20):
            writer.append({"a": np.full((5, 300, 300), version, dtype=np.float32)})
        writer.attribute("version", version)
    print("written", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_a_killed_process_leaves_a_whole_file_or_none(tmp_path: Path, suffix: str) -> None:
    """SIGKILL at seeded random moments while the file is written over and over."""
    path = tmp_path / f"out{suffix}"
    moments = np.random.default_rng(0).uniform(0, 0.25, 8)
    partials = 0
    for wait_first, moment in zip([False] * 2 + [True] * 6, moments, strict=True):
        process = subprocess.Popen([sys.executable, "-c", WRITE_FOREVER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if wait_first:
            assert process.stdout.readline() == "written\n"
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
        process.wait()
        partials += len(list(tmp_path.glob(".*.partial")))
        if path.exists():
            with ArrayReader(path) as file:
                array = file.read("a")
                assert array.shape == (100, 300, 300)
                assert (array == file.attribute("version")).all()
        else:
            assert not wait_first
    assert partials > 0, "no kill came while the file was being written: the test shows nothing"


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("a.npy", np.zeros((2, 3, 4, 5)), r"expected images of shape"),
        ("a.npy", np.array(["x"]), "expected numbers"),
        ("a.npy", np.full((1, 4, 4), np.nan), "16 values that are NaN"),
        ("a.npy", np.zeros((0, 4, 4)), "expected images of shape"),
    ],
)
def test_bad_images_are_named(tmp_path: Path, name: str, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / name, array)
    with pytest.raises(UserError, match=message):
        read_images(tmp_path / name)


def test_images_of_every_format(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((2, 4, 5)).astype(np.float32)
    np.save(tmp_path / "a.npy", images)
    np.savez(tmp_path / "b.npz", images=images)
    np.savez(tmp_path / "c.npz", truth=images)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["truth"] = images
    for name in ("a.npy", "b.npz", "c.npz", "d.h5"):
        np.testing.assert_array_equal(read_images(tmp_path / name, (4, 5))[:, 0].numpy(), images)
    np.save(tmp_path / "one.npy", images[0])
    assert read_images(tmp_path / "one.npy").shape == (1, 1, 4, 5)


def test_no_pickle_is_ever_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "b.npz", images=np.array([{"a": 1}], dtype=object))
    for name in ("a.npy", "b.npz"):
        with pytest.raises(UserError):
            read_images(tmp_path / name)


def test_replacing_asks_for_a_folder_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mkdir -p"), replacing(tmp_path / "no" / "out.h5"):
        pass
    with pytest.raises(UserError, match="got a folder"), replacing(tmp_path):
        pass
