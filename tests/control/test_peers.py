from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commrt.control.peers import Card, compare, introduce, same_machine, same_processes, topology
from commrt.errors import InitError


def card(rank: int, **changes: Any) -> Card:
    base = Card(
        rank=rank,
        version="1.0",
        host="node",
        machine="boot",
        pid_space="pid:[1]",
        net_space="net:[1]",
        pid=100 + rank,
        generation=1,
        settings={"A": "1"},
        sets=((0, 1),),
    )
    return msgspec.structs.replace(base, **changes)


def told(cards: Sequence[Card]) -> str:
    with pytest.raises(InitError) as caught:
        compare(cards)
    return str(caught.value)


def test_equal_cards_pass() -> None:
    compare([card(0), card(1, host="other", pid=7, machine="else")])
    compare([card(0)])


def test_different_versions_are_named() -> None:
    text = told([card(0), card(1), card(2, version="1.1", host="far")])
    assert text == "commrt versions differ: rank 0 on node has 1.0, rank 2 on far has 1.1"


def test_a_different_setting_is_named_with_values_and_ranks() -> None:
    cards = [card(r, settings={"A": "1", "B": "x" if r % 2 else "y"}) for r in range(4)]
    assert told(cards) == (
        "B differs between ranks: y on ranks 0, 2; x on ranks 1, 3. Set it alike on all ranks"
    )


def test_a_setting_that_a_rank_does_not_know_is_named() -> None:
    text = told([card(0), card(1, settings={"A": "1", "NEW": "2"})])
    assert "NEW differs between ranks: not known on rank 0; 2 on rank 1" in text


def test_different_process_sets_are_named() -> None:
    text = told([card(0), card(1, sets=((0,),))])
    assert text == "process_sets differ between ranks: rank 0 gave [(0, 1)], rank 1 gave [(0,)]"


def test_an_introduction_survives_its_journey() -> None:
    mine = introduce(3, "1.0", 1, {"A": "1"}, [[0, 1]], b"key", ["10.0.0.1/24"])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(mine), type=Card) == mine
    assert same_machine(mine, mine)
    assert same_processes(mine, mine)


def test_a_name_proves_nothing_a_machine_and_its_spaces_do() -> None:
    assert same_machine(card(0), card(1, host="else"))
    assert not same_machine(card(0), card(1, machine="else"))
    assert not same_machine(card(0), card(1, net_space="net:[2]"))
    assert same_processes(card(0), card(1, net_space="net:[2]"))
    assert not same_processes(card(0), card(1, pid_space="pid:[2]"))
    assert not same_processes(card(0, pid_space=""), card(1, pid_space=""))


def test_local_and_cross_ranks_of_two_uneven_hosts() -> None:
    homes = ["a", "a", "b", "a"]
    found = [
        topology(r, [card(i, host=h, machine=h) for i, h in enumerate(homes)]) for r in range(4)
    ]
    assert [(t.local_rank, t.local_size) for t in found] == [(0, 3), (1, 3), (0, 1), (2, 3)]
    assert [(t.cross_rank, t.cross_size) for t in found] == [(0, 2), (0, 1), (1, 2), (0, 1)]
    assert found[0].hosts == ("a", "a", "b", "a")
    assert [f.name for f in fields(found[0])][:2] == ["rank", "size"]


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from("mn")),
        min_size=1,
        max_size=9,
    )
)
def test_local_and_cross_ranks_number_each_host_and_each_row(
    homes: list[tuple[str, str, str]],
) -> None:
    cards = [card(r, host=h, machine=m, net_space=n) for r, (h, m, n) in enumerate(homes)]
    found = [topology(r, cards) for r in range(len(cards))]
    for home in set(homes):
        local = [t for t, h in zip(found, homes, strict=True) if h == home]
        assert [t.local_rank for t in local] == list(range(len(local)))
        assert {t.local_size for t in local} == {len(local)}
    for place in {t.local_rank for t in found}:
        cross = [t for t in found if t.local_rank == place]
        assert sorted(t.cross_rank for t in cross) == list(range(len(cross)))
        assert {t.cross_size for t in cross} == {len(cross)}
