"""A training that takes a second: the scan, the settings and the command that its tests share."""

from pathlib import Path

import pytest

from bayescade.cli import run

GEOMETRY = "bins = 15\nviews = 6\nimage_shape = [12, 12]\n"
SETTINGS = [
    "fit.batch=4",
    "data.images=8",
    "data.validation_images=2",
    "block.channels=4",
    "greedy.restarts=0",
]
LONGER = [*SETTINGS, "greedy.resample=1", "fit.epochs=3"]  # with inputs that are drawn again
TINY = [*SETTINGS, "greedy.blocks=2", "fit.epochs=2"]


def command(method: str, geometry: str, out: Path, *more: str) -> list[str]:
    """What trains it."""
    settings = [part for text in TINY for part in ("--set", text)]
    return ["train", method, "--geometry", geometry, "--out", str(out), *settings, "--device", "cpu", *more]


def said(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int = 0) -> str:
    """What a command says that ends in this way."""
    assert run(arguments) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err
