"""What the documents show works as shown."""

import re
from pathlib import Path

import pytest

from bayescade.cli import run

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        assert target.startswith("http") or (path.parent / target).exists(), f"{path.name} links to {target}"


PYTHON = [(path.name, code) for path in DOCUMENTS for code in blocks(path, "python")]


@pytest.mark.parametrize(("name", "code"), PYTHON, ids=[name for name, _ in PYTHON])
def test_python_in_the_documents_runs(name: str, code: str) -> None:
    made: dict[str, object] = {}
    exec(code, made)
    assert len(made) > 1, f"{name}: the example makes nothing"


def test_the_readme_has_an_example() -> None:
    assert "README.md" in [name for name, _ in PYTHON]


def test_the_readme_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        line for block in blocks(ROOT / "README.md", "") for line in block.splitlines() if line.startswith("bayescade ")
    ]
    assert len(lines) >= 5
    assert run(["demo"]) == 0
    first, covered, samples, _ = capsys.readouterr().out.splitlines()
    for said in (first.rsplit(",", 1)[0], covered, samples.split(" samples ")[1]):
        assert said in (ROOT / "README.md").read_text(), f"the README shows another demo than: {said}"
    for line in lines:
        arguments = line.split("#")[0].split()[1:]
        if arguments[0] == "train":
            for tiny in (
                "data.images=2",
                "data.validation_images=1",
                "greedy.blocks=1",
                "fit.epochs=1",
                "greedy.restarts=0",
            ):
                arguments += ["--set", tiny]
        assert run(arguments) == 0, line
    (tmp_path / "geo.toml").write_text(blocks(ROOT / "README.md", "toml")[0])
    assert run(["simulate", "--phantom", "ellipses", "--geometry", "geo.toml", "--photons", "1e5", "-o", "own.h5"]) == 0
    capsys.readouterr()
