"""Parts of a computation on a CPU, each by one thread, with results in order.

An operation that uses all cores waits for the slowest core, hundreds of times a second. A thread that computes a whole part
waits once. The result does not depend on the number of threads.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Part = TypeVar("Part")
Done = TypeVar("Done")

_cores = threading.Lock()  # held while threads of `in_order` use the cores


def in_order(work: Callable[[Part], Done], parts: Sequence[Part], most: int) -> Iterator[Done]:
    """The result for each part, in order; at most `most` parts are computed ahead of the caller."""
    cores = torch.get_num_threads()
    workers = min(cores, len(parts), most)
    if workers < 2 or not _cores.acquire(blocking=False):
        yield from map(work, parts)
        return
    waiting: deque[Future[Done]] = deque()
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(cores // workers,)) as pool:
            try:
                for part in parts:
                    waiting.append(pool.submit(work, part))
                    if len(waiting) == workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
    finally:
        torch.set_num_threads(cores)  # also the default of threads that start later
        _cores.release()
