"""Parts of a work in threads: all of them, in order, no more than asked for, and nothing left behind."""

import threading
import time

import pytest
import torch

from bayescade.threads import in_order


@pytest.fixture
def three_cores() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def threads_of_a_new_thread() -> int:
    """What is set for the process: a thread that has set its own number keeps that."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.usefixtures("three_cores")
def test_parts_come_back_in_order_whoever_is_first() -> None:
    seen: set[int] = set()

    def work(part: int) -> int:
        assert torch.get_num_threads() == 1
        seen.add(threading.get_ident())
        time.sleep(0.02 * ((part * 7) % 3))
        return part**2

    assert list(in_order(work, range(10), most=8)) == [part**2 for part in range(10)]
    assert 1 < len(seen) <= 3
    assert threads_of_a_new_thread() == 3


@pytest.mark.usefixtures("three_cores")
def test_who_stops_early_gets_little_done_in_vain() -> None:
    done: list[int] = []
    parts = in_order(done.append, range(100), most=8)
    for _ in range(5):
        next(parts)
    parts.close()
    assert len(done) <= 5 + 3
    assert threads_of_a_new_thread() == 3


@pytest.mark.usefixtures("three_cores")
def test_a_failure_is_passed_on() -> None:
    def work(part: int) -> int:
        return 1 // (part - 2)

    parts = in_order(work, range(5), most=8)
    assert [next(parts), next(parts)] == [-1, -1]
    with pytest.raises(ZeroDivisionError):
        next(parts)
    assert threads_of_a_new_thread() == 3


def test_one_part_has_all_cores() -> None:
    cores = torch.get_num_threads()
    assert list(in_order(lambda part: torch.get_num_threads(), [0], most=8)) == [cores]


@pytest.mark.usefixtures("three_cores")
def test_no_more_at_a_time_than_there_is_memory_for() -> None:
    assert list(in_order(lambda part: torch.get_num_threads(), range(4), most=1)) == [3] * 4
    assert list(in_order(lambda part: torch.get_num_threads(), range(4), most=0)) == [3] * 4


@pytest.mark.usefixtures("three_cores")
def test_who_comes_second_works_alone() -> None:
    outer = in_order(lambda part: part, range(9), most=8)
    assert next(outer) == 0
    assert list(in_order(lambda part: torch.get_num_threads(), range(4), most=8)) == [3] * 4
    assert list(outer) == list(range(1, 9))
    assert threads_of_a_new_thread() == 3
