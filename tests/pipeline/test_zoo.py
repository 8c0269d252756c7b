"""Shipped models: whole, described, and as good as their cards say."""

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from bayescade import methods, plugins
from bayescade.config import load_settings
from bayescade.models import ANY_MODEL, ZOO, list_models, load_model
from bayescade.physics.cases import case_geometry
from bayescade.physics.geometry import measured_arc
from bayescade.pipeline.benchmark_any import AnyBenchmark, benchmark_any
from bayescade.pipeline.benchmark_paper import benchmark_paper
from bayescade.storage.manifest import read_manifest
from bayescade.storage.weights import read_blocks

# Models for one scan of the paper; the model for any scan has tests of its own.
SHIPPED = [model for model in list_models() if model["folder"] and model["name"] != ANY_MODEL]
METHODS = ("bdgd", "bdgd-plus", "dgd", "lpd", "unet")
MOST_BYTES = 48_000_000
MOST_BYTES_OF_ANY = 6_000_000
ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "benchmarks" / "reference.py"
# One of each method; that all models give what they gave is tested below.
SCORED = [next(model for model in SHIPPED if model["method"] == method) for method in METHODS]


def test_there_are_models_and_they_are_small() -> None:
    assert "bdgd-plus/sparse-32" in [model["name"] for model in SHIPPED]
    assert sum(path.stat().st_size for path in ZOO.rglob("*") if path.is_file()) < MOST_BYTES


def test_the_model_for_any_scan_is_whole_and_small() -> None:
    folder = ZOO / ANY_MODEL
    manifest = read_manifest(folder)
    assert len(read_blocks(folder, manifest)) == len(manifest.blocks)
    assert manifest.joint is not None
    assert manifest.joint.done
    assert f"{manifest.training_seconds:.1f} s on" in (folder / "card.md").read_text()
    assert sum(path.stat().st_size for path in folder.iterdir()) < MOST_BYTES_OF_ANY


@pytest.mark.slow
def test_the_model_for_any_scan_is_above_total_variation() -> None:
    """Two ellipses from 32 views on a finer grid; the table of `benchmark any` has more."""
    (row,) = benchmark_any(AnyBenchmark(images=2, validation_images=1, samples=2, rows="ellipses-views-32-turned"))[
        "rows"
    ]
    assert row["psnr"] > row["psnr_tv"] + 0.5


@pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model["name"])
def test_weights_card_and_manifest_belong_together(model: dict) -> None:
    folder = Path(model["folder"])
    manifest = read_manifest(folder)
    assert len(read_blocks(folder, manifest)) == len(manifest.blocks)
    assert manifest.method == model["method"]
    card = (folder / "card.md").read_text()
    assert f"{manifest.training_seconds:.1f} s on" in card
    assert manifest.scores is not None
    assert f"{manifest.scores['psnr']:.2f} dB on the ellipses" in card
    assert "Not for" in card
    assert load_model(model["name"]).data_shape[-1] == 183


@pytest.mark.slow
@pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model["name"])
def test_a_model_gives_what_it_gave(model: dict) -> None:
    """The stored pixels of one scan, by the plain layers; benchmarks/reference.py compares all scans and maps."""
    method, case = model["name"].split("/")
    stored = np.load(REFERENCE.with_suffix(".npz"))[f"{model['name']}:plain:image"][-1]
    spec = importlib.util.spec_from_file_location("reference", REFERENCE)
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    settings = reference.RUNNERS["plain"] if method in ("dgd", "bdgd", "bdgd-plus") else []
    loaded = load_model(model["name"], settings=settings)
    image = loaded(reference.scans(case)[-1:], samples=reference.SAMPLES, seed=0).image.flatten().numpy()
    pixels = np.random.default_rng(0).choice(image.size, reference.PIXELS, replace=False)
    # Stored in a batch of four scans: alone, the sums of a convolution are rounded otherwise.
    assert np.linalg.norm(image[pixels] - stored) < 1e-4 * np.linalg.norm(stored)


@pytest.mark.slow
@pytest.mark.parametrize("model", SCORED, ids=lambda model: model["name"])
def test_scores_are_those_of_the_card(model: dict) -> None:
    """The Shepp-Logan phantom of the paper's test set, with the samples and the noise of the card."""
    scores = model["scores"]
    settings = {name: scores[name] for name in ("samples", "seed")}
    row = benchmark_paper([model["name"]], images=1, noise_seeds=1, **settings)["rows"][0]
    assert row["psnr_shepp_logan"] == pytest.approx(scores["psnr_shepp_logan"], abs=0.05)


@pytest.mark.parametrize("model", SHIPPED, ids=lambda model: model["name"])
def test_a_configuration_trains_it_again(model: dict) -> None:
    method_name, case = model["name"].split("/")
    method = plugins.load(methods, method_name)
    path = ROOT / "configs" / "paper" / f"{method_name}_{case}.toml"
    geometry = case_geometry(case)
    base = method.preset("recommended", geometry.views, measured_arc(geometry))
    asked = load_settings(method.Settings, str(path), base=base)
    stored = read_manifest(model["folder"]).settings
    for part, values in dataclasses.asdict(asked).items():
        if part != "inference":
            assert values == {**values, **stored[part]}, part
