"""Models by name: methods for any geometry, and (with their weights) the zoo."""

from collections.abc import Sequence
from typing import Any

import torch

from bayescade import methods, shelf
from bayescade.config import load_settings
from bayescade.errors import UserError
from bayescade.physics.geometry import Geometry
from bayescade.results import Reconstructor


def load_model(
    name: str,
    geometry: Geometry | None = None,  # for models of any geometry
    *,
    settings: Sequence[str] = (),  # "key=value"
    device: torch.device | str = "cpu",
) -> Reconstructor:
    """The model of that name, ready to be called with sinograms."""
    known = [model["name"] for model in list_models()]
    if name not in known:
        raise UserError(shelf.unknown("model", name, known))
    if not isinstance(geometry, Geometry):
        raise UserError(f"model '{name}' works for any geometry: say which, e.g. case_geometry('sparse-32')")
    method = shelf.take(methods, name)
    model: Reconstructor = method.build(geometry, load_settings(method.Settings, overrides=settings), device)
    return model


def list_models() -> list[dict[str, Any]]:
    """What there is, each with its name, method, geometry and a sentence."""
    rows = []
    for name in shelf.names(methods):
        method = shelf.take(methods, name)
        if method.ANY_GEOMETRY:
            sentence = (method.__doc__ or "").split("\n")[0]
            rows.append({"name": name, "method": name, "case": "any", "weights": None, "about": sentence})
    return rows
