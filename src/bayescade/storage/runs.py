"""Run folders: the files of a training. The training can be resumed, and the folder can be loaded as a model.

    manifest.json          what is trained (method, geometry, settings, seed, versions), hash and scores of every block
    block-01.safetensors   the weights of a block; or network-01.safetensors, a network after round 01 of its training;
                           or joint-01.safetensors, all blocks after round 01 of their joint training
    metrics.jsonl          one line per epoch

Manifest and weights are written atomically; the manifest names a block only after the file of the block is written. A
packed model (`packing.py`) has all blocks in one file; if it was packed as trainable, further blocks are added in
separate files.
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, final

from bayescade.errors import Failure, UserError
from bayescade.storage.files import check_folder, make_folder, write_json, write_or_fail, write_text
from bayescade.storage.identity import Identity, resumed
from bayescade.storage.manifest import (
    MANIFEST,
    BlockRecord,
    EndRecord,
    JointRecord,
    Manifest,
    parts_done,
    read_manifest,
    seconds_of,
    to_json,
)
from bayescade.storage.weights import (
    OPTIMISER_PREFIX,
    Tensors,
    numbered,
    read_blocks,
    read_tensors,
    write_tensors,
)

METRICS, CARD = "metrics.jsonl", "card.md"


@final
class Run:
    """A run folder during the training. `open` starts a new run or resumes an existing run."""

    def __init__(self, folder: Path, manifest: Manifest, writes: bool = True):
        self.folder = folder
        self.manifest = manifest  # replaced by a new object, never modified
        self.writes = writes  # False if another process of the same training writes the files

    @classmethod
    def open_read_only(cls, path: Path | str) -> Self:
        """The run in that folder, read only: another process of the same training writes it."""
        return cls(Path(path), read_manifest(path), writes=False)

    @classmethod
    def open(
        cls, path: Path | str, identity: Identity, *, preset: str, device: str, versions: Mapping[str, str]
    ) -> Self:
        """Resumes the run in that folder, or starts a new run; raises if the folder holds a run with another identity.

        The keyword arguments are stored in the manifest of a new run.
        """
        check_folder(path, MANIFEST, METRICS)
        folder = make_folder(path)
        stored = read_manifest(folder) if (folder / MANIFEST).exists() else None
        if stored is not None and stored.blocks:  # a run without a block is started again
            manifest = resumed(folder, stored, identity)
        else:
            if stored is None:
                check_empty(folder)
            manifest = Manifest(
                **{field.name: getattr(identity, field.name) for field in dataclasses.fields(identity)},
                geometry_hash=identity.geometry_hash(),
                preset=preset,
                device=device,
                versions=dict(versions),
                status="training",
            )
        run = cls(folder, manifest)
        if manifest != stored:
            run._write_manifest()  # the other processes read it
        if manifest.status == "training":
            run._trim_metrics()
        return run

    def blocks(self) -> list[Tensors]:
        """The weights of the trained blocks; each file is checked against its hash."""
        return read_blocks(self.folder, self.manifest)

    def set_start(self, start: Mapping[str, Any]) -> None:
        """Records what is known of the model from which the training starts."""
        self._replace(start=dict(start))

    def save_block(
        self,
        index: int,  # from 0
        tensors: Tensors,
        record: Mapping[str, Any],  # the fields of `BlockRecord` without `file` and `sha256`
    ) -> None:
        """Writes the next block and adds its record to the manifest."""
        if index != len(self.manifest.blocks):
            raise ValueError(f"expected block {len(self.manifest.blocks)}, got {index}")
        name = f"block-{index + 1:02d}.safetensors"
        digest = write_tensors(self.folder / name, numbered(index, tensors)) if self.writes else ""
        self._replace(blocks=(*self.manifest.blocks, new_record(name, digest, record)))

    def save_network(self, tensors: Tensors, record: Mapping[str, Any]) -> None:
        """Saves the network after a further round of training and deletes its earlier file.

        `record["rounds"]` is the number of rounds so far.
        """
        name = f"network-{record['rounds']:02d}.safetensors"
        earlier_files = [block.file for block in self.manifest.blocks]
        digest = write_tensors(self.folder / name, numbered(0, tensors)) if self.writes else ""
        self._replace(blocks=(new_record(name, digest, record),))
        for file in earlier_files if self.writes else ():
            (self.folder / file).unlink(missing_ok=True)

    def save_together(
        self,
        blocks: Sequence[Tensors],
        joint: JointRecord,
        optimiser: Tensors,  # state of the optimiser, without which the training could not go on
        records: Sequence[Mapping[str, Any]] | None = None,  # new scores of the blocks
    ) -> None:
        """Saves all blocks in one file after a round of joint training, and deletes their earlier files."""
        name = f"joint-{joint.rounds:02d}{'-done' if joint.done else ''}.safetensors"
        tensors = {key: value for index, block in enumerate(blocks) for key, value in numbered(index, block).items()}
        earlier_files = {block.file for block in self.manifest.blocks}
        digest = write_tensors(self.folder / name, {**tensors, **optimiser}) if self.writes else ""
        scores = records if records is not None else [{}] * len(blocks)
        changed = [
            dataclasses.replace(block, file=name, sha256=digest, **as_stored(score))
            for block, score in zip(self.manifest.blocks, scores, strict=True)
        ]
        self._replace(blocks=tuple(changed), joint=joint)
        for file in earlier_files - {name} if self.writes else ():
            (self.folder / file).unlink(missing_ok=True)

    def optimiser(self) -> Tensors:
        """The state of the optimiser of joint training, empty before its first round."""
        if self.manifest.joint is None:
            return {}
        block = self.manifest.blocks[-1]
        tensors = read_tensors(self.folder / block.file, block.sha256)
        return {key: value for key, value in tensors.items() if key.startswith(OPTIMISER_PREFIX)}

    def end(self, record: Mapping[str, Any]) -> None:
        """Records that the cascade stops early: the next block gained nothing."""
        self._replace(ended=EndRecord(**as_stored(record)))

    @property
    def seconds(self) -> float:
        """Training time so far, including the time of a block that gained nothing and was dropped."""
        return seconds_of(self.manifest)

    def finish(self, manifest: Manifest, card: str) -> None:
        """Marks the run as done, with its final manifest, and writes its card."""
        if self.writes:
            write_text(self.folder / CARD, card)
        self.manifest = dataclasses.replace(manifest, status="done")
        self._write_manifest()

    def report(self, line: Mapping[str, Any]) -> None:
        """Appends a line to the metrics file."""
        if not self.writes:
            return
        try:
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise Failure(
                f"{self.folder / METRICS}: cannot write ({error.strerror}); {blocks_saved(self.manifest)}"
            ) from None

    def _replace(self, **changes: Any) -> None:
        self.manifest = dataclasses.replace(self.manifest, **changes)
        self._write_manifest()

    def _write_manifest(self) -> None:
        if self.writes:
            write_or_fail(self.folder / MANIFEST, lambda path: write_json(path, to_json(self.manifest)))

    def _trim_metrics(self) -> None:
        """Removes the metrics of blocks that are not finished: these blocks are trained again."""
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


def as_stored(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with tuples for lists: stored records are immutable."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}


def new_record(file: str, sha256: str, record: Mapping[str, Any]) -> BlockRecord:
    """The record of a block whose weights are in that file."""
    return BlockRecord(file=file, sha256=sha256, **as_stored(record))


def check_empty(folder: Path) -> None:
    """Raises if a folder without a manifest has any files, except temporary files of bayescade."""
    foreign = sorted(name for name in os.listdir(folder) if not name.startswith(".bayescade-"))
    if foreign:
        raise UserError(
            f"{folder}: expected an empty folder or a run of bayescade, got {foreign[0]!r} and no {MANIFEST}; "
            "choose another --out"
        )


def blocks_saved(manifest: Manifest) -> str:
    """How many blocks are saved, for error messages."""
    return f"{len(manifest.blocks)} blocks are saved; repeat the train command to continue"
