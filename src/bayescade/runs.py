"""Run folders: what a training leaves, block by block, so that it can go on after it was cut off, and be used as a model.

    manifest.json          what is trained (method, geometry, settings, seed, versions), every block with hash and scores
    block-01.safetensors   the weights of a block
    metrics.jsonl          a line per epoch

Everything is written whole or not at all; the manifest names a block only after its file is in place. A packed model (`pack`)
is the same with all blocks in weights.safetensors.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from bayescade.errors import Failure, UserError
from bayescade.files import check_folder, make_folder, read_text, replacing, write_json, write_text

FORMAT = 1
MANIFEST, METRICS, CARD, PACKED = "manifest.json", "metrics.jsonl", "card.md", "weights.safetensors"

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


class Run:
    """A run folder that is being filled. `open` makes one, or takes up one that is there."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def open(cls, path: Path | str, identity: Identity, about: Mapping[str, Any]) -> Self:
        """The run in that folder; raises when the folder holds another."""
        check_folder(path, MANIFEST, METRICS)
        folder = make_folder(path)
        if (folder / MANIFEST).exists():
            manifest = read_manifest(folder)
            check_same(folder, manifest, identity)
            run = cls(folder, manifest)
            run._trim_metrics()
            return run
        strangers = [name for name in os.listdir(folder) if not name.startswith(".bayescade-")]
        if strangers:
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
        return run

    def blocks(self) -> list[Tensors]:
        """The weights of the blocks that are kept, checked."""
        return read_blocks(self.folder, self.manifest)

    def keep(self, place: int, tensors: Tensors, record: Mapping[str, Any]) -> None:
        """Puts block `place` (from 0) into the folder."""
        if place != len(self.manifest["blocks"]):
            raise ValueError(f"expected block {len(self.manifest['blocks'])}, got {place}")
        name = f"block-{place + 1:02d}.safetensors"
        digest = write_tensors(self.folder / name, {f"{place + 1:02d}.{key}": value for key, value in tensors.items()})
        self.manifest["blocks"].append({"file": name, "sha256": digest, **record})
        self._write_manifest()

    def finish(self, about: Mapping[str, Any], card: str) -> None:
        """Marks the run as done, and writes its card."""
        write_text(self.folder / CARD, card)
        self.manifest.update({**about, "status": "done"})
        self._write_manifest()

    def report(self, line: Mapping[str, Any]) -> None:
        """Adds a line of metrics."""
        try:
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise Failure(f"{self.folder / METRICS}: cannot write ({error.strerror}); {kept(self.manifest)}") from None

    def _write_manifest(self) -> None:
        write_or_fail(self.folder / MANIFEST, lambda path: write_json(path, self.manifest))

    def _trim_metrics(self) -> None:
        """Leaves the metrics of finished blocks: those of a block that was cut off come again."""
        path = self.folder / METRICS
        if not path.exists():
            return
        lines = []
        for text in read_text(path).splitlines(keepends=True):
            try:
                line = json.loads(text)
            except ValueError:
                break
            if text.endswith("\n") and line.get("block", 0) <= len(self.manifest["blocks"]):
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


def check_same(folder: Path, manifest: Mapping[str, Any], identity: Identity) -> None:
    """Raises when the folder holds the run of something else, and says what differs."""
    for name, value in dataclasses.asdict(identity).items():
        there = manifest.get(name)
        if there == value:
            continue
        if name == "settings" and isinstance(there, dict):
            old, new = flat(there), flat(value)
            keys = [key for key in {**new, **old} if new.get(key) != old.get(key)]
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
    try:
        manifest = json.loads(read_text(path))
        known = {"method": str, "case": str, "geometry": str, "settings": dict, "seed": int, "blocks": list}
        whole = manifest["format"] == FORMAT and all(isinstance(manifest[key], kind) for key, kind in known.items())
        whole = whole and all(isinstance(entry[key], str) for entry in manifest["blocks"] for key in ("file", "sha256"))
        whole = whole and all(Path(entry["file"]).name == entry["file"] for entry in manifest["blocks"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        whole = False
    if not whole:
        raise UserError(f"{path}: not a manifest of ours, or damaged; delete the folder and train again")
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


def write_tensors(path: Path, tensors: Tensors) -> str:
    """Writes a safetensors file; gives its hash."""
    content = save_tensors({key: value.detach().cpu().contiguous() for key, value in tensors.items()})

    def write(path: Path) -> None:
        with replacing(path) as partial:
            partial.write_bytes(content)

    write_or_fail(path, write)
    return hashlib.sha256(content).hexdigest()


def read_tensors(path: Path, digest: str) -> Tensors:
    """The tensors of a safetensors file whose hash is known; raises when it is another file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read the weights ({error.strerror}); {remedy(path)}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise UserError(f"{path}: damaged or foreign: its content is not what the manifest says; {remedy(path)}")
    try:
        tensors: Tensors = load_tensors(content)
    except SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error}); {remedy(path)}") from None
    return tensors


def remedy(path: Path) -> str:
    """What to do about a bad block."""
    return f"restore it, or delete {path.parent} and train again"


def pack(folder: Path | str, out: Path | str, *, half: bool = False) -> dict[str, Any]:
    """Writes a finished run as a model of two files and a card; with `half` in float16 where a tensor allows it."""
    manifest = read_manifest(folder)
    if manifest.get("status") != "done":
        raise UserError(f"{folder}: this run is not finished ({kept(manifest)})")
    check_folder(out, MANIFEST, PACKED, CARD)
    target = make_folder(out)
    tensors: Tensors = {}
    for place, block in enumerate(read_blocks(folder, manifest), 1):
        tensors |= {f"{place:02d}.{key}": halved(value) if half else value for key, value in block.items()}
    digest = write_tensors(target / PACKED, tensors)
    entries = [{**entry, "file": PACKED, "sha256": digest} for entry in manifest["blocks"]]
    packed = {**manifest, "blocks": entries, "half": half}
    write_text(target / CARD, read_text(Path(folder) / CARD))
    write_json(target / MANIFEST, packed)
    return packed


def halved(tensor: Tensor) -> Tensor:
    """The tensor in float16; single numbers stay as they are: a scale would lose more than it saves."""
    return tensor.to(torch.float16) if tensor.is_floating_point() and tensor.numel() > 1 else tensor
