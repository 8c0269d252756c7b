"""A model for any scan: trained, resumed, loaded, in any units, and as the start of a training for one scan."""

import dataclasses
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import bayescade
from bayescade import models
from bayescade.cli import run
from bayescade.data.noise import Noise
from bayescade.data.scan import ScanWriter
from bayescade.data.simulate import Scans
from bayescade.errors import UserError
from bayescade.methods._any_scan import AnyScanModel
from bayescade.models import load_model
from bayescade.phantoms import ellipses
from bayescade.physics.cases import case_geometry
from bayescade.physics.geometry import FanBeam, Geometry, ParallelBeam
from bayescade.physics.symmetries import SYMMETRIES
from bayescade.pipeline import any_scans
from bayescade.pipeline.evaluate import evaluate
from bayescade.pipeline.pack import pack_model
from bayescade.pipeline.train import train
from bayescade.projectors import ray_transform
from bayescade.results import Reconstruction
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
    "scans.planes=level, filtered-residual, noise, coverage, coarse",
    "joint.epochs=1",
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


def test_fewer_blocks_give_an_image_too(folder: Path) -> None:
    """The first block alone, with its own variance; it is not the answer of both."""
    y = sinogram(SCANS[0])
    one, both = (load_model(str(folder), SCANS[0], settings=few)(y, samples=3) for few in (["blocks=1"], []))
    assert bool((one.std > 0).all())
    assert not torch.equal(one.image, both.image)
    assert torch.equal(load_model(str(folder), SCANS[0], settings={"blocks": 2})(y, samples=3).image, both.image)
    for blocks in ("0", "3", "x", ""):
        with pytest.raises(UserError, match=f"blocks: expected a whole number from 1 to 2, got {blocks}"):
            load_model(str(folder), SCANS[0], settings=[f"blocks={blocks}"])
    for name in ("bdgd-plus/sparse-32", "fbp"):
        with pytest.raises(UserError, match="blocks"):
            load_model(name, SCANS[0] if name == "fbp" else None, settings=["blocks=2"])


@pytest.mark.parametrize("geometry", SCANS, ids=["parallel", "fan"])
def test_a_turned_scan_has_the_turned_answer(folder: Path, geometry: Geometry) -> None:
    """Over all symmetries, if the weights have almost no deviation; with one symmetry the answers differ."""
    geometry = dataclasses.replace(geometry, image_shape=(20, 16))  # whole squares, see LEVEL_SQUARE
    y, symmetry = sinogram(geometry), SYMMETRIES[2]  # a mirror image has another estimate of its noise
    moved = symmetry.geometry(geometry)
    changes = []
    for settings in (["symmetries=8"], ["symmetries=1"]):
        model = load_model(str(folder), settings=settings)
        assert isinstance(model, AnyScanModel)
        for name, tensor in (item for tensors in model._weights for item in tensors.items()):
            if name.endswith("log_std"):
                tensor.fill_(-20)
        here, there = model(y, samples=8, geometry=geometry), model(symmetry.data(y), samples=8, geometry=moved)
        changes.append(float((symmetry.restored(there.image) - here.image).norm() / here.image.norm()))
    assert changes[0] < 0.1 * changes[1]


def test_variance_between_symmetries_is_a_part_of_the_epistemic_one(folder: Path) -> None:
    y = sinogram(SCANS[0])
    result = load_model(str(folder), SCANS[0])(y, samples=10)
    assert result.samples == 10
    assert result.epistemic is not None
    assert result.epistemic_symmetries is not None
    assert bool((result.epistemic >= result.epistemic_symmetries).all())
    assert float(result.epistemic_symmetries.mean()) > 0
    result.save(folder / "result.h5")
    assert torch.equal(Reconstruction.load(folder / "result.h5").epistemic_symmetries, result.epistemic_symmetries)
    one = load_model(str(folder), SCANS[0])(y, samples=1)
    assert one.epistemic_symmetries is None
    images = load_model(str(folder), SCANS[0]).sample_images(y, samples=10, seed=0)
    assert images.shape == (10, 2, 1, 20, 18)
    torch.testing.assert_close(images.mean(0), result.image, rtol=0, atol=0.2 * float(result.image.std()))
    for wrong in ("0", "9", "x"):
        with pytest.raises(UserError, match=r"symmetries=.*expected a whole number from 1 to 8"):
            load_model(str(folder), SCANS[0], settings=[f"symmetries={wrong}"])


def test_no_block_is_added_after_joint_training(folder: Path) -> None:
    more = [*SETTINGS, "greedy.blocks=3"]
    with pytest.raises(UserError, match=r"greedy.blocks = 2 \(now 3\)"):
        train("bdgd-plus", str(folder), preset="any", settings=more, device="cpu")


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


