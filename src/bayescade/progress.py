"""Progress with time left, on standard error; standard output is for results.

Commands show it (`show_progress`); code that is called from Python is quiet.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PLAIN_EVERY = 10.0  # seconds between lines where there is no terminal


class Advance(Protocol):
    """A function to call with the number of items done since the last call, and a note."""

    def __call__(self, count: int, note: str = "") -> None: ...


_shown = False
_bars: Progress | None = None  # the bars on the terminal; nested work adds a bar below


def show_progress() -> None:
    """Switches the display on."""
    global _shown
    _shown = True


def quiet(count: int, note: str = "") -> None:
    """Progress without display."""


@contextmanager
def progress(label: str, total: int) -> Iterator[Advance]:
    """Gives a function to call as items are done; shows the number done and the time left.

    On a terminal it is a bar that disappears at the end; elsewhere a line every few seconds.
    """
    if not _shown:
        yield quiet
    elif not sys.stderr.isatty():
        yield _plain(label, total)
    else:
        with _terminal() as bars:
            task = bars.add_task(label, total=total, note="")
            yield lambda count, note="": bars.update(task, advance=count, note=note)
            bars.remove_task(task)


@contextmanager
def _terminal() -> Iterator[Progress]:
    global _bars
    if _bars is not None:
        yield _bars
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as _bars:
        try:
            yield _bars
        finally:
            _bars = None


def _plain(label: str, total: int) -> Advance:
    start = shown = time.monotonic()
    done = 0

    def advance(count: int, note: str = "") -> None:
        nonlocal done, shown
        done += count
        now = time.monotonic()
        if now - shown >= PLAIN_EVERY and done < total:
            left = (now - start) / done * (total - done)
            message = f"; {note}" if note else ""
            print(f"{label}: {done} of {total}, about {left:.0f} s left{message}", file=sys.stderr, flush=True)
            shown = now

    return advance
