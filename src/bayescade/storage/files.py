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
    """Gives a temporary path. Its file replaces `path` atomically when the `with` block ends without an exception.

    If the process is killed before that, `path` does not change; the next write to `path` removes the temporary file.
    """
    check_writable(path)
    path = Path(os.path.realpath(path))
    _remove_old_temporary_files(path)
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
    """Raises if no file can be written to `path`. Called early, before the content of the file is computed."""
    path = Path(path)
    if not str(path).strip("."):
        raise UserError("expected a file name to write to, got an empty name")
    if path.is_dir():
        raise UserError(f"{path}: expected a file name to write to, got a folder; add a name")
    if path.parent.exists() and not path.parent.is_dir():
        raise UserError(f"{path}: {path.parent} is a file, not a folder; choose another folder")
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist; make it with: mkdir -p {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path}: the folder {path.parent} is not writable; choose another folder")
    if len(os.fsencode(path.name)) > 255:
        raise UserError(f"{path.name:.40}...: the name is longer than 255 bytes; choose a shorter name")


def check_other_file(out: Path | str, *inputs: Path | str | None) -> None:
    """Raises if the output file is one of the input files."""
    for path in inputs:
        if path and Path(out).exists() and Path(path).exists() and Path(out).samefile(path):
            raise UserError(f"{out}: this is also an input file; write to another file")


def make_folder(path: Path | str) -> Path:
    """Makes the folder if it does not exist, and returns its path."""
    check_folder(path)
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot make this folder ({error.strerror}); choose another folder") from None
    return Path(path)


def check_folder(path: Path | str, *names: str) -> None:
    """Raises if there cannot be a folder at `path`, or if a file with one of the names cannot be written into it."""
    if not str(path):
        raise UserError("expected the name of a folder, got an empty name")
    if Path(path).exists() and not Path(path).is_dir():
        raise UserError(f"{path}: cannot make this folder (it is a file); choose another folder")
    for name in names:
        if Path(path).is_dir():
            check_writable(Path(path) / name)


def _temporary_prefix(path: Path) -> str:
    """The common prefix of all temporary names for `path` on this host."""
    name = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:10]
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
    return f".bayescade-{name}-{host}-"


def _remove_old_temporary_files(path: Path) -> None:
    """Removes temporary files of `path` whose process does not run any more."""
    prefix = _temporary_prefix(path)
    for name in os.listdir(path.parent):
        if name.startswith(prefix) and name.endswith(".partial"):
            process = name.removeprefix(prefix).split("-")[0]
            if process.isdigit() and not _is_running(int(process)):
                (path.parent / name).unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # the process runs, under another user
    return True


def write_text(path: Path | str, text: str) -> None:
    """Writes a UTF-8 file atomically."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="replace")


def write_json(path: Path | str, value: Any) -> None:
    """Writes a JSON file; NaN is an error."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_or_fail(path: Path, write: Callable[[Path], None]) -> None:
    """Calls `write(path)`; an OSError, e.g. for a full disk, is raised as a `Failure` with a one-line message."""
    try:
        write(path)
    except OSError as error:
        raise Failure(f"{path}: cannot write ({error.strerror or error}); an existing file is unchanged") from None


def check_readable(path: Path | str) -> None:
    """Raises unless `path` is a file that can be read."""
    if not str(path):
        raise UserError("expected the name of a file to read, got an empty name")
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
    """The suffix of the file name in lower case, e.g. `.npz`."""
    return Path(path).suffix.lower()
