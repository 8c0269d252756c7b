"""Progress with time left, on standard error; standard output belongs to the answer.

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
    """A function that is told how many more are done, and what there is to say."""

    def __call__(self, count: int, note: str = "") -> None: ...


_shown = False
_bars: Progress | None = None  # the bars on the terminal now: work inside work adds one below


def show_progress() -> None:
    """From now on progress is shown."""
    global _shown
    _shown = True


def quiet(count: int, note: str = "") -> None:
    """Progress that nobody sees."""


@contextmanager
def progress(label: str, total: int) -> Iterator[Advance]:
    """Gives a function to call with how many more are done; shows how many are, and how long the rest will take.

    On a terminal it is a live bar that goes away at the end; elsewhere a line now and then.
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
            said = f"; {note}" if note else ""
            print(f"{label}: {done} of {total}, about {left:.0f} s left{said}", file=sys.stderr, flush=True)
            shown = now

    return advance
