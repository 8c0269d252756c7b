"""Models by name: methods for any geometry, shipped weights (`bdgd-plus/sparse-32`), and run folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bayescade import methods, shelf
from bayescade.config import load_settings
from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry, geometry_from_json
from bayescade.results import Reconstructor
from bayescade.runs import MANIFEST, read_blocks, read_manifest

ZOO = Path(__file__).parents[1] / "zoo"  # method/case/manifest.json, weights and card


def load_model(
    name: str,  # a method for any geometry, a model of the zoo, or a run folder
    geometry: Geometry | None = None,  # for models of any geometry; others know theirs
    *,
    settings: Sequence[str] = (),  # "key=value"
    device: torch.device | str = "cpu",
) -> Reconstructor:
    """The model of that name, ready to be called with sinograms."""
    folder = model_folder(name)
    if folder is not None:
        return load_folder(name, folder, geometry, settings=settings, device=device)
    if not isinstance(geometry, Geometry):
        raise UserError(f"model '{name}' works for any geometry: say which, e.g. case_geometry('sparse-32')")
    method = shelf.take(methods, name)
    model: Reconstructor = method.build(geometry, load_settings(method.Settings, overrides=settings), device)
    return model


def model_folder(name: str) -> Path | None:
    """Where the weights of a model are; None for a model without; raises when there is no such model."""
    models = list_models()
    for model in models:
        if model["name"] == name:
            return Path(model["folder"]) if model["folder"] else None
    if (Path(name) / MANIFEST).exists():
        return Path(name)
    if Path(name).is_dir():
        raise UserError(
            f"{name}: expected a run folder, but there is no {MANIFEST} in it; train one with: bayescade train"
        )
    known = [model["name"] for model in models]
    if name in shelf.names(methods):
        own = [model for model in known if model.startswith(f"{name}/")]
        shipped = f"shipped: {', '.join(own)}" if own else "none is shipped yet"
        raise UserError(
            f"model '{name}': its weights belong to a geometry ({shipped}); train one: bayescade train {name}"
        )
    raise UserError(shelf.unknown("model", name, [*known, "a run folder"]))


def load_folder(
    name: str, folder: Path, geometry: Geometry | None, *, settings: Sequence[str], device: torch.device | str
) -> Reconstructor:
    """A trained model from its folder."""
    manifest = read_manifest(folder)
    own = geometry_from_json(manifest["geometry"])
    if geometry is not None and geometry != own:
        raise UserError(
            f"model '{name}' is for {manifest['case']} ({describe(own)}), not for {describe(geometry)}; "
            f"train one for this scan: bayescade train {manifest['method']} --geometry ... --out RUN"
        )
    method = shelf.take(methods, manifest["method"])
    model: Reconstructor = method.load(
        name, method.BLOCK, own, manifest["settings"], read_blocks(folder, manifest), settings, device
    )
    return model


def model_scan(name: str) -> tuple[str, Geometry] | None:
    """The case and the geometry a model belongs to; None for a model of any geometry."""
    folder = model_folder(name)
    if folder is None:
        return None
    manifest = read_manifest(folder)
    return manifest["case"], geometry_from_json(manifest["geometry"])


def describe(geometry: Geometry) -> str:
    """A scan in a few words."""
    height, width = geometry.image_shape
    return f"{geometry.views} views x {geometry.bins} bins, {height} x {width} pixels"


def list_models() -> list[dict[str, Any]]:
    """What there is, each with its name, method, geometry, scores and a sentence."""
    rows: list[dict[str, Any]] = []
    for name in shelf.names(methods):
        method = shelf.take(methods, name)
        sentence = (method.__doc__ or "").split("\n")[0]
        if method.ANY_GEOMETRY:
            rows.append(
                {"name": name, "method": name, "case": "any", "folder": None, "scores": None, "about": sentence}
            )
        for manifest_path in sorted((ZOO / name).glob(f"*/{MANIFEST}")):
            manifest = read_manifest(manifest_path.parent)
            rows.append(
                {
                    "name": f"{name}/{manifest_path.parent.name}",
                    "method": name,
                    "case": manifest["case"],
                    "folder": str(manifest_path.parent),
                    "scores": manifest.get("scores"),
                    "about": sentence,
                }
            )
    return rows
