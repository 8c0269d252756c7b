"""Models by name: methods for any geometry, shipped weights (`bdgd-plus/sparse-32`), and run folders.

The code of scans is imported only when it is needed: a model for another problem does not need it.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bayescade import methods, plugins
from bayescade.config import load_settings, settings_texts
from bayescade.errors import UserError
from bayescade.physics.problem import InverseProblem
from bayescade.results import Reconstructor
from bayescade.storage.manifest import MANIFEST, Manifest, read_manifest
from bayescade.storage.weights import read_blocks

if TYPE_CHECKING:
    from bayescade.physics.geometry import Geometry

ZOO = Path(__file__).parent / "zoo"  # method/case/manifest.json, weights and card


def load_model(
    name: str,  # a method for any geometry, a model of the zoo, or a run folder
    geometry: "Geometry | None" = None,  # for methods for any geometry; trained models have theirs
    *,
    problem: InverseProblem | None = None,  # for a model that was trained for a problem of your own
    settings: Mapping[str, Any] | Sequence[str] = (),  # {"key": value}, or "key=value"
    device: torch.device | str = "cpu",
) -> Reconstructor:
    """The model of that name, ready to be called with sinograms or other data."""
    texts = settings_texts(settings)
    folder = model_folder(name)
    if folder is None:
        from bayescade.physics.geometry import Geometry

        if not isinstance(geometry, Geometry):
            raise UserError(f"model '{name}' works for any geometry: give one, e.g. case_geometry('sparse-32')")
        method = plugins.load(methods, name)
        model: Reconstructor = method.build(geometry, load_settings(method.Settings, overrides=texts), device)
        return model
    manifest = read_manifest(folder)
    method = plugins.load(methods, manifest.method)
    if method.ANY_GEOMETRY:
        raise UserError(
            f"{folder}: its manifest names the method '{manifest.method}', which has no weights; it is damaged"
        )
    if problem is not None:
        check_problem(name, manifest, problem)
    problem = problem or problem_of(name, manifest, geometry, device)
    trained: Reconstructor = method.load(name, problem, manifest, read_blocks(folder, manifest), texts)
    return trained


def check_problem(name: str, manifest: Manifest, problem: InverseProblem) -> None:
    """Raises when a model was trained for something else."""
    if not isinstance(problem, InverseProblem):
        raise UserError(f"problem: expected an InverseProblem, got {type(problem).__name__}")
    if manifest.problem is None:
        raise UserError(f"model '{name}' is for the scan {manifest.case}: give its geometry, or none, not a problem")
    now = problem.describe()
    for key, value in manifest.problem.items():
        if now.get(key) != value:
            raise UserError(f"model '{name}' was trained for a problem with {key} {value}, this one has {now.get(key)}")


def problem_of(
    name: str, manifest: Manifest, geometry: "Geometry | None", device: torch.device | str
) -> InverseProblem:
    """The scan that a model was trained for; raises when another scan is requested, or when it was not trained for a scan."""
    from bayescade.physics.geometry import geometry_difference
    from bayescade.projectors import scan_problem

    trained = geometry_of(name, manifest)
    difference = geometry_difference(trained, geometry) if geometry is not None else None
    if difference is not None:
        raise UserError(
            f"model '{name}' is for {manifest.case}: {difference}; "
            f"train one for this scan: bayescade train {manifest.method} --geometry ... --out RUN"
        )
    return scan_problem(trained, device, manifest.settings["data"]["ramp"])


def geometry_of(name: str, manifest: Manifest) -> "Geometry":
    """The geometry of a trained model; raises where it was not trained for a scan."""
    from bayescade.physics.geometry import geometry_from_json

    if manifest.geometry is None:
        raise UserError(
            f"model '{name}' is for the problem '{manifest.case}', which is not a scan; from Python: "
            "load_model(folder, problem=...)"
        )
    return geometry_from_json(manifest.geometry)


def model_folder(name: str) -> Path | None:
    """The folder of a model's weights; None for a model without weights; raises when there is no such model."""
    is_method = name in plugins.names(methods)
    if is_method and plugins.load(methods, name).ANY_GEOMETRY:
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
    if is_method:
        of_method = [model for model in known if model.startswith(f"{name}/")]
        shipped_models = f"shipped: {', '.join(of_method)}" if of_method else "none is shipped yet"
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


def model_scan(name: str) -> "tuple[str, Geometry] | None":
    """The case and the geometry a model belongs to; None for a model of any geometry."""
    folder = model_folder(name)
    if folder is None:
        return None
    manifest = read_manifest(folder)
    return manifest.case, geometry_of(name, manifest)


def list_models() -> list[dict[str, Any]]:
    """All models, each with its name, method, geometry, scores and a sentence."""
    models: list[dict[str, Any]] = []
    for name in plugins.names(methods):
        any_geometry = {"name": name, "method": name, "case": "any", "folder": None, "scores": None}
        try:
            method = plugins.load(methods, name)
        except UserError as error:  # a plugin that cannot be imported does not hide the other models
            models.append({**any_geometry, "case": "unknown", "about": " ".join(str(error).split())})
            continue
        sentence = (method.__doc__ or "").split("\n")[0]
        if method.ANY_GEOMETRY:
            models.append({**any_geometry, "about": sentence})
        for manifest_path in sorted((ZOO / name).glob(f"*/{MANIFEST}")):
            folder = manifest_path.parent
            row = {"name": f"{name}/{folder.name}", "method": name, "folder": str(folder)}
            try:
                manifest = read_manifest(folder)
                models.append({**row, "case": manifest.case, "scores": manifest.scores, "about": sentence})
            except UserError:
                models.append({**row, "case": folder.name, "scores": None, "about": "damaged: install bayescade again"})
    return models
