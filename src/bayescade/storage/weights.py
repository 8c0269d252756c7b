"""Weights in safetensors files: written atomically, and checked against the hash in the manifest when they are read."""

import hashlib
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from bayescade.errors import UserError
from bayescade.storage._format_1 import current_tensors
from bayescade.storage.files import replacing, write_or_fail
from bayescade.storage.manifest import Manifest

PACKED = "weights-{}.safetensors"  # name of a packed file; {} is the start of its hash
OPTIMISER_PREFIX = "optimiser."  # prefix of tensors that only training needs
INNER = "variance."  # prefix of tensors that reconstruction needs only in the last block
REMEDY = "restore it, or train again in another folder"

Tensors = dict[str, Tensor]


def read_blocks(folder: Path | str, manifest: Manifest) -> list[Tensors]:
    """The weights of every block; each file is checked against its hash."""
    files: dict[str, Tensors] = {}
    blocks = []
    for number, record in enumerate(manifest.blocks, 1):
        if record.file not in files:
            files[record.file] = read_tensors(Path(folder) / record.file, record.sha256)
        prefix = f"{number:02d}."
        items = files[record.file].items()
        tensors = {key.removeprefix(prefix): value for key, value in items if key.startswith(prefix)}
        blocks.append(current_tensors(tensors) if record.format == 1 else tensors)
    return blocks


def numbered(index: int, tensors: Tensors) -> Tensors:
    """The tensors of block `index` (from 0), with the block number as the prefix of their names: `01.` for block 0."""
    return {f"{index + 1:02d}.{key}": value for key, value in tensors.items()}


def write_tensors(path: Path, tensors: Tensors) -> str:
    """Writes a safetensors file and returns its hash."""
    content, digest = serialised(tensors)
    write_bytes(path, content)
    return digest


def serialised(tensors: Tensors) -> tuple[bytes, str]:
    """The content of a safetensors file, and its hash."""
    content = save_tensors({key: value.detach().cpu().contiguous() for key, value in tensors.items()})
    return content, hashlib.sha256(content).hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file of weights atomically."""

    def write(path: Path) -> None:
        with replacing(path) as partial:
            partial.write_bytes(content)

    write_or_fail(path, write)


def read_tensors(path: Path, digest: str) -> Tensors:
    """The tensors of a safetensors file; raises if the hash of the file is not `digest`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read the weights ({error.strerror}); {REMEDY}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise UserError(f"{path}: damaged, or from another run: its hash is not the hash in the manifest; {REMEDY}")
    try:
        tensors: Tensors = load_tensors(content)
    except SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error}); {REMEDY}") from None
    return tensors


def is_packed(manifest: Manifest) -> bool:
    """Whether the manifest belongs to a packed model, also if further blocks were trained after packing."""
    return any(block.file == PACKED.format(block.sha256[:8]) for block in manifest.blocks)
