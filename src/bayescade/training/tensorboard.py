"""Metrics for TensorBoard, with the extra `track`; the only place that knows it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bayescade.errors import UserError

Track = Callable[[dict[str, Any]], None]


@contextlib.contextmanager
def tracker(folder: Path | None) -> Iterator[Track]:
    """A function that takes lines of metrics; without a folder it does nothing."""
    if folder is None:
        yield lambda line: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard: the extra is not installed; type: pip install 'bayescade[track]'") from None
    with SummaryWriter(str(folder)) as writer:

        def track(line: dict[str, Any]) -> None:
            for name, value in line.items():
                if name not in ("block", "try", "epoch") and isinstance(value, float):
                    writer.add_scalar(f"block {line['block']:02d}/{name}", value, line.get("epoch", 0))

        yield track
