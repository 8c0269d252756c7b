"""Plugins: a file in a plugin folder, or a module that another distribution names as an entry point.

A plugin folder is a package in which each file is a plugin: `bdgd_plus.py` in `bayescade.methods` is the plugin `bdgd-plus`.
Another distribution declares an entry point, whose group is the name of that package:

    [project.entry-points."bayescade.phantoms"]
    my-phantom = "my_package.phantom"

The package defines what its plugins are called in messages (`KIND`) and which names a plugin must define (`required`).
`names` does not import plugins.
"""

import difflib
import importlib
import pkgutil
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from bayescade.errors import UserError

DOCUMENTATION = "docs/extending.md"


def names(package: ModuleType) -> list[str]:
    """Names of all plugins, of bayescade and of other distributions, in alphabetical order."""
    return sorted({*our_names(package), *(entry.name for entry in entry_points(group=package.__name__))})


def our_names(package: ModuleType) -> list[str]:
    """Names of the plugins in a plugin folder, in alphabetical order; a file `_name.py` is not a plugin."""
    modules = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))


def load(package: ModuleType, name: str) -> ModuleType:
    """Imports the plugin of that name.

    Raises if no plugin or more than one plugin has that name, or if the plugin does not define a required name.
    """
    entries = [entry for entry in entry_points(group=package.__name__) if entry.name == name]
    distributions = ["bayescade"] if name in our_names(package) else []
    distributions += [_distribution(entry) for entry in entries]
    what = f"{package.KIND} '{name}'"
    if not distributions:
        raise UserError(unknown(package.KIND, name, names(package)))
    if len(distributions) > 1:
        raise UserError(
            f"{what}: expected one distribution with this name, got {' and '.join(distributions)}; "
            f"uninstall {distributions[-1]}"
        )
    if entries:
        plugin = _import_entry(what, entries[0])
    else:
        plugin = importlib.import_module(f"{package.__name__}.{name.replace('-', '_')}")
    for key, purpose in package.required(plugin).items():
        if not hasattr(plugin, key):
            raise UserError(
                f"{what} of the distribution {distributions[0]}: {plugin.__name__} has no '{key}': {purpose}; "
                f"see {DOCUMENTATION}"
            )
    return plugin


def _import_entry(what: str, entry: EntryPoint) -> ModuleType:
    """Imports the module that an entry point names."""
    try:
        plugin = entry.load()
    except Exception as error:  # the code of another distribution may raise any exception
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
    """A message about an unknown name: the name, the most similar known name, and all known names."""
    similar = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean '{similar[0]}'?" if similar else "."
    return f"unknown {what} '{name}'{hint} There {'is' if len(known) == 1 else 'are'}: {', '.join(known)}"
