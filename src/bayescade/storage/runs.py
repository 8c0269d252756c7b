"""Run folders: what a training leaves, block by block, so that it can go on after it was cut off, and be used as a model.

    manifest.json          what is trained (method, geometry, settings, seed, versions), every block with hash and scores
    block-01.safetensors   the weights of a block; or network-01.safetensors, a network behind so many rounds of its training
    metrics.jsonl          a line per epoch

Everything is written whole or not at all; the manifest names a block only after its file is in place. A packed model
is the same with all blocks in one file, whose name has its hash: a new one never takes the place of one that is in use. It has
the variance of its last block only, which is all that is asked for, and is not trained any further.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self, final

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from bayescade.errors import Failure, UserError
from bayescade.storage.files import check_folder, make_folder, read_text, replacing, write_json, write_text

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
MANIFEST, METRICS, CARD = "manifest.json", "metrics.jsonl", "card.md"
PACKED = "weights-{}.safetensors"

# What a manifest must have, and each of its blocks.
KEYS = {
    "method": str,
    "case": str,
    "geometry": str,
    "geometry_hash": str,
    "settings": dict,
    "seed": int,
    "preset": str,
    "device": str,
    "versions": dict,
    "status": str,
    "blocks": list,
}
REMEDY = "restore it, or train again in another folder"
BLOCK_KEYS = {"file": str, "sha256": str, "seconds": float, "validation_psnr": float, "warnings": list}

BLOCKS = "greedy.blocks"  # the setting that a run may have more of when it is taken up again
WORK = "optimiser."  # in front of the names of tensors that only a training needs
INNER = "variance."  # and of those that are asked for in the last block only

Tensors = dict[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a training depends on: a run is taken up again only by the same."""

    method: str
    case: str  # the name of the geometry
    geometry: str  # JSON text
    settings: dict[str, Any]  # JSON values
    seed: int

    def geometry_hash(self) -> str:
        """A short name of the geometry."""
        return hashlib.sha256(self.geometry.encode()).hexdigest()[:16]


