"""Reconstruction methods, one per file.

A file has, in this order: a sentence, the settings, the functions that build or train the method, and its class. A
method for any geometry has `build`. A method whose weights are trained for one inverse problem has `preset`, `train`
and `load`.
"""

from types import ModuleType

KIND = "method"


def required(method: ModuleType) -> dict[str, str]:
    """The names that the file of a method must define, and the purpose of each name."""
    names = {
        "Settings": "the frozen dataclass of its settings",
        "ANY_GEOMETRY": "True for a method for any geometry, False if its weights are trained for one problem",
    }
    if getattr(method, "ANY_GEOMETRY", True):
        return {**names, "build": "build(geometry, settings, device), which returns the method for a geometry"}
    return {
        **names,
        "preset": "preset(name, views, arc_degrees), which returns the settings of that preset",
        "train": "train(data, settings, run, seed=, report=, processes=), which trains and saves to a run folder",
        "load": "load(name, problem, manifest, weights, overrides), which returns the trained method",
    }
