"""Converts manifests of format 1 (models of version 0.1.0, and runs older than format 2) to format 2.

The tables map the settings and tensors of format 1 (old) to those of format 2 (new). A setting has a dotted name
`part.key`: `key` in the table `part` of the settings.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bayescade.errors import UserError

RENAMED_SETTINGS: dict[str, str] = {  # old name -> new name
    "inference.draws": "inference.sampling",
    "inference.kernels": "inference.runner",
    "inference.features": "inference.precision",
    "fit.kernels": "fit.runner",
    "greedy.redraw": "greedy.resample",
}
RENAMED_VALUES: dict[str, dict[str, str]] = {  # new name -> (old value -> new value)
    "inference.runner": {"differences": "perturbation"},
    "greedy.refit": {"spread": "std"},
}
REMOVED_SETTINGS: dict[str, Any] = {  # old name -> the only value that this version supports
    "block.depth": 2,
    "greedy.beta": 1.0,
    "greedy.balance": 1.0,
    "greedy.warm_rate": 1.0,
    "greedy.weak_gain": 0.0,
    "greedy.least_gain": 0.05,
    "fit.posterior_rate": 1.0,
    "fit.balance": 1.0,
}
# Several old settings that became one new setting: (old names, {their values: (new name, new value)}).
JOINED_SETTINGS: tuple[tuple[tuple[str, ...], dict[tuple[Any, ...], tuple[str, str]]], ...] = (
    (
        ("block.variance_input", "block.variance_channels", "block.variance_depth", "block.variance_floor"),
        {
            ("inputs", 4, 1, 1e-6): ("block.variance", "inputs"),
            ("features", 16, 2, 1e-9): ("block.variance", "features"),
        },
    ),
    (
        ("greedy.warm_start", "greedy.revive", "greedy.gradient_level", "greedy.output_level"),
        {
            (True, 0.005, 0.3, 20.0): ("greedy.start", "revived"),
            (True, 0.0, 0.3, 20.0): ("greedy.start", "warm"),
            (False, 0.0, 0.0, 0.0): ("greedy.start", "fresh"),
        },
    ),
    (
        ("inference.draws", "inference.analytic"),
        {
            ("weights", True): ("inference.sampling", "weights"),
            ("weights", False): ("inference.sampling", "all-weights"),
            ("activations", False): ("inference.sampling", "activations"),
        },
    ),
    # The loss `elbo-as-released` now includes the jitter of the authors' code.
    (
        ("block.jitter", "greedy.loss"),
        {
            (0.0, "side-by-side"): ("greedy.loss", "side-by-side"),
            (0.0, "elbo"): ("greedy.loss", "elbo"),
            (1e-6, "elbo-as-released"): ("greedy.loss", "elbo-as-released"),
        },
    ),
)
RENAMED_TENSORS: dict[str, tuple[str, tuple[int, ...] | None]] = {  # old name -> new name, new shape (None: unchanged)
    "gradient_scale": ("input_scale", (1,)),
}

UNSUPPORTED = "this version has no such model; use the bayescade version that trained it, or train again"
ADDED_SETTINGS: dict[str, Any] = {  # settings that format 1 does not have: name -> value that behaves like format 1
    "block.memory_channels": 0,
    "data.ramp": "shifted",
}


def from_format_1(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the JSON values of a format 1 manifest to format 2; raises TypeError if they are damaged."""
    settings, blocks = values.get("settings"), values.get("blocks")
    if not isinstance(settings, dict) or not isinstance(blocks, list):
        raise TypeError("expected 'settings' and 'blocks'")
    if not all(isinstance(block, dict) for block in blocks):
        raise TypeError("expected tables in 'blocks'")
    return {
        **values,
        "format": 2,
        "settings": current_settings(settings),
        "hashed_inference": settings.get("inference"),
        "blocks": [{**block, "format": 1} for block in blocks],
    }


def current_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Converts settings (part -> table or value) to format 2; raises UserError if a value is no longer supported."""
    current: dict[str, Any] = {part: {} if isinstance(value, dict) else value for part, value in settings.items()}
    old = {
        f"{part}.{key}": value
        for part, table in settings.items()
        for key, value in (table.items() if isinstance(table, dict) else ())
    }
    for name, value in join_settings(old).items():
        if name in REMOVED_SETTINGS:
            check_removed(name, value)
            continue
        name = RENAMED_SETTINGS.get(name, name)
        if isinstance(value, str):
            value = RENAMED_VALUES.get(name, {}).get(value, value)
        part, _, key = name.partition(".")
        current.setdefault(part, {})[key] = value
    if isinstance(settings.get("noise"), dict):
        current["noise"] = current_noise(settings["noise"])
    for name, value in ADDED_SETTINGS.items():
        part, _, key = name.partition(".")
        if isinstance(current.get(part), dict):
            current[part][key] = value
    return current


def current_noise(noise: dict[str, Any]) -> dict[str, Any]:
    """Converts {"relative", "photons", "attenuation"} to a noise model with its settings."""
    if not {"relative", "photons", "attenuation"} <= noise.keys():
        return noise
    if noise["photons"]:
        return {"model": "poisson", "photons": noise["photons"], "attenuation": noise["attenuation"]}
    return {"model": "gaussian", "relative": noise["relative"]}


def join_settings(old: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted settings, after each group of old settings in JOINED_SETTINGS is replaced by its one new setting."""
    settings = dict(old)
    for old_names, replacements in JOINED_SETTINGS:
        if not all(name in settings for name in old_names):
            continue
        values = tuple(settings.pop(name) for name in old_names)
        if values not in replacements:
            old_settings = ", ".join(f"{name} = {value!r}" for name, value in zip(old_names, values, strict=True))
            raise UserError(f"settings {old_settings}: {UNSUPPORTED}")
        new_name, new_value = replacements[values]
        settings[new_name] = new_value
    return settings


def check_removed(name: str, value: Any) -> None:
    """Raises if a removed setting has a value that this version does not support."""
    supported = REMOVED_SETTINGS[name]
    if value != supported:
        raise UserError(f"setting {name} = {value!r}: this version supports only {supported!r}; {UNSUPPORTED}")


def current_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a block with the new names and shapes of its tensors."""
    current: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        new_name, shape = RENAMED_TENSORS.get(name, (name, None))
        current[new_name] = tensor if shape is None else tensor.reshape(shape)
    return current
