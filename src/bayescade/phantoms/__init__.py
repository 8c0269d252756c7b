"""Phantoms, one file per phantom.

A file has a docstring of one sentence and `generate(count, shape, *, seed, first, supersample, device)`.
"""

from types import ModuleType

KIND = "phantom"


def required(phantom: ModuleType) -> dict[str, str]:
    """The names that a phantom must have, and what each is for."""
    return {"generate": "generate(count, shape, *, seed, first, supersample, device), which gives images"}
