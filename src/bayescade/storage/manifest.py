"""Manifests: the description of a run folder or a packed model, in `manifest.json`.

Written in format 2; manifests of format 1 are read as if they were of format 2 (`_format_1.py`).
"""

import dataclasses
import hashlib
import json
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from bayescade.errors import UserError
from bayescade.storage._format_1 import from_format_1
from bayescade.storage.files import read_text

FORMAT = 2
MANIFEST = "manifest.json"
STATUSES = ("training", "done")

Table = TypeVar("Table")


@dataclasses.dataclass(frozen=True)
class BlockRecord:
    """A trained block, or a network after some rounds of its training."""

    file: str  # of its weights, in the same folder
    sha256: str  # of that file
    seconds: float  # training time
    validation_psnr: float  # dB, mean over the validation images, mean weights
    warnings: tuple[str, ...] = ()
    format: int = FORMAT  # of the names of its tensors
    # Of blocks.
    gain: float | None = None  # dB on the validation images over the block before
    tries: int | None = None  # trainings until it gained
    slower: int = 0  # times that its learning rate was lowered
    # Of networks that are trained in rounds.
    rounds: int | None = None  # how many are done
    # Of blocks with random weights: medians of the log standard deviations of its layers, at `start`, `trained`, `final`.
    log_std: dict[str, list[float]] | None = None
    # Of blocks with a variance, on the validation images.
    validation_nll: float | None = None  # mean negative log-likelihood of a pixel
    variance_over_mse: float | None = None  # mean variance over mean squared error
    variance_over_mse_median: float | None = None  # the same in the median image
    share_at_floor: float | None = None  # part of the pixels whose variance is at the floor


@dataclasses.dataclass(frozen=True)
class EndRecord:
    """Why a cascade ended before its last block."""

    block: int  # the number of the block that gained nothing
    tries: int  # its trainings
    seconds: float  # the time they took
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of a training and its results."""

    method: str
    case: str  # the name of the geometry or of the problem
    settings: dict[str, Any]  # of the method, in parts; and `noise` and `images`
    seed: int
    preset: str  # from which the settings started
    device: str  # of the training, in words
    versions: dict[str, str]  # of the software that trained it
    status: str  # training or done
    geometry: str | None = None  # JSON text; None for a problem that is not a scan
    geometry_hash: str | None = None  # a short name of the geometry
    problem: dict[str, Any] | None = None  # for a problem that is not a scan: shapes, units, kinds of its parts
    blocks: tuple[BlockRecord, ...] = ()  # in their order; of a network one
    ended: EndRecord | None = None  # where the cascade ended before its last block
    training_seconds: float | None = None  # of all blocks, once it is done
    data_seconds: float | None = None  # time for the scans it was trained on
    processes: int = 1  # number of processes of the training
    half: bool = False  # packed with most weights in float16
    trainable: bool = False  # packed with all that further training needs
    scores: dict[str, Any] | None = None  # on the paper's test set
    hashed_inference: dict[str, Any] | None = None  # `settings.inference` of a format 1 file, for its hash


def read_manifest(folder: Path | str) -> Manifest:
    """The manifest of a run folder or a packed model."""
    path = Path(folder) / MANIFEST
    text = read_text(path)
    try:
        return from_json(json.loads(text))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: not a manifest of ours, or damaged ({error}); restore it, or use another folder"
        ) from None


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON values in the present format, without None."""
    values = {"format": FORMAT, **without_none(dataclasses.asdict(manifest))}
    return {**values, "blocks": [without_none(block) for block in values["blocks"]]}


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    """The values that are not None."""
    return {key: value for key, value in values.items() if value is not None}


def from_json(values: Any) -> Manifest:
    """A manifest of any format from its JSON values; TypeError where they are damaged."""
    version = values.get("format") if isinstance(values, dict) else None
    if type(version) is int and version > FORMAT:
        raise UserError(
            f"expected format 1 to {FORMAT}, got {version}: a newer version wrote it; install bayescade again"
        )
    if version not in (1, FORMAT):
        raise TypeError(f"expected format 1 to {FORMAT}, got {version!r}")
    if version == 1:
        values = from_format_1(values)
    values = {key: value for key, value in values.items() if key != "format"}
    blocks = values.get("blocks")
    if not isinstance(blocks, list):
        raise TypeError("expected a list of 'blocks'")
    values["blocks"] = tuple(from_table(BlockRecord, block, "a block's ") for block in blocks)
    if values.get("ended") is not None:
        values["ended"] = from_table(EndRecord, values["ended"], "the end's ")
    manifest = from_table(Manifest, values)
    check(manifest)
    return manifest


def from_table(kind: type[Table], values: Any, where: str = "") -> Table:
    """A dataclass from JSON values; TypeError names the key that is missing, unknown, or of another type."""
    if not isinstance(values, dict):
        raise TypeError(f"expected {where}table, got {values!r:.40}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    expected = typing.get_type_hints(kind)
    for key, value in values.items():
        if key not in expected:
            raise TypeError(f"unknown: {where}'{key}'")
        if not matches(value, expected[key]):
            raise TypeError(f"unexpected: {where}'{key}' = {value!r:.40}")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING and field.name not in values:
            raise TypeError(f"missing: {where}'{field.name}'")
    return kind(**values)


def matches(value: Any, kind: Any) -> bool:
    """Whether a value is of the type that a field is annotated with."""
    if isinstance(kind, types.UnionType):
        return any(matches(value, part) for part in typing.get_args(kind))
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(matches(item, typing.get_args(kind)[0]) for item in value)
    return isinstance(value, typing.get_origin(kind) or kind)


def check(manifest: Manifest) -> None:
    """Raises TypeError where a value is not possible."""
    if manifest.status not in STATUSES:
        raise TypeError(f"unexpected: 'status' = {manifest.status!r:.40}")
    if manifest.status == "done" and manifest.training_seconds is None:
        raise TypeError("missing: 'training_seconds'")
    if not {"noise", "images"} <= manifest.settings.keys():
        raise TypeError("missing: 'noise' or 'images' in 'settings'")
    for block in manifest.blocks:
        if Path(block.file).name != block.file or not block.file:
            raise TypeError(f"unexpected: a block's 'file' = {block.file!r}")


def parts_done(manifest: Manifest) -> int:
    """Number of trained blocks, or of rounds of a network: `block` in the metrics."""
    rounds = manifest.blocks[-1].rounds if manifest.blocks else None
    return rounds if rounds is not None else len(manifest.blocks)


def seconds_of(manifest: Manifest) -> float:
    """Training time so far, with that of a block that gained nothing."""
    ended = manifest.ended.seconds if manifest.ended is not None else 0.0
    return sum(block.seconds for block in manifest.blocks) + ended


def warnings_of(manifest: Manifest) -> list[str]:
    """All warnings of a run."""
    ended = manifest.ended.warnings if manifest.ended is not None else ()
    return [*(text for block in manifest.blocks for text in block.warnings), *ended]


def model_hash(manifest: Manifest) -> str:
    """A short name of all weights together and of how they are sampled."""
    weights = [block.sha256 for block in manifest.blocks]
    inference = manifest.hashed_inference or manifest.settings.get("inference")
    sampled = json.dumps(inference, sort_keys=True)
    return hashlib.sha256("".join([*weights, sampled]).encode()).hexdigest()[:16]
