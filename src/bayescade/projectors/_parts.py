"""Work of compiled functions in threads: numba releases the lock of the interpreter."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch


def in_parts(
    work: Callable[[int, int], None],
    size: int,
    parts: int = 4,  # of each thread: more than one, so that no thread waits long for the others
) -> None:
    """work(first, last) for ranges that make up 0 .. size - 1, by as many threads as torch uses here."""
    threads = torch.get_num_threads()
    if threads == 1:
        work(0, size)
        return
    edges = np.linspace(0, size, min(size, threads * parts) + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, *ends) for ends in itertools.pairwise(edges)]:
            done.result()
