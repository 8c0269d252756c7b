"""What the tests of trainings share."""

from pathlib import Path

import pytest

from tests.pipeline.tiny import GEOMETRY


@pytest.fixture
def geometry(tmp_path: Path) -> str:
    """The file of a tiny scan."""
    path = tmp_path / "geo.toml"
    path.write_text(GEOMETRY)
    return str(path)
