"""Methods, one file each: a sentence, its settings, how to build or train it, and the class, in this order.

A method for any geometry has `build`; one whose weights belong to an inverse problem has `preset`, `train` and `load`.
"""

from types import ModuleType

KIND = "method"


def required(method: ModuleType) -> dict[str, str]:
    """The names that a method must have, and what each is for."""
    names = {
        "Settings": "the frozen dataclass of its settings",
        "ANY_GEOMETRY": "True for a method for any geometry, False for one whose weights belong to a problem",
    }
    if getattr(method, "ANY_GEOMETRY", True):
        return {**names, "build": "build(geometry, settings, device), which gives the method for a geometry"}
    return {
        **names,
        "preset": "preset(name, views, arc_degrees), which gives the settings of that name",
        "train": "train(data, settings, run, seed=, report=, processes=), which fills a run folder",
        "load": "load(name, problem, manifest, weights, overrides), which gives the trained method",
    }
