"""Models by name: methods for any geometry, shipped weights (`bdgd-plus/sparse-32`), and run folders."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayescade import methods, plugins
from bayescade.config import load_settings
from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry, geometry_from_json
from bayescade.results import Reconstructor
from bayescade.storage.runs import MANIFEST, read_blocks, read_manifest

CLOSE = 1e-5  # angles in radians, and lengths relative to themselves, that differ by less are the same
ZOO = Path(__file__).parent / "zoo"  # method/case/manifest.json, weights and card


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
    method = plugins.load(methods, name)
    model: Reconstructor = method.build(geometry, load_settings(method.Settings, overrides=settings), device)
    return model


def model_folder(name: str) -> Path | None:
    """Where the weights of a model are; None for a model without; raises when there is no such model."""
    on_shelf = name in plugins.names(methods)
    if on_shelf and plugins.load(methods, name).ANY_GEOMETRY:
        return None
    shipped = shipped_folder(name)
    if shipped is not None:
        return shipped
    if name and os.path.exists(Path(name) / MANIFEST):
        return Path(name)
    if name and os.path.isdir(name):
        raise UserError(
            f"{name}: expected a run folder, but there is no {MANIFEST} in it; train one with: bayescade train"
        )
    known = [model["name"] for model in list_models()]
    if on_shelf:
        own = [model for model in known if model.startswith(f"{name}/")]
        shipped_models = f"shipped: {', '.join(own)}" if own else "none is shipped yet"
        raise UserError(
            f"model '{name}': its weights belong to a geometry ({shipped_models}); train one: bayescade train {name}"
        )
    raise UserError(plugins.unknown("model", name, [*known, "a run folder"]))


def shipped_folder(name: str) -> Path | None:
    """The folder of a model of the zoo, `method/case`; None where there is none of that name."""
    method, _, case = name.partition("/")
    if method not in plugins.names(methods) or Path(case).name != case or not case:
        return None
    folder = ZOO / method / case
    return folder if os.path.exists(folder / MANIFEST) else None


def load_folder(
    name: str, folder: Path, geometry: Geometry | None, *, settings: Sequence[str], device: torch.device | str
) -> Reconstructor:
    """A trained model from its folder."""
    manifest = read_manifest(folder)
    own = geometry_from_json(manifest["geometry"])
    other = difference(own, geometry) if geometry is not None else None
    if other is not None:
        raise UserError(
            f"model '{name}' is for {manifest['case']}: {other}; "
            f"train one for this scan: bayescade train {manifest['method']} --geometry ... --out RUN"
        )
    method = plugins.load(methods, manifest["method"])
    if method.ANY_GEOMETRY:
        raise UserError(
            f"{folder}: its manifest names the method '{manifest['method']}', which has no weights; it is damaged"
        )
    model: Reconstructor = method.load(name, own, manifest, read_blocks(folder, manifest), settings, device)
    return model


def model_scan(name: str) -> tuple[str, Geometry] | None:
    """The case and the geometry a model belongs to; None for a model of any geometry."""
    folder = model_folder(name)
    if folder is None:
        return None
    manifest = read_manifest(folder)
    return manifest["case"], geometry_from_json(manifest["geometry"])


def difference(own: Geometry, other: Geometry) -> str | None:
    """What the two scans differ in, in words; None where it is nothing but rounding."""
    ours, theirs = json.loads(own.to_json()), json.loads(other.to_json())
    for key in ours:
        a, b = (np.asarray(values.get(key, "none")) for values in (ours, theirs))
        if a.shape != b.shape:
            return f"{key}: expected {a.size} of them, the scan has {b.size}"
        if a.dtype.kind == "f" or b.dtype.kind == "f":
            if np.allclose(a, b, rtol=CLOSE, atol=CLOSE):
                continue
        elif bool((a == b).all()):
            continue
        return f"{key}: expected {ours[key]!s:.60}, the scan has {theirs.get(key)!s:.60}"
    return None


def list_models() -> list[dict[str, Any]]:
    """What there is, each with its name, method, geometry, scores and a sentence."""
    rows: list[dict[str, Any]] = []
    for name in plugins.names(methods):
        method = plugins.load(methods, name)
        sentence = (method.__doc__ or "").split("\n")[0]
        if method.ANY_GEOMETRY:
            rows.append(
                {"name": name, "method": name, "case": "any", "folder": None, "scores": None, "about": sentence}
            )
        for manifest_path in sorted((ZOO / name).glob(f"*/{MANIFEST}")):
            folder = manifest_path.parent
            row = {"name": f"{name}/{folder.name}", "method": name, "folder": str(folder)}
            try:
                manifest = read_manifest(folder)
                rows.append({**row, "case": manifest["case"], "scores": manifest.get("scores"), "about": sentence})
            except UserError:
                rows.append({**row, "case": folder.name, "scores": None, "about": "damaged: install bayescade again"})
    return rows
