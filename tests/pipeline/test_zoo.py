"""Shipped models: whole, described, and as good as their cards say."""

import dataclasses
from pathlib import Path

import pytest

from bayescade import methods, plugins
from bayescade.config import load_settings
from bayescade.models import ZOO, list_models, load_model
from bayescade.physics.cases import case_geometry
from bayescade.physics.geometry import measured_arc
from bayescade.pipeline.benchmark_paper import benchmark_paper
from bayescade.storage.manifest import read_manifest
from bayescade.storage.weights import read_blocks

SHIPPED = [model for model in list_models() if model["folder"]]
MOST_BYTES = 24_000_000
ROOT = Path(__file__).parents[2]


def test_there_are_models_and_they_are_small() -> None:
    assert "bdgd-plus/sparse-32" in [model["name"] for model in SHIPPED]
    assert sum(path.stat().st_size for path in ZOO.rglob("*") if path.is_file()) < MOST_BYTES


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
