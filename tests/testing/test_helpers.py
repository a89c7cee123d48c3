from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from commrt.errors import ArgumentError, EngineError
from commrt.process_sets import ProcessSet
from commrt.testing import FakeClock, LocalWorld
from harness import environment


def test_importing_the_helpers_does_not_import_hypothesis() -> None:
    code = "import sys, commrt.testing; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


def test_a_fake_clock_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(10.0)
    assert [clock(), clock()] == [10.0, 10.0]
    clock.advance(2.5)
    assert clock() == 12.5
    with pytest.raises(ValueError, match="never goes back"):
        clock.advance(-1)


def test_a_world_gives_results_in_rank_order() -> None:
    pair = ProcessSet([1, 0])
    with LocalWorld(3, [pair]) as world:
        topologies = world.run(lambda s: s.runtime.topology)
        assert pair.process_set_id == 1
    assert [(t.rank, t.size, t.local_rank, t.local_size) for t in topologies] == [
        (0, 3, 0, 3),
        (1, 3, 1, 3),
        (2, 3, 2, 3),
    ]


def test_a_world_that_cannot_start_says_why_and_leaves_no_thread() -> None:
    before = threading.active_count()
    wrong = LocalWorld(2, [ProcessSet([5])])
    with pytest.raises(ArgumentError, match=r"process set \[5\]"), wrong:
        pass
    assert threading.active_count() == before


def test_a_world_ends_when_its_block_raises() -> None:
    with pytest.raises(EngineError, match="mine"), LocalWorld(2) as world:
        world.sessions[0].allreduce_async(1.0)
        raise EngineError("mine")
    assert not any(session.runtime.alive() for session in world.sessions)
