"""One process at a time in a folder."""

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
    """Raises when another process on this machine uses the folder; no effect where the system has no locks."""
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
