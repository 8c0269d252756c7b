"""A model for any scan: trained, resumed, loaded, in any units, and as the start of a training for one scan."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import bayescade
from bayescade.errors import UserError
from bayescade.models import load_model
from bayescade.phantoms import ellipses
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.pipeline import any_scans
from bayescade.pipeline.train import train
from bayescade.projectors import ray_transform
from bayescade.storage.manifest import read_manifest

SETTINGS = [
    "data.images=12",
    "data.validation_images=4",
    "greedy.blocks=2",
    "greedy.restarts=0",
    "fit.epochs=1",
    "fit.batch=4",
    "block.channels=4",
    "block.memory_channels=2",
    "scans.geometries.most_views=20",
    "scans.planes=filtered-residual, noise, coverage, coarse",
]
SCANS: list[Geometry] = [
    ParallelBeam(0.3 + np.arange(9) * math.pi / 9, 29, 0.9, 0.2, image_shape=(20, 18)),
    FanBeam(np.arange(12) * math.pi / 6, 41, 1.2, image_shape=(20, 18), source_origin=60.0, source_detector=90.0),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two blocks, trained for a second on images of 16 x 16 and 20 x 20."""
    path = tmp_path_factory.mktemp("any") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(any_scans, "SIZES", {16: 0.5, 20: 0.5})
        train("bdgd-plus", str(path), preset="any", settings=SETTINGS, device="cpu")
    return path


def sinogram(geometry: Geometry) -> torch.Tensor:
    return ray_transform(geometry)(ellipses.generate(2, geometry.image_shape, seed=1))


@pytest.mark.parametrize("geometry", SCANS, ids=["parallel", "fan"])
def test_it_works_for_any_geometry_and_size(folder: Path, geometry: Geometry) -> None:
    result = load_model(str(folder))(sinogram(geometry), samples=3, geometry=geometry)
    assert result.image.shape == (2, 1, 20, 18)
    assert bool((result.std > 0).all())
    assert result.geometry == geometry.to_json()
    bound = load_model(str(folder), geometry)(sinogram(geometry), samples=3)
    assert torch.equal(bound.image, result.image)


@pytest.mark.parametrize("geometry", SCANS, ids=["parallel", "fan"])
def test_units_do_not_matter(folder: Path, geometry: Geometry) -> None:
    """Lengths in another unit and values times 1000: the same answer to 1e-4, in the user's units."""
    names = (*geometry.length_names(), "offset")
    other = dataclasses.replace(geometry, **{name: 0.3 * getattr(geometry, name) for name in names})
    model = load_model(str(folder), settings=["inference.runner=plain"])
    y = sinogram(geometry)
    expected, scaled = model(y, samples=3, geometry=geometry), model(y * 300, samples=3, geometry=other)
    largest = float(expected.image.max())
    torch.testing.assert_close(scaled.image / 1000, expected.image, rtol=0, atol=1e-4 * largest)
    torch.testing.assert_close(scaled.variance / 1e6, expected.variance, rtol=1e-3, atol=1e-9)