@final
class Run:
    """A run folder that is being filled. `open` makes one, or takes up one that is there."""

    def __init__(self, folder: Path, manifest: dict[str, Any], writes: bool = True):
        self.folder = folder
        self.manifest = manifest
        self.writes = writes  # one process of a team writes, the others keep in mind

    @classmethod
    def follow(cls, path: Path | str) -> Self:
        """The run in that folder as another process writes it: what is done here is kept in mind, not written."""
        return cls(Path(path), read_manifest(path), writes=False)

    @classmethod
    def open(cls, path: Path | str, identity: Identity, about: Mapping[str, Any]) -> Self:
        """The run in that folder; raises when the folder holds another."""
        check_folder(path, MANIFEST, METRICS)
        folder = make_folder(path)
        manifest = read_manifest(folder) if (folder / MANIFEST).exists() else None
        if (
            manifest is not None and manifest["blocks"]
        ):  # without a block there is nothing to go on with, and nothing to lose
            longer = is_longer(manifest, identity)
            if longer and is_packed(manifest):
                raise UserError(
                    f"{folder}: a packed model has no more to learn from; train in the folder it was packed from"
                )
            if longer:
                manifest.update(settings=identity.settings, status="training")
                manifest.pop("ended", None)
            check_same(folder, manifest, identity)
            if manifest["status"] == "training" and "inference" in identity.settings:
                manifest["settings"]["inference"] = identity.settings["inference"]  # which it does not depend on
            run = cls(folder, manifest)
            if longer:
                run._write_manifest()  # for the other processes of a team
            if manifest["status"] == "training":
                run._trim_metrics()
            return run
        strangers = [name for name in os.listdir(folder) if not name.startswith(".bayescade-")]
        if strangers and manifest is None:
            raise UserError(
                f"{folder}: expected an empty folder or a run of ours, found {sorted(strangers)[0]!r} and no {MANIFEST}; "
                "choose another --out"
            )
        manifest = {
            "format": FORMAT,
            **dataclasses.asdict(identity),
            "geometry_hash": identity.geometry_hash(),
            **about,
            "status": "training",
            "blocks": [],
        }
        run = cls(folder, manifest)
        run._write_manifest()
        run._trim_metrics()
        return run

    def blocks(self) -> list[Tensors]:
        """The weights of the blocks that are kept, checked."""
        return read_blocks(self.folder, self.manifest)

    def keep(self, place: int, tensors: Tensors, record: Mapping[str, Any]) -> None:
        """Puts block `place` (from 0) into the folder."""
        if place != len(self.manifest["blocks"]):
            raise ValueError(f"expected block {len(self.manifest['blocks'])}, got {place}")
        name = f"block-{place + 1:02d}.safetensors"
        digest = ""
        if self.writes:
            named = {f"{place + 1:02d}.{key}": value for key, value in tensors.items()}
            content, digest = serialised(named)
            write_bytes(self.folder / name, content)
        self.manifest["blocks"].append({"file": name, "sha256": digest, **record})
        self._write_manifest()

    def replace(self, tensors: Tensors, record: Mapping[str, Any]) -> None:
        """Puts what a training in rounds has so far in the place of what it had; the record says how many `rounds` that is."""
        name = f"network-{record['rounds']:02d}.safetensors"
        digest = ""
        before = [block["file"] for block in self.manifest["blocks"]]
        if self.writes:
            content, digest = serialised({f"01.{key}": value for key, value in tensors.items()})
            write_bytes(self.folder / name, content)
        self.manifest["blocks"] = [{"file": name, "sha256": digest, **record}]
        self._write_manifest()
        if self.writes:
            for old in before:
                (self.folder / old).unlink(missing_ok=True)

    def end(self, record: Mapping[str, Any]) -> None:
        """Notes that the cascade ends here, before its time."""
        self.manifest["ended"] = dict(record)
        self._write_manifest()

    @property
    def seconds(self) -> float:
        """Training time so far, that of a block nobody kept included."""
        return seconds_of(self.manifest)

    def finish(self, about: Mapping[str, Any], card: str) -> None:
        """Marks the run as done, and writes its card."""
        if self.writes:
            write_text(self.folder / CARD, card)
        self.manifest.update({**about, "status": "done"})
        self._write_manifest()

    def report(self, line: Mapping[str, Any]) -> None:
        """Adds a line of metrics."""
        if not self.writes:
            return
        try:
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise Failure(f"{self.folder / METRICS}: cannot write ({error.strerror}); {kept(self.manifest)}") from None

    def _write_manifest(self) -> None:
        if self.writes:
            write_or_fail(self.folder / MANIFEST, lambda path: write_json(path, self.manifest))

    def _trim_metrics(self) -> None:
        """Leaves the metrics of finished blocks: those of a block that was cut off come again."""
        path = self.folder / METRICS
        if not path.exists():
            return
        done = parts_done(self.manifest)
        lines = []
        for text in path.read_bytes().decode("utf-8", "replace").splitlines(keepends=True):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                break
            block = line.get("block") if isinstance(line, dict) else None
            if text.endswith("\n") and isinstance(block, int) and block <= done:
                lines.append(text)
        write_text(path, "".join(lines))


def write_or_fail(path: Path, write: Any) -> None:
    """Writes; a disk that is full or gone is told in one line."""
    try:
        write(path)
    except OSError as error:
        raise Failure(f"{path}: cannot write ({error.strerror or error}); what was there before is kept") from None


def kept(manifest: Mapping[str, Any]) -> str:
    """What is left after a fault."""
    return f"{len(manifest['blocks'])} blocks are kept; the same command goes on from there"


def parts_done(manifest: Mapping[str, Any]) -> int:
    """How many blocks are trained, or rounds of a network: what its metrics count by `block`."""
    blocks = manifest["blocks"]
    return int(blocks[-1].get("rounds", len(blocks))) if blocks else 0


def seconds_of(manifest: Mapping[str, Any]) -> float:
    """Training time of what there is, that of a block nobody kept included."""
    parts = [*manifest["blocks"], manifest.get("ended", {})]
    return float(sum(part.get("seconds", 0.0) for part in parts))


def model_hash(manifest: Mapping[str, Any]) -> str:
    """A short name of all weights together and of how they are sampled."""
    weights = [block["sha256"] for block in manifest["blocks"]]
    sampled = json.dumps(manifest["settings"].get("inference"), sort_keys=True)
    return hashlib.sha256("".join([*weights, sampled]).encode()).hexdigest()[:16]


