"""A lock: only one process at a time may use a folder."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from bayescade.errors import UserError
from bayescade.storage.files import make_folder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(folder: Path | str) -> Iterator[None]:
    """Locks a folder during the `with` block; raises if another process of this machine has locked it.

    No effect on Windows.
    """
    if fcntl is None:
        yield
        return
    handle = os.open(make_folder(folder), os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(
            f"{folder}: another process is training into this folder; wait until it ends, or choose another folder"
        ) from None
    finally:
        os.close(handle)
