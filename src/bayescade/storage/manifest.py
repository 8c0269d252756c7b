"""Manifests: the description of a run folder or a packed model, in `manifest.json`.

Manifests are written in format 2. A manifest of format 1 is converted when it is read (`_format_1.py`).
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
    """A trained block of a cascade, or a network after some rounds of its training."""

    file: str  # the file of its weights, in the same folder
    sha256: str  # hash of that file
    seconds: float  # training time
    validation_psnr: float  # dB, mean of the validation images, computed with the mean weights
    warnings: tuple[str, ...] = ()
    format: int = FORMAT  # the manifest format that defines the names of its tensors
    # Blocks of a cascade only.
    gain: float | None = None  # validation PSNR minus that of the block's input, dB
    tries: int | None = None  # number of attempts to train it
    slower: int = 0  # how often the learning rate was lowered, for this block and the blocks before it
    # Networks only: they are trained in rounds.
    rounds: int | None = None  # number of finished rounds
    # Blocks with random weights only: the median log standard deviation of each random layer, at the start of the
    # training (`start`), after the training (`trained`) and after the refit (`final`).
    log_std: dict[str, list[float]] | None = None
    # Blocks with a variance only, computed on the validation images.
    validation_nll: float | None = None  # negative log-likelihood, mean of all pixels
    variance_over_mse: float | None = None  # mean variance divided by mean squared error
    variance_over_mse_median: float | None = None  # the same ratio for each image, median of the images
    share_at_floor: float | None = None  # fraction of the pixels whose variance is less than twice its floor


@dataclasses.dataclass(frozen=True)
class EndRecord:
    """Why a cascade ended before its last block."""

    block: int  # number (from 1) of the block that gained nothing and was dropped
    tries: int  # number of attempts to train it
    seconds: float  # time of these attempts
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class JointRecord:
    """Joint training of all blocks, after their greedy training."""

    rounds: int  # number of finished rounds
    seconds: float
    done: bool  # whether it is finished


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of a training and its results."""

    method: str
    case: str  # the name of the geometry or of the problem
    settings: dict[str, Any]  # one table for each part of the method's settings, and `noise` and `images`
    seed: int
    preset: str  # the preset on which the settings are based
    device: str  # the device of the training, in words
    versions: dict[str, str]  # versions of the software that trained the model
    status: str  # training or done
    geometry: str | None = None  # JSON text; None for a problem that is not a scan
    geometry_hash: str | None = None  # start of the hash of the geometry
    problem: dict[str, Any] | None = None  # `InverseProblem.describe()`, for a problem that is not a scan
    # The model from which the training started: `model`, its `hash`, and its `validation_psnr` on the new validation images.
    start: dict[str, Any] | None = None
    blocks: tuple[BlockRecord, ...] = ()  # blocks in their order; a network has one record
    ended: EndRecord | None = None  # if the cascade ended before its last block
    joint: JointRecord | None = None  # if all blocks are trained together after the greedy training
    error_ratio: float | None = (
        None  # of the error of its images to the disagreement of passes (`uncertainty.disagreement`)
    )
    training_seconds: float | None = None  # of all blocks; None until the training is done
    data_seconds: float | None = None  # time to make the training data
    processes: int = 1  # number of processes of the training
    half: bool = False  # packed with most weights in float16
    trainable: bool = False  # packed with all tensors that further training needs
    scores: dict[str, Any] | None = None  # on the paper's test set
    hashed_inference: dict[str, Any] | None = None  # inference settings of a format 1 file, for `model_hash`


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
            f"{path}: not a manifest of bayescade, or damaged ({error}); restore it, or use another folder"
        ) from None


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The manifest as JSON values in format FORMAT, without the fields that are None."""
    values = {"format": FORMAT, **without_none(dataclasses.asdict(manifest))}
    return {**values, "blocks": [without_none(block) for block in values["blocks"]]}


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    """The entries whose value is not None."""
    return {key: value for key, value in values.items() if value is not None}


def from_json(values: Any) -> Manifest:
    """A manifest from JSON values of any format; raises TypeError if they are damaged."""
    version = values.get("format") if isinstance(values, dict) else None
    if type(version) is int and version > FORMAT:
        raise UserError(
            f"expected format 1 to {FORMAT}, got {version}: a newer version of bayescade wrote it; upgrade bayescade"
        )
    if version not in (1, FORMAT):
        raise TypeError(f"expected format 1 to {FORMAT}, got {version!r}")
    if version == 1:
        values = from_format_1(values)
    values = {key: value for key, value in values.items() if key != "format"}
    blocks = values.get("blocks")
    if not isinstance(blocks, list):
        raise TypeError("expected a list of 'blocks'")
    values["blocks"] = tuple(from_table(BlockRecord, block, " in 'blocks'") for block in blocks)
    if values.get("ended") is not None:
        values["ended"] = from_table(EndRecord, values["ended"], " in 'ended'")
    if values.get("joint") is not None:
        values["joint"] = from_table(JointRecord, values["joint"], " in 'joint'")
    manifest = from_table(Manifest, values)
    check(manifest)
    return manifest


def from_table(
    kind: type[Table],
    values: Any,
    location: str = "",  # location of the table in the manifest, for messages
) -> Table:
    """A dataclass from JSON values; raises TypeError if a key is missing or unknown, or a value has another type."""
    if not isinstance(values, dict):
        raise TypeError(f"expected a table{location}, got {values!r:.40}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    expected = typing.get_type_hints(kind)
    for key, value in values.items():
        if key not in expected:
            raise TypeError(f"unknown: '{key}'{location}")
        if not matches(value, expected[key]):
            raise TypeError(f"unexpected: '{key}' = {value!r:.40}{location}")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING and field.name not in values:
            raise TypeError(f"missing: '{field.name}'{location}")
    return kind(**values)


def matches(value: Any, kind: Any) -> bool:
    """Whether a value has the type `kind`, which is the annotation of a field."""
    if isinstance(kind, types.UnionType):
        return any(matches(value, member) for member in typing.get_args(kind))
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(matches(item, typing.get_args(kind)[0]) for item in value)
    return isinstance(value, typing.get_origin(kind) or kind)


def check(manifest: Manifest) -> None:
    """Raises TypeError if a value is impossible."""
    if manifest.status not in STATUSES:
        raise TypeError(f"unexpected: 'status' = {manifest.status!r:.40}")
    if manifest.status == "done" and manifest.training_seconds is None:
        raise TypeError("missing: 'training_seconds'")
    if not {"noise", "images"} <= manifest.settings.keys():
        raise TypeError("missing: 'noise' or 'images' in 'settings'")
    for block in manifest.blocks:
        if Path(block.file).name != block.file or not block.file:
            raise TypeError(f"unexpected: 'file' = {block.file!r} in 'blocks'")


def parts_done(manifest: Manifest) -> int:
    """Number of trained blocks, or of finished rounds of a network; the metrics count both as `block`.

    The rounds of joint training count as further blocks.
    """
    rounds = manifest.blocks[-1].rounds if manifest.blocks else None
    if rounds is not None:
        return rounds
    return len(manifest.blocks) + (manifest.joint.rounds if manifest.joint is not None else 0)


def seconds_of(manifest: Manifest) -> float:
    """Training time so far, including the time of a block that gained nothing and was dropped."""
    ended = manifest.ended.seconds if manifest.ended is not None else 0.0
    joint = manifest.joint.seconds if manifest.joint is not None else 0.0
    return sum(block.seconds for block in manifest.blocks) + ended + joint


def warnings_of(manifest: Manifest) -> list[str]:
    """All warnings of a run."""
    ended = manifest.ended.warnings if manifest.ended is not None else ()
    return [*(text for block in manifest.blocks for text in block.warnings), *ended]


def model_hash(manifest: Manifest) -> str:
    """The start of a hash of all weights, of the inference settings and of the ratio of errors to disagreement."""
    weights = [block.sha256 for block in manifest.blocks]
    if manifest.error_ratio is not None:
        weights.append(repr(manifest.error_ratio))
    inference = manifest.hashed_inference or manifest.settings.get("inference")
    inference_text = json.dumps(inference, sort_keys=True)
    return hashlib.sha256("".join([*weights, inference_text]).encode()).hexdigest()[:16]
