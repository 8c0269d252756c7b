"""Atomic writes: a file is written under a temporary name and renamed when it is complete. Errors name the file."""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bayescade.errors import Failure, UserError


@contextlib.contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """A temporary path beside `path`; when the `with` block ends without an exception, it replaces `path` atomically.

    If the process dies before that, `path` does not change; the next write to the same path removes the temporary file.
    """
    check_writable(path)
    path = Path(os.path.realpath(path))
    _remove_remains(path)
    partial = path.with_name(f"{_temporary_prefix(path)}{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        partial.touch()
    except OSError as error:
        raise UserError(f"{path}: cannot write here ({error.strerror}); choose another folder") from None
    try:
        yield partial
        with partial.open("rb+") as written:
            os.fsync(written.fileno())
        if path.exists():
            shutil.copymode(path, partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def check_writable(path: Path | str) -> None:
    """Raises when a file cannot be put at `path`, before any work is done for it."""
    path = Path(path)
    if not str(path).strip("."):
        raise UserError("expected a file name to write to, got none")
    if path.is_dir():
        raise UserError(f"{path}: expected a file name to write to, got a folder; add a name")
    if path.parent.exists() and not path.parent.is_dir():
        raise UserError(f"{path}: {path.parent} is a file, not a folder; choose another folder")
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist; make it with: mkdir -p {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path}: the folder {path.parent} is not writable; choose another folder")
    if len(os.fsencode(path.name)) > 255:
        raise UserError(f"{path.name:.40}...: the name is longer than 255 bytes; choose a shorter one")


def check_other_file(out: Path | str, *inputs: Path | str | None) -> None:
    """Raises when the file to write is one of those that are read."""
    for given in inputs:
        if given and Path(out).exists() and Path(given).exists() and Path(out).samefile(given):
            raise UserError(f"{out}: this is the input itself; write to another file")


def make_folder(path: Path | str) -> Path:
    """The folder; it is made if it does not exist."""
    check_folder(path)
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot make this folder ({error.strerror}); choose another") from None
    return Path(path)


def check_folder(path: Path | str, *names: str) -> None:
    """Raises when the folder cannot be made, or when one of the files to write into it is a folder."""
    if not str(path):
        raise UserError("expected a folder's name, got nothing")
    if Path(path).exists() and not Path(path).is_dir():
        raise UserError(f"{path}: cannot make this folder (it is a file); choose another")
    for name in names:
        if Path(path).is_dir():
            check_writable(Path(path) / name)


def _temporary_prefix(path: Path) -> str:
    """The prefix of the temporary names of `path` on this host."""
    name = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:10]
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
    return f".bayescade-{name}-{host}-"


def _remove_remains(path: Path) -> None:
    start = _temporary_prefix(path)
    for other in os.listdir(path.parent):
        if other.startswith(start) and other.endswith(".partial"):
            process = other.removeprefix(start).split("-")[0]
            if process.isdigit() and not _alive(int(process)):
                (path.parent / other).unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it runs, under another user
    return True


def write_text(path: Path | str, text: str) -> None:
    """Writes a UTF-8 file, whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="replace")


def write_json(path: Path | str, value: Any) -> None:
    """Writes a JSON file; NaN is an error."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_or_fail(path: Path, write: Callable[[Path], None]) -> None:
    """Writes; raises a one-line `Failure` when the disk is full or not there."""
    try:
        write(path)
    except OSError as error:
        raise Failure(f"{path}: cannot write ({error.strerror or error}); what was there before is unchanged") from None


def check_readable(path: Path | str) -> None:
    """Raises unless there is a file to read."""
    if not str(path):
        raise UserError("expected the name of a file to read, got nothing")
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path}: expected a file, got a folder")
    if not path.exists():
        raise UserError(f"{path}: there is no such file; check the name")
    if not os.access(path, os.R_OK):
        raise UserError(f"{path}: no permission to read this file")


def read_text(path: Path | str) -> str:
    """The text of a UTF-8 file."""
    check_readable(path)
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected a text file in UTF-8 ({error})") from None


def suffix(path: Path | str) -> str:
    """The suffix of the name, in lower case."""
    return Path(path).suffix.lower()
