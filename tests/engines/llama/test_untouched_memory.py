"""A context takes the memory that its tokens need, and nothing that was written is lost by that."""

import sys

import numpy as np
import psutil
import pytest

from pocketserver.engines.llama.untouched_memory import zeros_given_back
from tests.engines.llama.asking import answered, asking
from tests.engines.llama.conftest import MakeEngine

MIB = 1024 * 1024

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives pages of zeros back")


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def test_zeros_are_given_back_and_everything_else_stays() -> None:
    before = resident()
    with zeros_given_back():
        memory = np.empty(128 * MIB, np.uint8)
        memory.fill(0)
        memory[5] = memory[70 * MIB + 3] = memory[-1] = 7
        assert resident() - before > 120 * MIB
    assert resident() - before < 16 * MIB
    assert np.flatnonzero(memory).tolist() == [5, 70 * MIB + 3, len(memory) - 1]
    memory[90 * MIB :] = 1
    assert int(memory.sum()) == 38 * MIB + 2 * 7


def test_what_was_there_before_is_not_touched() -> None:
    old = np.zeros(32 * MIB, np.uint8)
    old.fill(0)
    before = resident()
    with zeros_given_back():
        pass
    assert before - resident() < MIB
    assert not old.any()


@pytest.mark.real_model
async def test_a_large_context_takes_hardly_more_than_a_small_one_while_it_is_empty(make_engine: MakeEngine) -> None:
    taken = []
    for context in (512, 8192):
        engine = make_engine(context=context)
        await engine.start()
        await engine.loaded()
        await answered(engine, asking("Hello."))
        taken.append(psutil.Process(engine.status.worker_pid).memory_info().rss)
        await engine.close()
    assert taken[1] - taken[0] < 60 * MIB  # its keys and values have room for 170 MiB more
