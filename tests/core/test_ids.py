from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from commrt.core.ids import IdTable
from commrt.types import Kind, Request, Signature, TensorSpec


def ask(name: str, n: int = 1) -> Request:
    signature = Signature(Kind.ALLREDUCE, (TensorSpec("float32", (n,)),))
    return Request(0, name, True, signature)


def test_an_id_stands_for_its_request_until_it_is_forgotten() -> None:
    table = IdTable()
    id = table.add(ask("a"))
    assert table.request(id) == ask("a")
    assert table.find(ask("a")) == id
    assert table.forget(id) == ask("a")
    assert table.request(id) is None
    assert table.find(ask("a")) is None
    assert table.forget(id) is None


def test_another_signature_has_another_id_and_takes_the_old_one_s_place() -> None:
    table = IdTable()
    old = table.add(ask("a", 1))
    assert table.find(ask("a", 2)) is None
    new = table.add(ask("a", 2))
    assert new != old
    assert table.request(old) is None
    assert len(table) == 1


def test_the_one_unused_for_longest_is_forgotten_first() -> None:
    table = IdTable(2)
    a, b = table.add(ask("a")), table.add(ask("b"))
    table.request(a)
    c = table.add(ask("c"))
    assert [table.request(id) is not None for id in (a, b, c)] == [True, False, True]


@given(
    st.lists(st.tuples(st.sampled_from("afr"), st.sampled_from("abcdef"), st.integers(1, 2))),
    st.integers(1, 4),
)
def test_it_is_a_bounded_cache_in_order_of_use_that_gives_no_id_twice(
    calls: list[tuple[str, str, int]], capacity: int
) -> None:
    table, model = IdTable(capacity), OrderedDict[str, tuple[int, int]]()
    given_out: list[int] = []
    for call, name, n in calls:
        known = model.get(name)
        if call == "a":
            given_out.append(table.add(ask(name, n)))
            model.pop(name, None)
            if len(model) == capacity:
                model.popitem(last=False)
            model[name] = (given_out[-1], n)
        elif call == "f":
            found = table.find(ask(name, n))
            assert found == (known[0] if known and known[1] == n else None)
            if found is not None:
                model.move_to_end(name)
        elif known:
            assert table.request(known[0]) == ask(name, known[1])
            model.move_to_end(name)
        assert len(table) == len(model) <= capacity
    assert len(set(given_out)) == len(given_out)
