import pytest

from bayescade import progress as module
from bayescade.progress import progress


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
