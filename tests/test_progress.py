import io

import pytest

from bayescade import progress as module
from bayescade.progress import progress


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_shown", True)


@pytest.mark.usefixtures("shown")
def test_off_a_terminal_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 20.0, 25.0, 40.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with progress("counting", 10) as advance:
        for step in (1, 3, 1, 5):
            advance(step)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "counting: 4 of 10, about 30 s left\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("shown")
def test_on_a_terminal_bars_inside_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(module.sys, "stderr", terminal)
    with progress("images", 3) as advance:
        for _ in range(3):
            with progress("iterations", 5) as inner:
                inner(5)
            advance(1)
    assert "images" in terminal.getvalue()
    assert "iterations" in terminal.getvalue()
    assert module._bars is None


def test_code_called_from_python_is_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN_EVERY", 0.0)
    monkeypatch.setattr(module, "_shown", False)
    with progress("counting", 10) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")
