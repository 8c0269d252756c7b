"""numba's compiler: functions without the interpreter's lock, cached on disk where a folder can be written."""

from typing import Any

import numba


def compiled(**options: Any) -> Any:
    """A decorator that compiles a function."""

    def decorate(function: Any) -> Any:
        try:
            return numba.njit(nogil=True, cache=True, error_model="numpy", **options)(function)
        except RuntimeError:  # neither the package's folder nor a home folder can be written
            return numba.njit(nogil=True, error_model="numpy", **options)(function)

    return decorate
