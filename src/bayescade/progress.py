"""Progress and the time left, on standard error; standard output is for results.

Commands switch the display on (`show_progress`); without it nothing is shown, e.g. when functions are called from Python.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PLAIN_EVERY = 10.0  # seconds between lines if standard error is not a terminal


class Advance(Protocol):
    """A function to call with the number of items that were done since the last call, and a note to show."""

    def __call__(self, count: int, note: str = "") -> None: ...


_shown = False  # whether the display is on
_bars: Progress | None = None  # the bars on the terminal; a nested `progress` adds a bar below


def show_progress() -> None:
    """Switches the display on."""
    global _shown
    _shown = True


def quiet(count: int, note: str = "") -> None:
    """An `Advance` that shows nothing."""


def message(text: str) -> None:
    """A line on standard error, if the display is on."""
    if _shown:
        print(f"bayescade: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, total: int) -> Iterator[Advance]:
    """Gives a function to call when items are done; shows the number of items done and the time left.

    On a terminal this is a bar that disappears at the end; otherwise a line is printed, at most every 10 seconds.
    """
    if not _shown:
        yield quiet
    elif not sys.stderr.isatty():
        yield _line_printer(label, total)
    else:
        with _terminal_bars() as bars:
            task = bars.add_task(label, total=total, note="")
            yield lambda count, note="": bars.update(task, advance=count, note=note)
            bars.remove_task(task)


@contextmanager
def _terminal_bars() -> Iterator[Progress]:
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


def _line_printer(label: str, total: int) -> Advance:
    start = last_print_time = time.monotonic()
    done = 0

    def advance(count: int, note: str = "") -> None:
        nonlocal done, last_print_time
        done += count
        now = time.monotonic()
        if now - last_print_time >= PLAIN_EVERY and done < total:
            seconds_left = (now - start) / done * (total - done)
            message = f"; {note}" if note else ""
            print(f"{label}: {done} of {total}, about {seconds_left:.0f} s left{message}", file=sys.stderr, flush=True)
            last_print_time = now

    return advance
