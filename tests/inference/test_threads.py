"""Parts of a work in threads: all of them, in order, no more than asked for, and nothing left behind."""

import threading
import time

import pytest
import torch

from bayescade.inference.threads import in_order


@pytest.fixture
def three_cores() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_cores")
def test_parts_come_back_in_order_whoever_is_first() -> None:
    seen: set[int] = set()

    def work(part: int) -> int:
        assert torch.get_num_threads() == 1
        seen.add(threading.get_ident())
        time.sleep(0.02 * ((part * 7) % 3))
        return part**2

    assert list(in_order(work, range(10))) == [part**2 for part in range(10)]
    assert 1 < len(seen) <= 3
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_cores")
def test_who_stops_early_gets_little_done_in_vain() -> None:
    done: list[int] = []
    parts = in_order(done.append, range(100))
    for _ in range(5):
        next(parts)
    parts.close()
    assert len(done) <= 5 + 3
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_cores")
def test_a_failure_is_passed_on() -> None:
    def work(part: int) -> int:
        return 1 // (part - 2)

    parts = in_order(work, range(5))
    assert [next(parts), next(parts)] == [-1, -1]
    with pytest.raises(ZeroDivisionError):
        next(parts)
    assert torch.get_num_threads() == 3


def test_one_part_has_all_cores() -> None:
    cores = torch.get_num_threads()
    assert list(in_order(lambda part: torch.get_num_threads(), [0])) == [cores]
