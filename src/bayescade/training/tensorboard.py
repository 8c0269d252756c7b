"""Metrics for TensorBoard, which `bayescade[track]` installs; no other file imports TensorBoard."""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bayescade.errors import UserError

Track = Callable[[dict[str, Any]], None]


def check_tracker(wanted: bool) -> None:
    """Raises `UserError` if metrics are wanted for TensorBoard, but TensorBoard is not installed."""
    if wanted and importlib.util.find_spec("tensorboard") is None:
        raise UserError("--tensorboard: TensorBoard is not installed; type: pip install 'bayescade[track]'")


@contextlib.contextmanager
def tracker(folder: Path | None) -> Iterator[Track]:
    """Gives a function that writes metrics into the folder; without a folder the function does nothing."""
    if folder is None:
        yield lambda line: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:

        def track(line: dict[str, Any]) -> None:
            for name, value in line.items():
                if name not in ("block", "try", "epoch") and isinstance(value, float):
                    writer.add_scalar(f"block {line['block']:02d}/{name}", value, line.get("epoch", 0))

        yield track
