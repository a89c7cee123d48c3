"""Memory that processes share."""

from __future__ import annotations

import gc
import logging
import os

import numpy as np
import pytest

from commrt.transports.segment import Pool, Segment, make_segment

PAGE = os.sysconf("SC_PAGE_SIZE")


def pool_of(pages: int) -> tuple[Segment, Pool]:
    segment = Segment(make_segment(pages * PAGE, PAGE))
    return segment, Pool(segment, 0, pages * PAGE)


def test_what_one_mapping_writes_another_one_reads() -> None:
    fd = make_segment(8 * PAGE, 8 * PAGE)
    here, there = Segment(os.dup(fd)), Segment(fd)
    here.words(PAGE, 4)[:] = [1, 2, 3, 4]
    assert there.words(PAGE, 4).tolist() == [1, 2, 3, 4]
    assert here.base != there.base


def test_memory_is_zeros_lies_in_the_segment_and_is_used_again() -> None:
    segment, pool = pool_of(4)
    for _ in range(5):
        first, second = pool.allocate(2 * PAGE), pool.allocate(PAGE + 1)
        assert segment.offset(first) == 0 and segment.offset(second) == 2 * PAGE
        assert not first.any() and not second.any()
        first[:], second[:] = 7, 7
        kept = second[5:].view(np.uint8)  # an array of an array keeps the memory
        del first, second
        gc.collect()
        assert segment.offset(pool.allocate(1)) == 0
        assert (kept == 7).all()
        del kept
        gc.collect()


def test_where_none_is_left_memory_comes_from_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    segment, pool = pool_of(2)
    with caplog.at_level(logging.WARNING, "commrt.transports"):
        array = pool.allocate(3 * PAGE)
    assert segment.offset(array) == -1 and array.nbytes == 3 * PAGE and not array.any()
    assert "no shared memory for" in caplog.text
    assert segment.offset(np.zeros(3)) == -1


def test_a_childs_writes_stay_its_own() -> None:
    segment, pool = pool_of(4)
    array = pool.allocate(PAGE)
    array[:] = 1
    pid = os.fork()
    if pid == 0:
        segment.make_private()
        seen = bool((array == 1).all())
        array[:] = 2
        os._exit(0 if seen and (array == 2).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (array == 1).all()
