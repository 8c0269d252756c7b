"""bayescade: reconstruct images and their uncertainty from tomographic data, with a learned cascade."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "FanBeam",
    "InverseProblem",
    "LinearOperator",
    "ParallelBeam",
    "Reconstruction",
    "Reconstructor",
    "__version__",
    "case_geometry",
    "load_model",
    "ray_transform",
    "train",
]

# The module of each public name. It is imported at first use, so that `bayescade --help` does not import torch.
_MODULES = {
    "FanBeam": "bayescade.physics.geometry",
    "InverseProblem": "bayescade.physics.problem",
    "LinearOperator": "bayescade.physics.operator",
    "ParallelBeam": "bayescade.physics.geometry",
    "Reconstruction": "bayescade.results",
    "Reconstructor": "bayescade.results",
    "case_geometry": "bayescade.physics.cases",
    "load_model": "bayescade.models",
    "ray_transform": "bayescade.projectors",
    "train": "bayescade.model_training",
}

if TYPE_CHECKING:
    from bayescade.model_training import train
    from bayescade.models import load_model
    from bayescade.physics.cases import case_geometry
    from bayescade.physics.geometry import FanBeam, ParallelBeam
    from bayescade.physics.operator import LinearOperator
    from bayescade.physics.problem import InverseProblem
    from bayescade.projectors import ray_transform
    from bayescade.results import Reconstruction, Reconstructor


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bayescade' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
