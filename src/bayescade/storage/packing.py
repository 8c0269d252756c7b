"""Packs a finished run as a model: all blocks in one file.

The file name contains the start of the hash of its content, so a new file never replaces a file that is in use. Without
`trainable` the file has only the tensors that reconstruction needs: the variance network of the last block only, unless the
blocks were trained together, and no optimiser states.
"""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from bayescade.errors import UserError
from bayescade.storage.files import check_folder, make_folder, read_text, write_json, write_text
from bayescade.storage.identity import check_trainable
from bayescade.storage.manifest import FORMAT, MANIFEST, Manifest, read_manifest, to_json
from bayescade.storage.runs import CARD, blocks_saved
from bayescade.storage.weights import (
    INNER,
    OPTIMISER_PREFIX,
    PACKED,
    Tensors,
    numbered,
    read_blocks,
    serialised,
    write_bytes,
)


def pack(
    folder: Path | str,
    out: Path | str,
    *,
    half: bool = False,  # most weights in float16
    trainable: bool = False,  # with all tensors that further training needs
) -> Manifest:
    """Writes a finished run as a packed model: weights, manifest and card."""
    manifest = read_manifest(folder)
    if manifest.status != "done" or not manifest.blocks:
        raise UserError(f"{folder}: this run is not finished ({blocks_saved(manifest)})")
    if trainable:
        check_trainable(Path(folder), manifest)
    check_folder(out, MANIFEST, CARD)
    check_packing(out, folder)
    card = read_text(Path(folder) / CARD)
    whole = trainable or manifest.joint is not None  # then the first blocks alone are a cascade too
    content, digest = serialised(packed_tensors(read_blocks(folder, manifest), half=half, whole=whole))
    target = make_folder(out)
    name = PACKED.format(digest[:8])
    write_bytes(target / name, content)
    blocks = tuple(dataclasses.replace(block, file=name, sha256=digest, format=FORMAT) for block in manifest.blocks)
    packed = dataclasses.replace(manifest, blocks=blocks, half=half or manifest.half, trainable=trainable)
    write_text(target / CARD, card)
    write_json(target / MANIFEST, to_json(packed))
    for path in target.glob(PACKED.format("*")):
        if path.name != name:
            path.unlink()
    return packed


def packed_tensors(
    blocks: Sequence[Tensors],
    *,
    half: bool,
    whole: bool,  # with the variance networks of all blocks
) -> Tensors:
    """The tensors of all blocks, with the names that they have in the one packed file."""
    tensors: Tensors = {}
    for index, block in enumerate(blocks):
        inner = index + 1 < len(blocks)
        needed = {key: value for key, value in block.items() if whole or is_needed(key, inner)}
        if half:
            needed = {key: value if stays_float32(key, value) else to_float16(value) for key, value in needed.items()}
        tensors |= numbered(index, needed)
    return tensors


def is_needed(key: str, inner: bool) -> bool:
    """Whether a reconstruction needs this tensor of a block; `inner`: another block follows this block."""
    return not key.startswith(OPTIMISER_PREFIX) and not (inner and key.startswith(INNER))


def check_packing(out: Path | str, folder: Path | str) -> None:
    """Raises unless the output folder is new, empty, or holds a packed model."""
    target = Path(out)
    if not target.exists():
        return
    allowed = {MANIFEST, CARD, *(path.name for path in target.glob(PACKED.format("*")))}
    foreign = sorted(name for name in os.listdir(target) if name not in allowed)
    if target.samefile(folder):
        foreign = ["the run itself"]
    elif (target / MANIFEST).exists() and not foreign:
        files = {block.file for block in read_manifest(target).blocks}
        foreign = [MANIFEST] if not files <= allowed else []
    if foreign:
        raise UserError(f"{out}: expected an empty folder or a packed model to replace, got {foreign[0]!r}")


def to_float16(tensor: Tensor) -> Tensor:
    """The tensor in float16; a tensor of integers is unchanged."""
    return tensor.to(torch.float16) if tensor.is_floating_point() else tensor


def stays_float32(key: str, tensor: Tensor) -> bool:
    """Whether a tensor stays in float32: scales, optimiser states, and random layers.

    In random layers the rounding error of float16 may exceed the standard deviation of a weight.
    """
    return tensor.numel() == 1 or key.endswith("scale") or "last." in key or key.startswith(OPTIMISER_PREFIX)
