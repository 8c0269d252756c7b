"""What a training depends on (`Identity`), and the check that the run in a folder can be resumed."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayescade.errors import UserError
from bayescade.storage.manifest import Manifest
from bayescade.storage.weights import is_packed

BLOCKS = "greedy.blocks"  # the setting that may be increased when a run is resumed
INFERENCE = "inference"  # the table of settings on which a training does not depend


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a training depends on. A run is resumed only with the same identity, except for BLOCKS and INFERENCE."""

    method: str
    case: str  # the name of the geometry or of the problem
    geometry: str | None  # JSON text; None for a problem that is not a scan
    settings: dict[str, Any]  # JSON values
    seed: int
    problem: dict[str, Any] | None = None  # `InverseProblem.describe`, for a problem that is not a scan
    start: dict[str, Any] | None = None  # `model` and `hash` of the model from which the training starts

    def geometry_hash(self) -> str | None:
        """The start of the hash of the geometry; None without a geometry."""
        return hashlib.sha256(self.geometry.encode()).hexdigest()[:16] if self.geometry is not None else None


def resumed(folder: Path, manifest: Manifest, identity: Identity) -> Manifest:
    """The manifest with which a run continues; raises if the run in the folder has another identity.

    The manifest of a finished run is returned unchanged, unless the identity has more blocks.
    """
    if manifest.joint is None and is_longer(manifest, identity):
        check_trainable(folder, manifest)
        manifest = dataclasses.replace(manifest, settings=identity.settings, status="training", ended=None, scores=None)
    check_same(folder, manifest, identity)
    if manifest.status == "training" and INFERENCE in identity.settings:
        settings = {**manifest.settings, INFERENCE: identity.settings[INFERENCE]}
        manifest = dataclasses.replace(manifest, settings=settings, hashed_inference=None)
    return manifest


def check_trainable(folder: Path, manifest: Manifest) -> None:
    """Raises if the model was packed without the tensors that further training needs."""
    if is_packed(manifest) and not manifest.trainable:
        raise UserError(
            f"{folder}: expected a run or a model that was packed with --trainable, got a model without the tensors "
            "for further training; train in the run folder from which it was packed"
        )


def is_longer(manifest: Manifest, identity: Identity) -> bool:
    """Whether the identity has more blocks than the manifest, and no other setting differs.

    Then the trained blocks are the first blocks of the longer cascade.
    """
    stored, requested = flat(manifest.settings), flat(identity.settings)
    return differing(stored, requested) == [BLOCKS] and requested[BLOCKS] > stored[BLOCKS]


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The names of the settings that differ, except those of INFERENCE: a training does not depend on them.

    A setting that the old table does not have is one of a later version; there 0, false or nothing means as before.
    """
    keys = [key for key in {**new, **old} if new.get(key) != old.get(key) and (key in old or new[key])]
    return [key for key in keys if not key.startswith(f"{INFERENCE}.")]


def check_same(folder: Path, manifest: Manifest, identity: Identity) -> None:
    """Raises if the run in the folder has another identity; the message says what differs."""
    for field in dataclasses.fields(identity):
        stored, requested = getattr(manifest, field.name), getattr(identity, field.name)
        if field.name == "start" and stored is not None and requested is not None:
            stored = {key: value for key, value in stored.items() if key in requested}
        if stored == requested:
            continue
        difference = f"{field.name} = {stored!r} (now {requested!r})"
        if field.name == "settings":
            old, new = flat(stored), flat(requested)
            keys = differing(old, new)
            if not keys:
                continue
            difference = ", ".join(f"{key} = {old.get(key)!r} (now {new.get(key)!r})" for key in keys)
        elif field.name == "geometry":
            difference = "another geometry"
        raise UserError(f"{folder}: holds another run: {difference}; choose another --out, or delete the folder")


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one table with dotted keys, `part.key`."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return values
