from __future__ import annotations

from commrt.engine.losses import Losses

HOSTS = ["a", "a", "b", "b"]


def test_losses_of_one_moment_are_told_together() -> None:
    losses = Losses(HOSTS, coordinates=True)
    losses.add(2, "killed by signal 9", 10.0)
    assert losses.deadline() is not None
    assert losses.due(10.0) is None
    losses.add(1, "exited with 1", 10.1)
    deadline = losses.deadline()
    assert deadline is not None
    assert losses.due(deadline) == ([1, 2], ["exited with 1", "killed by signal 9"])
    assert losses.deadline() is None
    assert losses.due(100.0) is None


def test_what_ended_a_process_counts_more_than_its_closed_connection() -> None:
    losses = Losses(HOSTS, coordinates=True)
    losses.add(1, "its connection closed", 0.0, hung_up=True)
    losses.add(1, "killed by signal 9", 0.1)
    losses.add(1, "its connection closed", 0.1, hung_up=True)
    assert losses.due(1.0) == ([1], ["killed by signal 9"])


def test_who_hangs_up_because_another_has_died_is_not_lost() -> None:
    losses = Losses(HOSTS, coordinates=False)
    losses.add(0, "its process ended", 0.0)
    losses.add(
        1, "its data connection was lost: it was closed by the other side", 0.1, hung_up=True
    )
    assert losses.due(1.0) == ([0], ["its process ended"])
    losses = Losses(HOSTS, coordinates=False)
    for rank in (3, 2):
        losses.add(
            rank, "its data connection was lost: it was closed by the other side", 0.0, hung_up=True
        )
    found = losses.due(1.0)
    assert found is not None
    assert found[0] == [2, 3]


def test_ranks_that_have_said_goodbye_are_not_lost() -> None:
    losses = Losses(HOSTS, coordinates=True)
    losses.add(1, "its connection closed", 0.0, hung_up=True)
    losses.leave([1, 3])
    losses.add(3, "exited with 0", 0.0)
    assert losses.deadline() is None
    assert losses.due(100.0) is None


def test_a_goodbye_does_not_hide_another_s_loss() -> None:
    losses = Losses(HOSTS, coordinates=True)
    losses.add(1, "its connection closed", 0.0, hung_up=True)
    losses.add(2, "killed by signal 9", 0.0)
    losses.leave([1])
    assert losses.due(1.0) == ([2], ["killed by signal 9"])


def test_a_member_leaves_it_to_the_coordinator_to_tell_unless_that_is_lost() -> None:
    told, member = Losses(HOSTS, coordinates=True), Losses(HOSTS, coordinates=False)
    for losses in (told, member):
        losses.add(2, "killed by signal 9", 0.0)
    first, later = told.deadline(), member.deadline()
    assert first is not None
    assert later is not None
    assert later > 2 * first
    member.add(0, "killed by signal 9", 0.1)
    assert member.deadline() == 0.1 + first
    member.add(3, "killed by signal 9", 0.1)
    assert member.deadline() == 0.1 + first


def test_the_error_names_ranks_hosts_and_reasons() -> None:
    error = Losses(HOSTS, coordinates=True).error([1, 2], ["exited with 1", "killed by signal 9"])
    assert str(error) == "lost rank 1 on a: exited with 1; rank 2 on b: killed by signal 9"
    assert (error.ranks, error.hosts) == ((1, 2), ("a", "b"))
