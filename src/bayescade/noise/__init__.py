"""Noise models, one file per model.

A file has a docstring of one sentence, `Settings`, `add(sinogram, settings, *, generators)` and `describe(settings)`.
"""

from types import ModuleType

KIND = "noise model"


def required(noise_model: ModuleType) -> dict[str, str]:
    """The names that a noise model must have, and what each is for."""
    return {
        "Settings": "the frozen dataclass of its settings",
        "add": "add(sinogram, settings, *, generators), which gives the sinograms with noise",
        "describe": "describe(settings), the noise in a few words",
    }
