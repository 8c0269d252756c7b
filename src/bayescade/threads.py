"""Tasks on a CPU, each computed by one thread, with results in order.

An operation that uses all cores waits for the slowest core, hundreds of times a second. A thread that computes a whole task
waits once. The result does not depend on the number of threads.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")

_cores_lock = threading.Lock()  # held while threads of `in_order` use the cores


def in_order(work: Callable[[Task], Result], tasks: Sequence[Task], most: int) -> Iterator[Result]:
    """`work(task)` for each task, in order. At most `most` tasks are computed before the caller needs them."""
    cores = torch.get_num_threads()
    workers = min(cores, len(tasks), most)
    if workers < 2 or not _cores_lock.acquire(blocking=False):  # one task at a time, which uses all cores
        yield from map(work, tasks)
        return
    waiting: deque[Future[Result]] = deque()
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(cores // workers,)) as pool:
            try:
                for task in tasks:
                    waiting.append(pool.submit(work, task))
                    if len(waiting) == workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
    finally:
        torch.set_num_threads(cores)  # this is also the default of threads that start later
        _cores_lock.release()