def is_longer(manifest: Mapping[str, Any], identity: Identity) -> bool:
    """Whether more blocks are asked for, and nothing else: those that are there are the first of them."""
    there, now = flat(manifest["settings"]), flat(identity.settings)
    return differing(there, now) == [BLOCKS] and now[BLOCKS] > there[BLOCKS]


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The settings that differ; how a model is sampled is not part of its training."""
    keys = [key for key in {**new, **old} if new.get(key) != old.get(key)]
    return [key for key in keys if not key.startswith("inference.")]


def check_same(folder: Path, manifest: Mapping[str, Any], identity: Identity) -> None:
    """Raises when the folder holds the run of something else, and says what differs."""
    for name, value in dataclasses.asdict(identity).items():
        there = manifest.get(name)
        if there == value:
            continue
        if name == "settings" and isinstance(there, dict):
            old, new = flat(there), flat(value)
            keys = differing(old, new)
            if not keys:
                continue
            came = ", ".join(f"{key} = {old.get(key)!r} (now {new.get(key)!r})" for key in keys)
        elif name == "geometry":
            came = "another geometry"
        else:
            came = f"{name} = {there!r} (now {value!r})"
        raise UserError(f"{folder}: holds another run: {came}; choose another --out, or delete the folder")


def flat(table: Mapping[str, Any], part: str = "") -> dict[str, Any]:
    """Nested tables as one, with `part.key` for keys."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flat(value, f"{part}{key}.") if isinstance(value, dict) else {part + key: value}
    return values


def read_manifest(folder: Path | str) -> dict[str, Any]:
    """The manifest of a run folder or a packed model."""
    path = Path(folder) / MANIFEST
    text = read_text(path)
    try:
        manifest = json.loads(text)
        entries = manifest["blocks"]
        whole = manifest["format"] == FORMAT and all(isinstance(manifest[key], kind) for key, kind in KEYS.items())
        whole = whole and all(isinstance(entry[key], kind) for entry in entries for key, kind in BLOCK_KEYS.items())
        whole = whole and all(Path(entry["file"]).name == entry["file"] != "" for entry in entries)
        whole = whole and {"noise", "images"} <= manifest["settings"].keys()
        whole = whole and (manifest["status"] != "done" or isinstance(manifest["training_seconds"], float))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"{path}: not a manifest of ours, or damaged; restore it, or use another folder")
    return manifest


def read_blocks(folder: Path | str, manifest: Mapping[str, Any]) -> list[Tensors]:
    """The weights of every block, each file checked against its hash."""
    files: dict[str, Tensors] = {}
    for entry in manifest["blocks"]:
        if entry["file"] not in files:
            files[entry["file"]] = read_tensors(Path(folder) / entry["file"], entry["sha256"])
    blocks = []
    for place, entry in enumerate(manifest["blocks"], 1):
        prefix = f"{place:02d}."
        tensors = files[entry["file"]]
        blocks.append({key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)})
    return blocks


def serialised(tensors: Tensors) -> tuple[bytes, str]:
    """The content of a safetensors file, and its hash."""
    content = save_tensors({key: value.detach().cpu().contiguous() for key, value in tensors.items()})
    return content, hashlib.sha256(content).hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file of weights, whole or not at all."""

    def write(path: Path) -> None:
        with replacing(path) as partial:
            partial.write_bytes(content)

    write_or_fail(path, write)


def read_tensors(path: Path, digest: str) -> Tensors:
    """The tensors of a safetensors file whose hash is known; raises when it is another file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read the weights ({error.strerror}); {REMEDY}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise UserError(f"{path}: damaged or foreign: its content is not what the manifest says; {REMEDY}")
    try:
        tensors: Tensors = load_tensors(content)
    except SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error}); {REMEDY}") from None
    return tensors


def is_packed(manifest: Mapping[str, Any]) -> bool:
    """Whether it is the manifest of a packed model."""
    return any(entry["file"] == PACKED.format(entry["sha256"][:8]) for entry in manifest["blocks"])


@contextlib.contextmanager
def alone(folder: Path | str) -> Iterator[None]:
    """Raises when another process of this machine works in the folder; where the system knows no locks, nobody is asked."""
    if fcntl is None:
        yield
        return
    handle = os.open(make_folder(folder), os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(
            f"{folder}: another process is training into this folder; wait for it, or choose another"
        ) from None
    finally:
        os.close(handle)
