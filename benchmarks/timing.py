"""The time of a call."""

import statistics
import time
from collections.abc import Callable

import torch


def median_ms(run: Callable[[], object], repeat: int, warm: int, gpu: bool = True) -> float:
    """Median time of a call, in milliseconds, behind some calls to warm up: by CUDA events on a GPU, else by the clock."""
    for _ in range(warm):
        run()
    times = []
    for _ in range(repeat):
        if gpu:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        else:
            start = time.perf_counter()
            run()
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)
