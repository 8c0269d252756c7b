"""A finished run as a model to keep or to pass on: all blocks in one file, without what only a training needs."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.storage.files import check_folder, make_folder, read_text, write_json, write_text
from bayescade.storage.runs import (
    CARD,
    INNER,
    MANIFEST,
    PACKED,
    WORK,
    Tensors,
    kept,
    read_blocks,
    read_manifest,
    serialised,
    write_bytes,
)


def pack(folder: Path | str, out: Path | str, *, half: bool = False) -> dict[str, Any]:
    """Writes a finished run as a model of two files and a card; with `half` most weights are in float16."""
    manifest = read_manifest(folder)
    if manifest.get("status") != "done" or not manifest["blocks"]:
        raise UserError(f"{folder}: this run is not finished ({kept(manifest)})")
    check_folder(out, MANIFEST, CARD)
    check_packing(out, folder)
    card = read_text(Path(folder) / CARD)
    tensors: Tensors = {}
    blocks = read_blocks(folder, manifest)
    for place, block in enumerate(blocks, 1):
        for key, value in block.items():
            if key.startswith(WORK) or (place < len(blocks) and key.startswith(INNER)):
                continue
            tensors[f"{place:02d}.{key}"] = halved(value) if half and not stays(key, value) else value
    target = make_folder(out)
    content, digest = serialised(tensors)
    name = PACKED.format(digest[:8])
    write_bytes(target / name, content)
    entries = [{**entry, "file": name, "sha256": digest} for entry in manifest["blocks"]]
    packed = {**manifest, "blocks": entries, "half": half or manifest.get("half", False)}
    write_text(target / CARD, card)
    write_json(target / MANIFEST, packed)
    for other in target.glob(PACKED.format("*")):
        if other.name != name:
            other.unlink()
    return packed


def check_packing(out: Path | str, folder: Path | str) -> None:
    """Raises unless the folder to pack into is empty or holds a packed model."""
    target = Path(out)
    if not target.exists():
        return
    allowed = {MANIFEST, CARD, *(path.name for path in target.glob(PACKED.format("*")))}
    strangers = sorted(name for name in os.listdir(target) if name not in allowed)
    if target.samefile(folder):
        strangers = ["the run itself"]
    elif (target / MANIFEST).exists() and not strangers:
        files = {block["file"] for block in read_manifest(target)["blocks"]}
        strangers = [MANIFEST] if not files <= allowed else []
    if strangers:
        raise UserError(f"{out}: expected an empty folder or a packed model to replace, found {strangers[0]!r}")


def halved(tensor: Tensor) -> Tensor:
    """The tensor in float16."""
    return tensor.to(torch.float16) if tensor.is_floating_point() else tensor


def stays(key: str, tensor: Tensor) -> bool:
    """What is not halved: scales, and the random layers, whose rounding would be as large as what their posterior says."""
    return tensor.numel() == 1 or "last." in key
