"""Who failed first by cause, and what is said about it."""

import signal

import pytest
from hypothesis import given
from hypothesis.strategies import (
    booleans,
    builds,
    integers,
    just,
    lists,
    none,
    one_of,
    sampled_from,
)

from commrun.ledger import Ended, final_exception, judge
from commrun.report import name_ranks, report

LOST = (
    "Traceback (most recent call last):",
    '  File "x.py", line 3, in <module>',
    "commrt.errors.PeerLostError: rank 1 on host h1 is gone",
    "  in flight: grad.7",
)


def end(rank, code=0, **more):
    return Ended(rank, "vm", code, 12.34, **more)


ends = lists(
    builds(
        Ended,
        rank=integers(0, 8),
        host=just("vm"),
        code=one_of(none(), integers(-15, 5)),
        seconds=just(1.0),
        tail=sampled_from([(), LOST]),
        consequence=sampled_from(["", "PeerLostError: x"]),
        stopped=booleans(),
    ),
    max_size=9,
    unique_by=lambda e: e.rank,
)


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (LOST, "PeerLostError"),
        (
            (*LOST, "", "Traceback (most recent call last):", "ValueError"),
            "ValueError",
        ),
        (("Traceback (most recent call last):", "  x", "KeyError: 'PeerLostError'"), "KeyError"),
        (("commrt.errors.ShutdownError: closed", "some warning"), "ShutdownError"),
        (
            (*LOST, "Exception ignored in: <f>", "Traceback (most recent call last):", "OSError"),
            "PeerLostError",
        ),
        (tuple(f"[rank12]: {line}" for line in LOST), "PeerLostError"),  # as torch.distributed does
        (("all is well: PeerLostError",), ""),
        (("Traceback (most recent call last):", "  cut"), ""),
        ((), ""),
    ],
)
def test_the_final_exception_is_found(lines, name):
    assert final_exception(lines) == name


def test_the_first_cause_decides_though_consequences_came_earlier():
    said = end(0, 1, consequence="PeerLostError: rank 2")
    printed = end(3, 1, tail=LOST)
    verdict = judge([end(1, 0), said, printed, end(2, -9), end(4, 5)])
    assert (verdict.status, verdict.cause) == (137, end(2, -9))


def test_only_consequences_then_the_earliest_of_them():
    first = end(0, 3, consequence="x")
    assert judge([end(1, 0), first, end(2, 4, tail=LOST)]).cause == first


def test_success_is_a_status_of_zero_everywhere():
    assert judge([end(0), end(1)]).status == 0
    assert judge([]).status == 0


def test_a_signal_that_ended_the_job_gives_the_status():
    stopped = [end(0, -2, stopped=True), end(1, 1, stopped=True)]
    assert judge(stopped, signal.SIGINT).status == 130
    assert judge([end(0, 3), *stopped], signal.SIGINT).status == 3
    assert judge([end(0), end(1)], signal.SIGTERM).status == 0
    assert judge(stopped).status == 130


@given(ends)
def test_the_status_is_zero_only_if_nobody_failed(given_ends):
    verdict = judge(given_ends)
    assert (verdict.status == 0) == all(e.code == 0 for e in given_ends)
    assert 0 <= verdict.status < 256


@given(ends, integers(0, 15))
def test_a_report_never_fails_and_gives_the_status(given_ends, signum):
    verdict = judge(given_ends, signum)
    lines = report(verdict, given_ends)
    assert not lines if verdict.status == 0 else f"exit status {verdict.status}" in lines[-1]


def test_the_report_names_rank_host_signal_and_last_lines():
    cause = end(1, -9, tail=("one", "two"))
    others = [end(r, 1, stopped=True) for r in (0, 3)] + [end(2, 1, consequence="x")]
    assert report(judge([cause, *others]), [cause, *others]) == [
        "rank 1 on host vm was killed by signal 9 (SIGKILL), 12.3 s after start",
        "  its last lines of error output:",
        "  | one",
        "  | two",
        "ranks 0, 2 and 3 ended because of it; exit status 137",
    ]


def test_the_report_tells_of_those_who_failed_alike():
    all_ends = [end(r, 127) for r in range(3)]
    assert report(judge(all_ends), all_ends) == [
        "rank 0 on host vm ended with exit status 127, 12.3 s after start",
        "ranks 1 and 2 failed by themselves too, in the same way; exit status 127",
    ]


def test_the_report_tells_of_those_who_failed_in_another_way():
    all_ends = [end(0, 127), end(1, -9), end(2, 127), end(3, -9), end(4, 0)]
    assert report(judge(all_ends), all_ends) == [
        "rank 0 on host vm ended with exit status 127, 12.3 s after start",
        "ranks 1 and 3 failed by themselves too: killed by signal 9 (SIGKILL)",
        "rank 2 failed by itself too, in the same way; exit status 127",
    ]


def test_the_status_of_the_job_is_apart_from_that_of_another_rank():
    all_ends = [end(0, 127), end(1, 3)]
    assert report(judge(all_ends), all_ends)[1:] == [
        "rank 1 failed by itself too: exit status 3",
        "exit status 127",
    ]


def test_the_report_of_a_consequence_tells_who_left_early():
    all_ends = [end(1), end(0, 1, consequence="PeerLostError: rank 1 is gone")]
    assert report(judge(all_ends), all_ends) == [
        "rank 0 on host vm ended with exit status 1, 12.3 s after start",
        "  it failed because of another rank: PeerLostError: rank 1 is gone",
        "rank 1 had ended before with exit status 0",
        "exit status 1",
    ]


def test_ranks_are_named_as_people_do():
    assert [name_ranks(r) for r in ([1], [2, 1], [3, 1, 2], range(9))] == [
        "rank 1",
        "ranks 1 and 2",
        "ranks 1, 2 and 3",
        "9 ranks",
    ]
