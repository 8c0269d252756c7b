"""Plugins: a file in a plugin folder, or a module that another distribution names as an entry point.

A plugin folder is a package in which each file is a plugin: `bdgd_plus.py` in `bayescade.methods` is the plugin `bdgd-plus`.
The entry points of others have the package's name as their group:

    [project.entry-points."bayescade.phantoms"]
    my-phantom = "my_package.phantom"

The package defines the kind of its plugins (`KIND`) and the names they must have (`required`). `names` imports no plugin.
"""

import difflib
import importlib
import pkgutil
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from bayescade.errors import UserError

DOCUMENTATION = "docs/extending.md"


def names(package: ModuleType) -> list[str]:
    """Names of all plugins, ours and those of other distributions, in alphabetical order."""
    return sorted({*our_names(package), *(entry.name for entry in entry_points(group=package.__name__))})


def our_names(package: ModuleType) -> list[str]:
    """Names of the files of a plugin folder, in alphabetical order, without those that start with an underscore."""
    modules = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))


def load(package: ModuleType, name: str) -> ModuleType:
    """The plugin of that name, with every name that it must have; raises if there is none, or more than one."""
    entries = [entry for entry in entry_points(group=package.__name__) if entry.name == name]
    owners = ["bayescade"] if name in our_names(package) else []
    owners += [_distribution(entry) for entry in entries]
    what = f"{package.KIND} '{name}'"
    if not owners:
        raise UserError(unknown(package.KIND, name, names(package)))
    if len(owners) > 1:
        raise UserError(
            f"{what}: expected one distribution with this name, got {' and '.join(owners)}; uninstall {owners[-1]}"
        )
    if entries:
        plugin = _imported(what, entries[0])
    else:
        plugin = importlib.import_module(f"{package.__name__}.{name.replace('-', '_')}")
    for key, purpose in package.required(plugin).items():
        if not hasattr(plugin, key):
            raise UserError(
                f"{what} of the distribution {owners[0]}: {plugin.__name__} has no '{key}': {purpose}; see {DOCUMENTATION}"
            )
    return plugin


def _imported(what: str, entry: EntryPoint) -> ModuleType:
    """The module that an entry point names."""
    try:
        plugin = entry.load()
    except Exception as error:  # other distributions may raise anything
        raise UserError(
            f"{what} of the distribution {_distribution(entry)}: {entry.value} cannot be imported "
            f"({type(error).__name__}: {error})"
        ) from error
    if not isinstance(plugin, ModuleType):
        raise UserError(
            f"{what} of the distribution {_distribution(entry)}: expected an entry point that names a module, "
            f"e.g. my_package.my_module, got {entry.value}; see {DOCUMENTATION}"
        )
    return plugin


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "unknown"


def unknown(what: str, name: str, known: list[str]) -> str:
    """One line about an unknown name: the name, the nearest known one, and all known ones."""
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return f"unknown {what} '{name}'{hint} There {'is' if len(known) == 1 else 'are'}: {', '.join(known)}"
