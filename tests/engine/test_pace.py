from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commrt.engine.pace import Pace


def test_it_spins_after_data_has_moved_and_only_where_allowed() -> None:
    spinning, polite = Pace(spin=True), Pace(spin=False)
    for pace in (spinning, polite):
        pace.begin(5.0)
    assert spinning.nap(0, 5.00001) == 0.0
    assert spinning.nap(0, 5.01) > 0.0
    assert spinning.nap(1, 5.02) == 0.0
    assert polite.nap(0, 5.00001) > 0.0


def test_naps_grow_while_nothing_moves_up_to_a_millisecond() -> None:
    pace = Pace(spin=False)
    pace.begin(0.0)
    naps = [pace.nap(0, i / 10000) for i in range(200)]
    assert naps == sorted(naps)
    assert naps[0] < naps[-1] == 0.001


def test_naps_stay_short_once_data_flows() -> None:
    pace = Pace(spin=True)
    pace.begin(0.0)
    pace.nap(0, 0.1)
    pace.nap(1, 0.2)
    assert pace.nap(1, 1.2) <= 0.0002
    pace.begin(2.0)
    pace.nap(1, 2.0)
    assert pace.nap(1, 3.0) == 0.001


@given(st.booleans(), st.lists(st.tuples(st.integers(0, 1), st.floats(0, 0.01))))
def test_no_nap_is_longer_than_a_millisecond(spin: bool, looks: list[tuple[int, float]]) -> None:
    pace, steps, now = Pace(spin), 0, 0.0
    pace.begin(now)
    for moved, seconds in looks:
        steps += moved
        now += seconds
        assert 0.0 <= pace.nap(steps, now) <= 0.001
