from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commrt.core.ids import Key
from commrt.core.stall import StallWatch

X, Y, Z = (0, "x"), (0, "y"), (1, "z")
HOSTS = [f"host{r}" for r in range(20)]


def watch(warn: float = 60.0, fail: float = 600.0) -> StallWatch:
    return StallWatch(warn, fail, HOSTS)


def test_an_operation_is_late_once() -> None:
    stalls = watch()
    stalls.begin(X, 0.0)
    assert stalls.late(59.9) == []
    assert stalls.late(60.0) == [X]
    assert stalls.late(100.0) == []


def test_an_operation_that_ended_is_never_late() -> None:
    stalls = watch()
    stalls.begin(X, 0.0)
    stalls.end(X)
    assert stalls.late(1000.0) == []
    assert stalls.expired(1000.0) == []
    assert stalls.deadline() is None


def test_the_next_operation_of_a_name_is_timed_anew() -> None:
    stalls = watch()
    stalls.begin(X, 0.0)
    assert stalls.late(60.0) == [X]
    stalls.end(X)
    stalls.begin(X, 100.0)
    assert stalls.late(159.0) == []
    assert stalls.late(160.0) == [X]


def test_no_limit_means_that_nothing_expires() -> None:
    stalls = watch(fail=0.0)
    stalls.begin(X, 0.0)
    stalls.late(60.0)
    assert stalls.expired(1e12) == []
    assert stalls.deadline() is None


@given(
    st.lists(st.tuples(st.sampled_from((X, Y, Z)), st.booleans()), max_size=12),
    st.sampled_from((1.0, 3.0)),
    st.sampled_from((0.0, 2.0, 5.0)),
)
def test_nothing_happens_before_the_deadline_and_something_at_it(
    calls: list[tuple[Key, bool]], warn: float, fail: float
) -> None:
    stalls = watch(warn, fail)
    begun: set[Key] = set()
    now = 0.0
    for key, begin in calls:
        now += 1.0
        if begin and key not in begun:
            stalls.begin(key, now)
            begun.add(key)
        elif not begin:
            stalls.end(key)
            begun.discard(key)
        deadline = stalls.deadline()
        if deadline is None or deadline > now:
            assert stalls.late(now) == []
            assert stalls.expired(now) == []
        else:
            expired = stalls.expired(now)
            assert stalls.late(now) or expired
            for gone in expired:
                stalls.end(gone)
                begun.discard(gone)


def test_the_text_groups_operations_by_the_ranks_they_wait_for() -> None:
    stalls = watch()
    for key in (X, Y, Z):
        stalls.begin(key, 10.0)
    missing = {X: [1], Y: [1], Z: [2, 3]}
    assert stalls.text([X, Y, Z], missing.__getitem__, 75.0) == (
        "rank 1 (on host1) did not submit 'x', 'y' for 65 s; "
        "ranks 2 (on host2), 3 (on host3) did not submit 'z' for 65 s. "
        "The others wait. Is the process stopped, slower, or does it run another operation?"
    )


def test_the_text_stays_short_for_many_ranks_and_operations() -> None:
    stalls = watch()
    keys = [(0, f"grad{i}") for i in range(9)]
    for key in keys:
        stalls.begin(key, 0.0)
    text = stalls.text(keys, lambda key: list(range(1, 20)), 60.0)
    assert "6 (on host6) and 13 more did not submit" in text
    assert "'grad5' and 3 more for 60 s" in text
    assert "grad6" not in text
