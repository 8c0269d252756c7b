"""Manifests of format 1 (the models of version 0.1.0 and runs from before format 2) as format 2 has them.

The tables map old settings and tensors to the present ones. Settings have dotted names: `part.key`.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bayescade.errors import UserError

RENAMED_SETTINGS: dict[str, str] = {  # name then -> name now
    "inference.draws": "inference.sampling",
    "inference.kernels": "inference.runner",
    "inference.features": "inference.precision",
    "fit.kernels": "fit.runner",
    "greedy.redraw": "greedy.resample",
}
RENAMED_VALUES: dict[str, dict[str, str]] = {  # name now -> (value then -> value now)
    "inference.runner": {"differences": "perturbation"},
    "greedy.refit": {"spread": "std"},
}
REMOVED_SETTINGS: dict[str, Any] = {  # name then -> the only value that this version supports
    "block.depth": 2,
    "greedy.beta": 1.0,
    "greedy.balance": 1.0,
    "greedy.warm_rate": 1.0,
    "greedy.weak_gain": 0.0,
    "greedy.least_gain": 0.05,
    "fit.posterior_rate": 1.0,
    "fit.balance": 1.0,
}
# Settings that became one: names then, and what they were -> the name now and its value.
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
    # The jitter of the authors' code comes with their loss.
    (
        ("block.jitter", "greedy.loss"),
        {
            (0.0, "side-by-side"): ("greedy.loss", "side-by-side"),
            (0.0, "elbo"): ("greedy.loss", "elbo"),
            (1e-6, "elbo-as-released"): ("greedy.loss", "elbo-as-released"),
        },
    ),
)
RENAMED_TENSORS: dict[str, tuple[str, tuple[int, ...] | None]] = {  # name then -> name now, shape now (None: as it is)
    "gradient_scale": ("input_scale", (1,)),
}

NO_MORE = "this version has no such model; use the bayescade version that trained it, or train again"
ADDED_SETTINGS: dict[str, Any] = {  # name now -> its value in format 1
    "block.memory_channels": 0,
    "data.ramp": "shifted",
}


def from_format_1(values: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON values of a format 1 manifest as those of format 2; TypeError where they are damaged."""
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
    """The settings (part -> table or value) under today's names; UserError where a value is no longer supported."""
    current: dict[str, Any] = {part: {} if isinstance(value, dict) else value for part, value in settings.items()}
    then = {
        f"{part}.{key}": value
        for part, table in settings.items()
        for key, value in (table.items() if isinstance(table, dict) else ())
    }
    for name, value in joined(then).items():
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
    """{"relative", "photons", "attenuation"} as a noise model with its settings."""
    if not {"relative", "photons", "attenuation"} <= noise.keys():
        return noise
    if noise["photons"]:
        return {"model": "poisson", "photons": noise["photons"], "attenuation": noise["attenuation"]}
    return {"model": "gaussian", "relative": noise["relative"]}


def joined(then: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted settings, with several old ones joined to one new one."""
    now = dict(then)
    for names, meanings in JOINED_SETTINGS:
        if not all(name in now for name in names):
            continue
        values = tuple(now.pop(name) for name in names)
        if values not in meanings:
            were = ", ".join(f"{name} = {value!r}" for name, value in zip(names, values, strict=True))
            raise UserError(f"settings {were}: {NO_MORE}")
        name, value = meanings[values]
        now[name] = value
    return now


def check_removed(name: str, value: Any) -> None:
    """Raises when a removed setting has a value that this version does not support."""
    only = REMOVED_SETTINGS[name]
    if value != only:
        raise UserError(f"setting {name} = {value!r}: this version works as with {only!r}; {NO_MORE}")


def current_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a block under today's names and in today's shapes."""
    current: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        new_name, shape = RENAMED_TENSORS.get(name, (name, None))
        current[new_name] = tensor if shape is None else tensor.reshape(shape)
    return current
