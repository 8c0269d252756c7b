"""Shelves: folders that grow by one file, where the file name is the name (`bdgd-plus` is `bdgd_plus.py`)."""

import difflib
import importlib
import pkgutil
from types import ModuleType

from bayescade.errors import UserError


def names(shelf: ModuleType) -> list[str]:
    """Names on a shelf, in alphabetical order; files that start with an underscore are not on it."""
    modules = [module.name for module in pkgutil.iter_modules(shelf.__path__)]
    return sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))


def load(shelf: ModuleType, name: str) -> ModuleType:
    """Module `name` of a shelf; an unknown name is an error that lists the shelf."""
    known = names(shelf)
    if name not in known:
        raise UserError(unknown(shelf.__name__.rsplit(".", 1)[-1].rstrip("s"), name, known))
    return importlib.import_module(f"{shelf.__name__}.{name.replace('-', '_')}")


def unknown(what: str, name: str, known: list[str]) -> str:
    """One line for a name nobody knows: the name, the nearest one, and all that there are."""
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return f"unknown {what} '{name}'{hint} There {'is' if len(known) == 1 else 'are'}: {', '.join(known)}"
