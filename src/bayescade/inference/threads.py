"""Parts of a work on a CPU, done by threads with cores of their own, and given back in order.

An operation that shares its work among cores waits for the slowest of them, a hundred times a second; a thread with a part of
its own waits once. What comes out does not depend on how many threads there are.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Part = TypeVar("Part")
Done = TypeVar("Done")

_cores = threading.Lock()  # held by whoever has given them out


def in_order(work: Callable[[Part], Done], parts: Sequence[Part], most: int) -> Iterator[Done]:
    """The work done on each part, at most so many at a time, and not further ahead of what is asked for than that."""
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
        torch.set_num_threads(cores)  # also what threads that start later begin with
        _cores.release()