def test_a_killed_training_continues_with_the_same_blocks(tmp_path: Path) -> None:
    """Its greedy training; `tests/training/test_joint.py` has the joint training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(any_scans, "SIZES", {16: 0.5, 20: 0.5})
        for name, blocks in (("whole", 2), ("resumed", 1), ("resumed", 2)):
            settings = [*SETTINGS, "joint.epochs=0", f"greedy.blocks={blocks}"]
            train("bdgd-plus", str(tmp_path / name), preset="any", settings=settings, device="cpu")
    whole, resumed = read_manifest(tmp_path / "whole"), read_manifest(tmp_path / "resumed")
    assert len(whole.blocks) == 2
    assert [block.sha256 for block in whole.blocks] == [block.sha256 for block in resumed.blocks]


def test_a_training_starts_from_it_and_says_what_it_gained(folder: Path, tmp_path: Path) -> None:
    geometry = tmp_path / "geo.toml"
    geometry.write_text("bins = 29\nviews = 9\nimage_shape = [20, 20]\n")
    images = tmp_path / "images.npy"
    np.save(images, ellipses.generate(12, (24, 24), seed=5)[:, 0].numpy())
    few = ["data.images=8", "data.validation_images=3", "joint.epochs=1"]
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
    still = ["data.images=4", "data.validation_images=3", "joint.epochs=1", "joint.learning_rate=1e-12"]
    still += ["joint.final_learning_rate=1e-12", "greedy.sampling=mean"]
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


@pytest.fixture
def shipped(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zoo with the model for any scan and one for the first scan alone."""
    zoo = tmp_path / "zoo"
    pack_model(str(folder), str(zoo / "bdgd-plus" / "any"), half=True, device="cpu")
    shutil.copytree(models.ZOO / "bdgd-plus" / "sparse-8", zoo / "bdgd-plus" / "sparse-8")
    monkeypatch.setattr(models, "ZOO", zoo)


def scan_file(path: Path, geometry: Geometry) -> str:
    with ScanWriter(path, geometry, Noise(), seed=0) as writer:
        writer.append(Scans(sinogram(geometry), ellipses.generate(2, geometry.image_shape, seed=1)))
    return str(path)


@pytest.mark.usefixtures("shipped")
def test_a_scan_is_reconstructed_without_naming_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scan, out = scan_file(tmp_path / "scan.h5", SCANS[1]), str(tmp_path / "result.h5")
    arguments = ["--center", "stated", "--calibrate", "off", "--samples", "2", "--device", "cpu"]
    assert run(["reconstruct", scan, "-o", out, *arguments]) == 0
    assert "2 images by any" in capsys.readouterr().out
    assert bayescade.Reconstruction.load(out).geometry == SCANS[1].to_json()


@pytest.mark.usefixtures("shipped")
def test_a_model_for_this_scan_alone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scan, out = scan_file(tmp_path / "scan.h5", case_geometry("sparse-8")), str(tmp_path / "result.h5")
    assert run(["reconstruct", scan, "-o", out, "--calibrate", "off", "--samples", "2", "--device", "cpu"]) == 0
    assert (
        "bdgd-plus/sparse-8 was trained for this geometry alone: --model bdgd-plus/sparse-8" in capsys.readouterr().out
    )


@pytest.mark.usefixtures("shipped")
def test_it_is_evaluated_and_listed_as_other_models(capsys: pytest.CaptureFixture[str]) -> None:
    row = evaluate("any", case="sparse-8", images=1, samples=1, device="cpu")["rows"][0]
    assert row["psnr"] > 5
    assert row["uncertainty"] is not None
    assert run(["models"]) == 0
    assert "bdgd-plus/any " in capsys.readouterr().out


def test_without_the_shipped_model_the_command_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ZOO", tmp_path / "empty")
    with pytest.raises(UserError, match="train one: bayescade train bdgd-plus --preset any"):
        load_model("any", SCANS[0])


@pytest.mark.usefixtures("shipped")
def test_a_training_starts_from_the_packed_model(tmp_path: Path) -> None:
    """It has all that reconstruction needs."""
    geometry = tmp_path / "geo.toml"
    geometry.write_text("bins = 29\nviews = 9\nimage_shape = [20, 20]\n")
    few = ["data.images=4", "data.validation_images=2", "joint.epochs=1", "joint.learning_rate=1e-12"]
    few += ["joint.final_learning_rate=1e-12", "greedy.sampling=mean"]
    said = train(
        "bdgd-plus", str(tmp_path / "run"), start_from="any", geometry_file=str(geometry), settings=few, device="cpu"
    )
    assert said["validation_psnr"] == pytest.approx(said["start_psnr"], abs=1e-3)
    manifest = read_manifest(tmp_path / "run")
    assert manifest.start is not None
    assert manifest.start["model"] == "any"
