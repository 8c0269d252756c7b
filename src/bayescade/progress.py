"""Progress bars with time left, on standard error; standard output belongs to the answer."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Item = TypeVar("Item")


def track(items: Sequence[Item] | Iterable[Item], label: str, total: float | None = None) -> Iterator[Item]:
    """The items, with a bar that says how many are done and how long the rest will take.

    On a terminal the bar is live and goes away when it is done; elsewhere nothing is drawn.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(items, total=total, description=label)
