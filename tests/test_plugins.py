"""Methods, phantoms and noise models of other distributions, which name them as entry points."""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

import bayescade
from bayescade import methods, phantoms, plugins
from bayescade.cli import run
from bayescade.data.scan import ScanReader
from bayescade.errors import UserError
from tests.extending import COMMANDS, ENTRY_POINTS, install, write_package

SOURCE = Path(bayescade.__file__).parent.parent
METHODS, PHANTOMS, NOISE = "bayescade.methods", "bayescade.phantoms", "bayescade.noise"


def bayescade_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a folder whose packages are installed."""
    path = os.pathsep.join([str(folder), str(SOURCE)])
    return subprocess.run(
        [sys.executable, "-m", "bayescade", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.split(".")[0] == "my_package"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.slow
def test_the_package_of_the_page_is_listed_and_used(tmp_path: Path) -> None:
    write_package(tmp_path)
    assert {group: list(entries) for group, entries in ENTRY_POINTS.items()} == {
        METHODS: ["landweber"],
        PHANTOMS: ["disk"],
        NOISE: ["drift"],
    }
    answers = {}
    for command in COMMANDS:
        done = bayescade_command(tmp_path, *command, "--json", "--device", "cpu")
        assert done.returncode == 0, f"{command}: {done.stderr}"
        answers[command[0]] = json.loads(done.stdout)
    assert set(answers) == {"models", "simulate", "reconstruct", "evaluate"}
    (row,) = [row for row in answers["models"]["models"] if row["name"] == "landweber"]
    assert row["about"] == "Landweber iteration: gradient descent on the squared error of the data."
    assert row["case"] == "any"
    assert answers["simulate"]["phantom"] == "disk"
    assert answers["simulate"]["noise"] == "views that drift by 5 %"
    assert answers["reconstruct"]["psnr"] > 15
    assert answers["evaluate"]["rows"][0]["method"] == "landweber"
    with h5py.File(tmp_path / "s.h5") as scan:
        assert json.loads(scan.attrs["noise_model"]) == {"model": "drift", "std": 0.05}
        assert "noise" not in scan.attrs


@pytest.mark.slow
def test_a_scan_of_a_noise_model_that_is_not_installed_is_read(tmp_path: Path) -> None:
    write_package(tmp_path)
    scan = tmp_path / "scan.h5"
    command = f"simulate --phantom disk --case sparse-8 --noise-model drift -o {scan}"
    assert bayescade_command(tmp_path, *command.split()).returncode == 0
    with ScanReader(scan) as reader:
        assert reader.read(0, 1).sinogram.shape == (1, 1, 8, 183)
        with pytest.raises(UserError, match=r"scan\.h5: unknown noise model 'drift'"):
            reader.noise()


SIMULATE = "simulate --case sparse-8 -o scan.h5 "
BROKEN = [
    (
        {PHANTOMS: {"square": "nowhere.square"}},
        SIMULATE + "--phantom square",
        "phantom 'square' of the distribution other: nowhere.square cannot be imported "
        "(ModuleNotFoundError: No module named 'nowhere')",
    ),
    (
        {METHODS: {"fails": "my_package.fails"}},
        "evaluate fails --case sparse-8",
        "method 'fails' of the distribution other: my_package.fails cannot be imported (RuntimeError: two lines)",
    ),
    (
        {METHODS: {"fbp": "my_package.landweber"}},
        "evaluate fbp --case sparse-8",
        "method 'fbp': expected one distribution with this name, got bayescade and other; uninstall other",
    ),
    (
        {PHANTOMS: {"disk": "my_package.disk"}},
        SIMULATE + "--phantom disk",
        "phantom 'disk': expected one distribution with this name, got ",
    ),
    (
        {METHODS: {"empty": "my_package.disk"}},
        "evaluate empty --case sparse-8",
        "method 'empty' of the distribution other: my_package.disk has no 'Settings': the frozen dataclass of its "
        "settings; see docs/extending.md",
    ),
    (
        {METHODS: {"no-train": "my_package.no_train"}},
        "train no-train --case sparse-8 --out run",
        "my_package.no_train has no 'train': train(data, settings, run, seed=, report=, processes=)",
    ),
    (
        {PHANTOMS: {"square": "my_package.landweber"}},
        SIMULATE + "--phantom square",
        "my_package.landweber has no 'generate': generate(count, shape, *, seed, first, supersample, device)",
    ),
    (
        {NOISE: {"silent": "my_package.disk"}},
        SIMULATE + "--phantom ellipses --noise-model silent",
        "noise model 'silent' of the distribution other: my_package.disk has no 'Settings'",
    ),
    (
        {NOISE: {"class": "my_package.drift:Settings"}},
        SIMULATE + "--phantom ellipses --noise-model class",
        "expected an entry point that names a module, e.g. my_package.my_module, got my_package.drift:Settings",
    ),
]


@pytest.mark.parametrize(("entries", "line", "words"), BROKEN, ids=[words[:30] for _, _, words in BROKEN])
def test_a_broken_plugin_is_one_clear_line(
    entries: dict[str, dict[str, str]],
    line: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_package(tmp_path)
    install(tmp_path, "other", entries)
    (tmp_path / "my_package" / "fails.py").write_text("raise RuntimeError('two\\nlines')\n")
    (tmp_path / "my_package" / "no_train.py").write_text("ANY_GEOMETRY = False\nSettings = preset = object\n")
    use(tmp_path, monkeypatch)
    code = run(line.split())
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err.count("\n") == 1, err
    assert words in err


def test_a_broken_plugin_that_is_not_used_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "other", {METHODS: {"broken": "nowhere"}, PHANTOMS: {"square": "nowhere.square"}})
    use(tmp_path, monkeypatch)
    assert {"broken", "fbp"} <= set(plugins.names(methods))
    assert {"square", "ellipses"} <= set(plugins.names(phantoms))
    assert "broken" not in plugins.our_names(methods)
    assert run(["models", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["models"]}
    assert rows["fbp"]["case"] == "any"
    assert "of the distribution other: nowhere cannot be imported" in rows["broken"]["about"]
    for line in ("reconstruct none.h5 --model nothing -o out.h5", "train nothing --case sparse-8 --out run"):
        assert run(line.split()) == 2
        assert "nowhere" not in capsys.readouterr().err


@pytest.mark.parametrize("package", [methods, phantoms], ids=["methods", "phantoms"])
def test_our_own_plugins_have_what_they_need(package) -> None:
    for name in plugins.our_names(package):
        assert plugins.load(package, name).__doc__, f"{name} has no sentence"


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(UserError, match=r"unknown phantom 'elipses'; did you mean 'ellipses'\? There are: bars, "):
        plugins.load(phantoms, "elipses")
