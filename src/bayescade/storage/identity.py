"""What a training depends on, and whether it can resume the run in a folder."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bayescade.errors import UserError
from bayescade.storage.manifest import Manifest
from bayescade.storage.weights import is_packed

BLOCKS = "greedy.blocks"  # the setting that may be larger when a run is resumed
INFERENCE = "inference"  # the part of the settings that a training does not depend on


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a training depends on: a run can be resumed only with the same."""

    method: str
    case: str  # the name of the geometry or of the problem
    geometry: str | None  # JSON text; None for a problem that is not a scan
    settings: dict[str, Any]  # JSON values
    seed: int
    problem: dict[str, Any] | None = None  # `InverseProblem.describe`, for a problem that is not a scan

    def geometry_hash(self) -> str | None:
        """A short name of the geometry."""
        return hashlib.sha256(self.geometry.encode()).hexdigest()[:16] if self.geometry is not None else None


def resumed(folder: Path, manifest: Manifest, identity: Identity) -> Manifest:
    """The manifest of the resumed run, unchanged if the run is done; raises when the folder has another run."""
    if is_longer(manifest, identity):
        check_trainable(folder, manifest)
        manifest = dataclasses.replace(manifest, settings=identity.settings, status="training", ended=None, scores=None)
    check_same(folder, manifest, identity)
    if manifest.status == "training" and INFERENCE in identity.settings:
        settings = {**manifest.settings, INFERENCE: identity.settings[INFERENCE]}
        manifest = dataclasses.replace(manifest, settings=settings, hashed_inference=None)
    return manifest


def check_trainable(folder: Path, manifest: Manifest) -> None:
    """Raises when the model was packed without what further training needs."""
    if is_packed(manifest) and not manifest.trainable:
        raise UserError(
            f"{folder}: expected a run or a model that was packed with --trainable, got a model without what further "
            "training needs; train in the folder it was packed from"
        )


def is_longer(manifest: Manifest, identity: Identity) -> bool:
    """Whether the number of blocks is larger and nothing else differs: then the trained blocks are the first ones."""
    stored, now = flat(manifest.settings), flat(identity.settings)
    return differing(stored, now) == [BLOCKS] and now[BLOCKS] > stored[BLOCKS]


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The settings that differ; how a model is sampled is not part of its training."""
    keys = [key for key in {**new, **old} if new.get(key) != old.get(key)]
    return [key for key in keys if not key.startswith(f"{INFERENCE}.")]


def check_same(folder: Path, manifest: Manifest, identity: Identity) -> None:
    """Raises when the folder has another run, and says what differs."""
    for field in dataclasses.fields(identity):
        stored, now = getattr(manifest, field.name), getattr(identity, field.name)
        if stored == now:
            continue
        difference = f"{field.name} = {stored!r} (now {now!r})"
        if field.name == "settings":
            old, new = flat(stored), flat(now)
            keys = differing(old, new)
            if not keys:
                continue
            difference = ", ".join(f"{key} = {old.get(key)!r} (now {new.get(key)!r})" for key in keys)
        elif field.name == "geometry":
            difference = "another geometry"
        raise UserError(f"{folder}: holds another run: {difference}; choose another --out, or delete the folder")


def flat(table: Mapping[str, Any], part: str = "") -> dict[str, Any]:
    """Nested tables as one, with `part.key` for keys."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flat(value, f"{part}{key}.") if isinstance(value, dict) else {part + key: value}
    return values
