"""Names that readers misread are not used: the field has better ones (the table in `docs/contributing.md`)."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "examples", "benchmarks")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != Path(__file__))
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

MISREAD = re.compile(r"places?|spreads?|draws|heads?|shelf|shelves|teams?|doubts?")
# Rows of a table, of panels, of taps or of a detector are rows; images of a training are an image store.
ROWS = ("cli", "pipeline", "figures", "examples", "benchmarks", "kernels", "tests", "cone_beam.py")
ALLOWED = {"--draws"}  # of `benchmark paper`: an older name that is still accepted
# A setting and a value of format 1; `test_train.py` still has the setting.
FORMAT_1 = ("_format_1.py", "test_manifest.py", "test_train.py")
DOCUMENTS_ALLOWED = ALLOWED | {"draws"}
TAG = re.compile(r"</?head>")  # of HTML


def words(name: str) -> list[str]:
    """The words of an identifier: snake_case or CamelCase."""
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_")


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What things are called."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Name):
            yield line, node.id
        elif isinstance(node, ast.Attribute):
            yield line, node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield line, node.name
        elif isinstance(node, ast.arg | ast.keyword) and node.arg is not None:
            yield line, node.arg


def texts(source: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What users and developers read: messages, docstrings, comments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, TAG.sub("", node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_misread_name(path: Path) -> None:
    source = path.read_text()
    tree = ast.parse(source)
    misread = [(line, name) for line, name in identifiers(tree) if any(MISREAD.fullmatch(word) for word in words(name))]
    for line, text in texts(source, tree):
        misread += [(line, word) for word in re.findall(r"[\w-]+", text) if MISREAD.fullmatch(word.lower().lstrip("-"))]
    if not any(part in ROWS for part in path.relative_to(ROOT).parts) and path.name not in ROWS:
        misread += [(line, name) for line, name in identifiers(tree) if "rows" in words(name)]
    allowed = ALLOWED | {"draws", "spread"} if path.name in FORMAT_1 else ALLOWED
    wrong = [f"{path.name}:{line}: {word}" for line, word in misread if word not in allowed]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_misread_word_in_the_documents(path: Path) -> None:
    wrong = [
        f"{path.name}:{number}: {word}"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for word in re.findall(r"[\w-]+", line)
        if MISREAD.fullmatch(word.lower()) and word not in DOCUMENTS_ALLOWED
    ]
    assert not wrong, "\n".join(wrong)
