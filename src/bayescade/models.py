"""Models by name: methods for any geometry, shipped weights (`bdgd-plus/sparse-32`), and run folders.

The code for scans is imported only when a scan needs it, so a model for another problem works without it.
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
from bayescade.storage.weights import Tensors, read_blocks

if TYPE_CHECKING:
    from bayescade.physics.geometry import Geometry

ZOO = Path(__file__).parent / "zoo"  # folders method/case with manifest, weights and card
BLOCKS = "blocks="  # a setting of models whose blocks were trained together
ANY, ANY_MODEL = "any", "bdgd-plus/any"  # the short and the full name of the model for any scan


def load_model(
    name: str,  # a method for any geometry, a model of the zoo, or a run folder
    geometry: "Geometry | None" = None,  # for methods for any geometry; a trained model stores its geometry
    *,
    problem: InverseProblem | None = None,  # required for a model that was trained for a problem that is not a scan
    settings: Mapping[str, Any] | Sequence[str] = (),  # {"key": value}, or "key=value"
    device: torch.device | str = "cpu",
) -> Reconstructor:
    """The model of that name, ready to be called with sinograms or other data.

    A model for any scan is called with `geometry=` too, unless a geometry is given here. The setting `blocks` takes only the
    first blocks of its cascade, which is faster and less exact.
    """
    texts = settings_texts(settings)
    folder = model_folder(name)
    if folder is None:
        from bayescade.physics.geometry import Geometry

        if not isinstance(geometry, Geometry):
            raise UserError(f"model '{name}' works for any geometry: give a geometry, e.g. case_geometry('sparse-32')")
        method = plugins.load(methods, name)
        model: Reconstructor = method.build(geometry, load_settings(method.Settings, overrides=texts), device)
        return model
    manifest = read_manifest(folder)
    method = plugins.load(methods, manifest.method)
    if method.ANY_GEOMETRY:
        raise UserError(f"{folder}: the manifest is damaged: its method is '{manifest.method}', which has no weights")
    weights = read_blocks(folder, manifest)
    if any(text.startswith(BLOCKS) for text in texts) and manifest.joint is not None:
        weights = first_blocks(weights, [text for text in texts if text.startswith(BLOCKS)][-1])
        texts = [text for text in texts if not text.startswith(BLOCKS)]
    if is_for_any_scan(manifest):
        from bayescade.methods._any_scan import AnyScanModel

        any_scan = AnyScanModel(name, manifest, weights, method.load, texts, torch.device(device))
        return any_scan.bound(geometry) if geometry is not None else any_scan
    if problem is not None:
        check_problem(name, manifest, problem)
    problem = problem or problem_of(name, manifest, geometry, device)
    trained: Reconstructor = method.load(name, problem, manifest, weights, texts)
    return trained


def first_blocks(
    weights: list[Tensors],
    text: str,  # "blocks=8"
) -> list[Tensors]:
    """The weights of the first blocks."""
    count = text.removeprefix(BLOCKS)
    if not count.isascii() or not count.isdigit() or not 1 <= int(count) <= len(weights):
        raise UserError(f"setting blocks: expected a whole number from 1 to {len(weights)}, got {count:.40}")
    return weights[: int(count)]


def is_for_any_scan(manifest: Manifest) -> bool:
    """Whether a model normalises its scans, and so works for any geometry."""
    return "scans" in manifest.settings


def check_problem(name: str, manifest: Manifest, problem: InverseProblem) -> None:
    """Raises if the model was trained for another problem."""
    if not isinstance(problem, InverseProblem):
        raise UserError(f"problem: expected an InverseProblem, got {type(problem).__name__}")
    if manifest.problem is None:
        raise UserError(
            f"model '{name}' is for the scan {manifest.case}: expected a geometry or nothing, got a problem; "
            "remove problem="
        )
    description = problem.describe()
    for key, value in manifest.problem.items():
        if description.get(key) != value:
            raise UserError(
                f"model '{name}' was trained for a problem with {key} {value}, this problem has {description.get(key)}"
            )


def problem_of(
    name: str, manifest: Manifest, geometry: "Geometry | None", device: torch.device | str
) -> InverseProblem:
    """The scan for which a model was trained; raises if that was not a scan, or if its geometry is not `geometry`."""
    from bayescade.physics.geometry import geometry_difference
    from bayescade.projectors import scan_problem

    trained_geometry = geometry_of(name, manifest)
    difference = geometry_difference(trained_geometry, geometry) if geometry is not None else None
    if difference is not None:
        raise UserError(
            f"model '{name}' is for {manifest.case}: {difference}; "
            f"train a model for this scan: bayescade train {manifest.method} --geometry ... --out RUN"
        )
    return scan_problem(trained_geometry, device, manifest.settings["data"]["ramp"])


def geometry_of(name: str, manifest: Manifest) -> "Geometry":
    """The geometry for which a model was trained; raises if the model was not trained for a scan."""
    from bayescade.physics.geometry import geometry_from_json

    if manifest.geometry is None:
        raise UserError(
            f"model '{name}' is for the problem '{manifest.case}', which is not a scan; from Python: "
            "load_model(folder, problem=...)"
        )
    return geometry_from_json(manifest.geometry)


def model_folder(name: str) -> Path | None:
    """The folder with the weights of a model; None for a model without weights; raises if there is no such model."""
    if name == ANY:
        shipped = shipped_folder(ANY_MODEL)
        if shipped is None:
            raise UserError(
                "model 'any' is not shipped with this version; train one: bayescade train bdgd-plus --preset any --out RUN, "
                "or name another model: bayescade models"
            )
        return shipped
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
            f"{name}: expected a run folder, but there is no {MANIFEST} in it; make a run folder with: bayescade train"
        )
    known = [model["name"] for model in list_models()]
    if is_method:
        shipped_names = [model for model in known if model.startswith(f"{name}/")]
        shipped_models = f"shipped: {', '.join(shipped_names)}" if shipped_names else "no model is shipped"
        raise UserError(
            f"model '{name}': its weights belong to a geometry ({shipped_models}); train it: bayescade train {name}"
        )
    raise UserError(plugins.unknown("model", name, [*known, "a run folder"]))


def shipped_folder(name: str) -> Path | None:
    """The folder of the shipped model `method/case`; None if no shipped model has that name."""
    method, _, case = name.partition("/")
    if method not in plugins.names(methods) or Path(case).name != case or not case:
        return None
    folder = ZOO / method / case
    return folder if os.path.exists(folder / MANIFEST) else None


def model_scan(name: str) -> "tuple[str, Geometry] | None":
    """The case and the geometry for which a model was trained; None for a model for any geometry."""
    folder = model_folder(name)
    if folder is None:
        return None
    manifest = read_manifest(folder)
    if manifest.geometry is None and is_for_any_scan(manifest):
        return None
    return manifest.case, geometry_of(name, manifest)


def dedicated_model(geometry: "Geometry") -> str | None:
    """The shipped BDGD+ that was trained for this geometry alone; None if there is none."""
    from bayescade.physics.geometry import geometry_difference

    for folder in sorted((ZOO / "bdgd-plus").glob(f"*/{MANIFEST}")):
        name = f"bdgd-plus/{folder.parent.name}"
        scan = model_scan(name)
        if scan is not None and geometry_difference(scan[1], geometry) is None:
            return name
    return None


def list_models() -> list[dict[str, Any]]:
    """All models, each with name, method, case, folder, scores and a sentence about the method."""
    models: list[dict[str, Any]] = []
    for name in plugins.names(methods):
        entry = {"name": name, "method": name, "case": "any", "folder": None, "scores": None}
        try:
            method = plugins.load(methods, name)
        except UserError as error:  # a plugin that cannot be imported does not hide the other models
            models.append({**entry, "case": "unknown", "about": " ".join(str(error).split())})
            continue
        sentence = (method.__doc__ or "").split("\n")[0]
        if method.ANY_GEOMETRY:
            models.append({**entry, "about": sentence})
        for manifest_path in sorted((ZOO / name).glob(f"*/{MANIFEST}")):
            folder = manifest_path.parent
            fields = {"name": f"{name}/{folder.name}", "method": name, "folder": str(folder)}
            try:
                manifest = read_manifest(folder)
                models.append({**fields, "case": manifest.case, "scores": manifest.scores, "about": sentence})
            except UserError:
                models.append(
                    {**fields, "case": folder.name, "scores": None, "about": "damaged: install bayescade again"}
                )
    return models
