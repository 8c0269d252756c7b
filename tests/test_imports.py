"""The direction of imports: each room imports only rooms of lower levels (docs/architecture.md)."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bayescade

PACKAGE = Path(bayescade.__file__).parent
ROOT = Path(__file__).parent.parent

LEVELS = [
    set(level.split())
    for level in re.findall(r"^\d+ (.*)$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# Without torch, CT, numba until needed.
LAZY = {
    "bayescade.cli.benchmarks", "bayescade.cli.models", "bayescade.cli.options", "bayescade.cli.scans", "bayescade.cli",
    "bayescade.models", "bayescade.projectors._kernels",
}  # fmt: skip
FREE = {"bayescade", "bayescade.__version__"}  # the version, from anywhere


def room(module: str) -> str:
    return module.split(".")[1]


def modules() -> list[tuple[str, ast.Module]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(["bayescade", *parts]).removesuffix(".__init__")
        if name != "bayescade":
            found.append((name, ast.parse(path.read_text())))
    return found


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "bayescade":
                names |= {f"bayescade.{alias.name}" for alias in node.names}
            else:
                names.add(node.module or "")
    return {name for name in names if name.startswith("bayescade") and name not in FREE}


@pytest.mark.parametrize(("name", "tree"), modules(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_room_imports_lower_levels_only(name: str, tree: ast.Module) -> None:
    assert room(name) in LEVEL, f"{room(name)} has no level; add it to docs/architecture.md"
    for other in imported(tree):
        if room(other) != room(name):
            assert LEVEL[room(other)] < LEVEL[room(name)], f"{name} imports {other}, which is not below it"


def test_no_cycles_inside_a_room() -> None:
    graph = {name: imported(tree) for name, tree in modules()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"cycle: {' -> '.join((*path, name))}"
        if name in done:
            return
        for other in graph.get(name, ()):
            visit(other, (*path, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def test_imports_are_at_the_top_except_in_the_commands() -> None:
    for name, tree in modules():
        inside = [
            node for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) for node in ast.walk(function)
        ]
        hidden = set().union(
            *(imported(node) for node in inside if isinstance(node, ast.Import | ast.ImportFrom)), set()
        )
        assert not hidden or name in LAZY, f"{name} hides imports in functions: {hidden}"


@pytest.mark.parametrize("statement", ["import bayescade", "import bayescade.cli"])
def test_torch_is_not_imported_for_help(statement: str) -> None:
    code = f"import sys; {statement}; print([m for m in ('torch', 'numpy', 'h5py', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_module_can_be_imported_without_triton() -> None:
    """The CPU build of torch comes without it."""
    names = [name for name, _ in modules() if not name.endswith("__main__")]
    code = f"import sys; sys.modules['triton'] = None; [__import__(name) for name in {names!r}]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
