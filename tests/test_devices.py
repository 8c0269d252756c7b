"""Where the work is done."""

import gc

import pytest
import torch

from bayescade import devices
from bayescade.devices import full_precision, has_bfloat16, no_garbage_collection


class Cycle:
    """Garbage that only a collection finds."""

    found = 0

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        Cycle.found += 1


@pytest.mark.parametrize("before", [True, False])
def test_nothing_is_collected_inside_and_all_that_was_there_before(before: bool) -> None:
    (gc.enable if before else gc.disable)()
    Cycle.found = 0
    try:
        Cycle()
        with no_garbage_collection():
            assert Cycle.found == 1
            assert not gc.isenabled()
        assert gc.isenabled() == before
    finally:
        gc.enable()


@pytest.mark.parametrize(("known", "has"), [({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({}, False)])
def test_bfloat16_is_what_the_cpu_says(known: dict[str, bool], has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    assert devices.has_bfloat16.__wrapped__() == has
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not has_bfloat16.__wrapped__(), "a torch that does not say is not asked for it"


@pytest.mark.parametrize("before", [True, False])
def test_full_precision_ends_with_its_block(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", before)
    with pytest.raises(ValueError, match="inside"), full_precision():
        assert not torch.backends.cudnn.allow_tf32
        raise ValueError("inside")
    assert torch.backends.cudnn.allow_tf32 == before