def test_images_of_a_batch_have_their_own_units(folder: Path) -> None:
    model = load_model(str(folder), SCANS[0], settings=["inference.runner=plain"])
    y = sinogram(SCANS[0])[:1]
    both = model(torch.cat([y, 50 * y]), samples=2)
    torch.testing.assert_close(both.image[1] / 50, both.image[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(both.variance[1] / 2500, both.variance[0], rtol=1e-2, atol=1e-8)


def test_what_is_missing_is_said(folder: Path) -> None:
    with pytest.raises(UserError, match="works for any geometry: give that of the scan"):
        load_model(str(folder))(sinogram(SCANS[0]))
    with pytest.raises(UserError, match="expected geometry=ParallelBeam"):
        load_model(str(folder))(sinogram(SCANS[0]), geometry="sparse-32")
    with pytest.raises(UserError, match="has its geometry already"):
        load_model(str(folder), SCANS[0])(sinogram(SCANS[0]), geometry=SCANS[1])


def test_a_killed_training_continues_with_the_same_blocks(folder: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(any_scans, "SIZES", {16: 0.5, 20: 0.5})
        one_block = [text if "blocks" not in text else "greedy.blocks=1" for text in SETTINGS]
        train("bdgd-plus", str(tmp_path / "run"), preset="any", settings=one_block, device="cpu")
        train("bdgd-plus", str(tmp_path / "run"), preset="any", settings=SETTINGS, device="cpu")
    whole, resumed = read_manifest(folder), read_manifest(tmp_path / "run")
    assert [block.sha256 for block in whole.blocks] == [block.sha256 for block in resumed.blocks]


def test_a_training_starts_from_it_and_says_what_it_gained(folder: Path, tmp_path: Path) -> None:
    geometry = tmp_path / "geo.toml"
    geometry.write_text("bins = 29\nviews = 9\nimage_shape = [20, 20]\n")
    images = tmp_path / "images.npy"
    np.save(images, ellipses.generate(12, (24, 24), seed=5)[:, 0].numpy())
    few = ["data.images=8", "data.validation_images=3", "fit.epochs=1"]
    said = train(
        "bdgd-plus", str(tmp_path / "tuned"), start_from=str(folder), geometry_file=str(geometry), images=str(images),
        settings=few, device="cpu",
    )  # fmt: skip
    manifest = read_manifest(tmp_path / "tuned")
    assert manifest.start is not None
    assert said["start_psnr"] == manifest.start["validation_psnr"]
    assert said["blocks"] == 2
    assert manifest.settings["block"]["channels"] == 4  # those of the model
    assert f"Started from** {folder}" in (tmp_path / "tuned" / "card.md").read_text()
    again = train(
        "bdgd-plus", str(tmp_path / "tuned"), start_from=str(folder), geometry_file=str(geometry), images=str(images),
        settings=few, device="cpu",
    )  # fmt: skip
    assert again["validation_psnr"] == said["validation_psnr"]
    with pytest.raises(UserError, match="expected a scan to train for"):
        train("bdgd-plus", str(tmp_path / "other"), start_from=str(folder), device="cpu")
    with pytest.raises(UserError, match="expected a model of bdgd-plus for any scan"):
        train("bdgd-plus", str(tmp_path / "other"), start_from="bdgd-plus/sparse-32", case="sparse-32", device="cpu")


def test_a_training_without_steps_starts_where_the_model_is(folder: Path, tmp_path: Path) -> None:
    """With a learning rate of nearly 0 the tuned model is the model it started from."""
    geometry = tmp_path / "geo.toml"
    geometry.write_text("bins = 29\nviews = 9\nimage_shape = [20, 20]\n")
    still = ["data.images=4", "data.validation_images=3", "fit.epochs=1", "fit.learning_rate=1e-12"]
    still += ["fit.final_learning_rate=1e-12", "greedy.sampling=mean"]
    said = train(
        "bdgd-plus", str(tmp_path / "still"), start_from=str(folder), geometry_file=str(geometry), settings=still,
        device="cpu",
    )  # fmt: skip
    assert said["validation_psnr"] == pytest.approx(said["start_psnr"], abs=1e-3)


def test_one_scan_can_be_trained_in_the_same_way(tmp_path: Path) -> None:
    geometry = tmp_path / "geo.toml"
    geometry.write_text("bins = 29\nviews = 9\nimage_shape = [16, 16]\n")
    said = train(
        "bdgd-plus", str(tmp_path / "one"), preset="any", geometry_file=str(geometry), settings=SETTINGS, device="cpu"
    )
    assert said["blocks"] == 2
    assert read_manifest(tmp_path / "one").geometry is not None


def test_unknown_planes_are_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="setting planes"):
        train("bdgd-plus", str(tmp_path / "x"), preset="any", settings=["scans.planes=colour"], device="cpu")


def test_the_public_names() -> None:
    assert bayescade.load_model is load_model
