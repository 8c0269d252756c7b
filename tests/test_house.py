"""The laws of the house: few parameters, few settings, few modules at the top, one recursion, no isinstance of block parts."""

import ast
from collections.abc import Iterator
from pathlib import Path

import bayescade
from bayescade.config import setting_names
from bayescade.methods import bdgd_plus

PACKAGE = Path(bayescade.__file__).parent


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield str(path.relative_to(PACKAGE)), node


def test_few_functions_have_many_parameters() -> None:
    """Outside kernels and the command line at most five functions take eight or more."""
    many = []
    for name, function in functions():
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        count = len([argument for argument in arguments if argument.arg not in ("self", "cls")])
        if count >= 8 and not name.startswith("kernels") and not name.startswith("cli"):
            many.append(f"{name}: {function.name} ({count})")
    assert len(many) <= 5, "\n".join(many)


def test_a_run_has_few_settings() -> None:
    assert len(setting_names(bdgd_plus.Settings)) <= 30


def test_few_modules_are_at_the_top() -> None:
    assert len(list(PACKAGE.glob("*.py"))) < 14


def test_one_file_has_the_recursion() -> None:
    """The gradient of the fidelity and the next image meet in one file; training and sampling call it."""
    loops = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if ".inputs(" in text and ".image(" in text:
            loops.append(str(path.relative_to(PACKAGE)))
    assert loops == ["networks/cascade.py"]


def test_nobody_asks_what_a_block_is_made_of() -> None:
    """A variance or a stack of convolutions is asked for what it can do, not for its class."""
    parts = {"VarianceNet", "OneVariance", "Conv2d", "Convolution", "Trunk"}
    asked = []
    for name, function in functions():
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                names |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
                if names & parts and name != "blocks/convolution.py":
                    asked.append(f"{name}: {function.name}")
    assert not asked, "\n".join(asked)
