"""Reading -H, and placing ranks."""

import pytest
from hypothesis import given
from hypothesis.strategies import builds, from_regex, integers, lists

from commrun.hosts import Host, all_local, parse_hosts
from commrun.placement import place, rank_count
from commrun.spec import UsageError

names = from_regex(r"[a-z0-9]([a-z0-9.-]{0,8}[a-z0-9])?", fullmatch=True)
hosts = lists(
    builds(Host, names, integers(1, 9)), min_size=1, max_size=6, unique_by=lambda h: h.name
)


def test_a_host_without_slots_has_one():
    assert parse_hosts("a,b:3") == (Host("a", 1), Host("b", 3))


def test_slots_of_a_repeated_host_add_up():
    assert parse_hosts("a:2,b:1,a:1") == (Host("a", 3), Host("b", 1))


@given(hosts)
def test_hosts_survive_being_written_and_read(given_hosts):
    text = ",".join(f"{host.name}:{host.slots}" for host in given_hosts)
    assert parse_hosts(text) == tuple(given_hosts)


@pytest.mark.parametrize(
    "text", ["a:", "a:x", "a:0", ":2", "", "a,,b", "a b", "-x:2", "a:2:3", "a:-1"]
)
def test_a_wrong_word_is_named(text):
    with pytest.raises(UsageError, match=r"-H "):
        parse_hosts(text)


def test_own_names_are_local():
    local = parse_hosts("localhost:2,vm:1,127.0.0.1,vm.example.org")
    assert all_local(local, "vm.example.org")
    assert not all_local([*local, Host("other", 1)], "vm.example.org")
    assert all_local((), "vm")


@given(integers(1, 60), hosts)
def test_every_rank_gets_a_place_and_slots_are_filled_first(np, given_hosts):
    placed = {host.name: host.slots for host in place(np, given_hosts)}
    slots = sum(host.slots for host in given_hosts)
    assert sum(placed.values()) == np
    assert all(count > 0 for count in placed.values())
    over = [placed.get(host.name, 0) - host.slots for host in given_hosts]
    assert max(over) <= 0 if np <= slots else max(over) - min(over) <= 1


@given(integers(1, 60), hosts)
def test_ranks_stay_in_the_order_of_hosts(np, given_hosts):
    order = [host.name for host in given_hosts]
    placed = [host.name for host in place(np, given_hosts)]
    assert placed == order[: len(placed)]


def test_the_number_of_ranks_is_given_or_the_sum_of_slots():
    assert rank_count(3, ()) == 3
    assert rank_count(None, parse_hosts("a:2,b:3")) == 5
    for np in (None, 0, -1):
        with pytest.raises(UsageError):
            rank_count(np, ())
