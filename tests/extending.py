"""The package that docs/extending.md shows, as files: what tests of the page and of plugins share."""

import re
import tomllib
from pathlib import Path

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"```python\n# (my_package/\S+)\n(.*?)```", PAGE, re.DOTALL))  # name -> code
COMMANDS = [line.split("#")[0].split()[1:] for line in re.findall(r"^bayescade .*", PAGE, re.MULTILINE)]
ENTRY_POINTS = tomllib.loads(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0])["project"]["entry-points"]


def write_package(folder: Path) -> None:
    """The package of the page, as if it had been installed into the folder."""
    for name, code in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
    install(folder, "my-package", ENTRY_POINTS)


def install(folder: Path, distribution: str, entry_points: dict[str, dict[str, str]]) -> None:
    """What an installer writes about a distribution, without its code."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
