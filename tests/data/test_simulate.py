import numpy as np
import pytest
import torch

from bayescade.data.noise import Noise, add_noise, common_noise
from bayescade.data.scanner import Scanner
from bayescade.data.simulate import chunks, scan_batches, scan_set
from bayescade.data.sources import image_source
from bayescade.data.splits import SPLITS, split_seed
from bayescade.errors import UserError
from bayescade.physics.cases import case_geometry
from bayescade.projectors import ray_transform
from bayescade.seeds import derived_seed


def test_the_four_splits_are_disjoint() -> None:
    seen: set[bytes] = set()
    for split in SPLITS:
        images = image_source("ellipses", (32, 32), seed=0, split=split).images(0, 100, 1)
        these = {image.numpy().tobytes() for image in images}
        assert len(these) == 100
        assert not seen & these
        seen |= these


def test_seeds_of_splits_are_all_different() -> None:
    seeds = [*range(100), *(2**power for power in range(7, 63)), *(2**32 + n for n in range(1, 5))]
    assert len({split_seed(seed, split) for seed in seeds for split in SPLITS}) == 4 * len(seeds)
    assert len({derived_seed(5), derived_seed(5, 0), derived_seed(5, 0, 0), derived_seed("5", 0)}) == 4


@pytest.mark.parametrize(("seed", "split"), [(0, "training"), (-1, "test")])
def test_a_bad_split_is_named(seed: int, split: str) -> None:
    with pytest.raises(UserError, match=r"train, validation|at least 0"):
        split_seed(seed, split)


def test_noise_depends_on_seed_and_index_not_on_the_batch() -> None:
    clean = torch.rand(5, 1, 4, 6)
    together = add_noise(clean, Noise(), seed=1)
    apart = torch.cat([add_noise(clean[:2], Noise(), seed=1), add_noise(clean[2:], Noise(), seed=1, first=2)])
    assert torch.equal(together, apart)
    assert not torch.equal(together, add_noise(clean, Noise(), seed=2))
    residual = (together - clean).flatten(1)
    assert float(torch.corrcoef(residual).fill_diagonal_(0).abs().max()) < 0.8, "images have noise of their own"


def test_on_the_same_grid_the_data_are_the_projection() -> None:
    geometry = case_geometry("sparse-8")
    source = image_source("ellipses", (128, 128), seed=0)
    (scans,) = scan_batches(source, geometry, common_noise(relative=0), seed=0, count=2)
    torch.testing.assert_close(scans.sinogram, ray_transform(geometry)(scans.truth))


@pytest.mark.parametrize("phantom", ["ellipses", "shepp-logan", "random-shepp-logan"])
def test_a_finer_grid_avoids_the_inverse_crime(phantom: str) -> None:
    """The data differ from A x, by little, and the truth is the mean over a pixel."""
    geometry = case_geometry("sparse-8")
    source = image_source(phantom, (128, 128), seed=0)
    (fine,) = scan_batches(source, geometry, common_noise(relative=0), seed=0, count=2, scanner=Scanner(grid_factor=3))
    (coarse,) = scan_batches(source, geometry, common_noise(relative=0), seed=0, count=2)
    assert fine.truth.shape == coarse.truth.shape
    projected = ray_transform(geometry)(fine.truth)
    difference = float((fine.sinogram - projected).norm() / projected.norm())
    assert 1e-4 < difference < 0.05
    assert float((fine.truth - coarse.truth).norm() / coarse.truth.norm()) < 0.35


def test_images_of_a_file_are_split_into_equal_pixels(tmp_path) -> None:
    images = np.random.default_rng(0).random((2, 6, 9)).astype(np.float32)
    np.save(tmp_path / "images.npy", images)
    fine = image_source(str(tmp_path / "images.npy"), (6, 9), seed=0).images(0, 2, 2)
    assert fine.shape == (2, 1, 12, 18)
    np.testing.assert_array_equal(fine[:, 0, ::2, ::2].numpy(), images)
    np.testing.assert_array_equal(fine[:, 0, 1::2, 1::2].numpy(), images)


def test_scans_come_out_of_the_cache_as_they_went_in(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("BAYESCADE_CACHE", str(tmp_path))
    geometry = case_geometry("sparse-8")
    source = image_source("ellipses", (128, 128), seed=0)
    first = scan_set(source, geometry, Noise(), seed=0, count=3)
    assert len(list(tmp_path.glob("*.npz"))) == 1
    again = scan_set(source, geometry, Noise(), seed=0, count=3)
    assert torch.equal(first.sinogram, again.sinogram)
    assert torch.equal(first.truth, again.truth)
    scan_set(source, geometry, common_noise(relative=0.02), seed=0, count=3)
    scan_set(source, geometry, Noise(), seed=1, count=3)
    scan_set(source, case_geometry("sparse-9"), Noise(), seed=0, count=3)
    assert len(list(tmp_path.glob("*.npz"))) == 4


def test_runs_cover_all_images_once() -> None:
    runs = list(chunks(case_geometry("sparse-32"), 250))
    assert [first for first, _ in runs] == [0, 100, 200]
    assert sum(count for _, count in runs) == 250


@pytest.mark.parametrize("factor", [0, -1, 9])
def test_a_bad_grid_factor_is_named(factor: int) -> None:
    with pytest.raises(UserError, match="from 1 to 8"):
        Scanner(grid_factor=factor)
