"""bayescade: reconstruct an image from tomographic data with a learned cascade, and say how sure it is."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "FanBeam",
    "ParallelBeam",
    "Reconstruction",
    "__version__",
    "case_geometry",
    "load_model",
    "ray_transform",
]

# Where each public name lives. It is imported when it is first asked for: `bayescade --help` needs no torch.
_HOMES = {
    "FanBeam": "bayescade.physics.geometry",
    "ParallelBeam": "bayescade.physics.geometry",
    "Reconstruction": "bayescade.results",
    "case_geometry": "bayescade.physics.cases",
    "load_model": "bayescade.models",
    "ray_transform": "bayescade.projectors",
}

if TYPE_CHECKING:
    from bayescade.models import load_model
    from bayescade.physics.cases import case_geometry
    from bayescade.physics.geometry import FanBeam, ParallelBeam
    from bayescade.projectors import ray_transform
    from bayescade.results import Reconstruction


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bayescade' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
