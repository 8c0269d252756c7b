"""What the documents show works as shown."""

import re
from pathlib import Path

import pytest
import torch

from bayescade import Reconstruction
from bayescade.cli import run
from tests.extending import write_package

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        assert target.startswith("http") or (path.parent / target).exists(), f"{path.name} links to {target}"


PYTHON = [(path.name, code) for path in DOCUMENTS for code in blocks(path, "python")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), PYTHON, ids=[name for name, _ in PYTHON])
def test_python_in_the_documents_runs(name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "extending.md":
        write_package(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
    made: dict[str, object] = {}
    exec(code, made)
    results = [value for value in made.values() if isinstance(value, Reconstruction)]
    assert all(bool(torch.isfinite(result.image).all()) for result in results), f"{name}: an image is not finite"
    if name == "README.md":
        assert any(float(result.std.max()) > 0 for result in results), "the README shows a result with uncertainty"


@pytest.mark.slow
def test_the_readme_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        line for block in blocks(ROOT / "README.md", "") for line in block.splitlines() if line.startswith("bayescade ")
    ]
    assert len(lines) >= 5
    assert run(["demo"]) == 0
    first, *others, _ = capsys.readouterr().out.splitlines()
    for said in (first.rsplit(",", 1)[0], *others):
        assert said in (ROOT / "README.md").read_text(), f"the README shows another demo than: {said}"
    for line in lines:
        arguments = line.split("#")[0].split()[1:]
        if arguments[:2] == ["benchmark", "paper"]:
            arguments += ["--images", "2", "--noise-seeds", "1"]
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
