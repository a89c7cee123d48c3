"""The decisions of a job, without any process."""

import signal

from hypothesis import given
from hypothesis.strategies import (
    builds,
    floats,
    integers,
    just,
    lists,
    one_of,
    sampled_from,
    tuples,
)

from commrun.environment import Seat
from commrun.events import (
    Announce,
    Begin,
    CommandEnded,
    Dismissed,
    MpirunEnded,
    Release,
    Reported,
    Signalled,
    SignalMpirun,
    SignalRanks,
    Tick,
    Vanished,
)
from commrun.job import Job, Limits, Stage

INT, TERM, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL


def seat(rank):
    return Seat(rank, rank, 3, "vm", 2, "127.0.0.1", 20000)


def ended(rank, code=0, consequence=""):
    return CommandEnded(rank, code, (), consequence)


def started(np=3, grace=5.0):
    job = Job(Limits(np, grace, 60.0), 0.0)
    for rank in range(np):
        actions = job.receive(Reported(seat(rank)), 1.0)
    assert actions == [Begin()]
    return job


def told(actions):
    return [action for action in actions if not isinstance(action, Announce)]


def test_nothing_starts_before_every_shim_is_there():
    job = Job(Limits(3, 5.0, 60.0), 0.0)
    assert job.receive(Reported(seat(0)), 0.0) == []
    assert job.receive(Reported(seat(1)), 0.0) == []
    assert job.receive(Vanished(1), 0.0) == []
    assert job.receive(Reported(seat(2)), 0.0) == []
    assert job.receive(Reported(seat(9)), 0.0) == []
    assert job.receive(Reported(seat(1)), 0.0) == [Begin()]


def test_all_ended_releases_the_shims():
    job = started()
    assert told(job.receive(ended(0), 2.0)) == []
    assert told(job.receive(ended(1), 2.0)) == []
    assert told(job.receive(ended(2), 2.0)) == [Release()]
    assert job.verdict().status == 0


def test_every_end_is_announced_once():
    job = started()
    (action,) = job.receive(ended(1, -9), 2.0)
    assert action.end.how == "killed by signal 9 (SIGKILL)"
    assert job.receive(ended(1, 3), 2.0) == []
    assert job.receive(Vanished(1), 2.0) == []


def test_survivors_get_the_grace_then_term_then_kill():
    job = started(grace=5.0)
    job.receive(ended(1, 3), 10.0)
    assert job.deadline == 15.0
    assert job.receive(Tick(), 14.9) == []
    assert job.receive(Tick(), 15.0) == [SignalRanks(TERM)]
    assert job.receive(Tick(), 16.9) == []
    assert job.receive(Tick(), 17.0) == [SignalRanks(KILL)]
    job.receive(ended(0, -15), 17.1)
    assert told(job.receive(ended(2, -9), 17.1)) == [Release()]
    assert job.verdict().status == 3


def test_a_rank_that_leaves_with_status_zero_starts_no_clock():
    job = started()
    job.receive(ended(1, 0), 10.0)
    assert job.deadline is None


def test_ranks_that_never_end_are_given_up():
    job = started(grace=0.0)
    job.receive(ended(1, 3), 10.0)
    for now in (10.0, 12.0):
        job.receive(Tick(), now)
    assert told(job.receive(Tick(), 17.0)) == [Release()]
    assert [end.code for end in job.ends] == [3, None, None]
    assert job.receive(Tick(), 27.0) == [SignalMpirun(TERM)]
    assert job.receive(Tick(), 29.0) == [SignalMpirun(KILL)]
    assert job.receive(Tick(), 31.0) == []
    assert job.stage == Stage.ABANDONED


def test_a_signal_is_forwarded_and_the_second_kills():
    job = started()
    assert job.receive(Signalled(INT), 2.0) == [SignalRanks(INT)]
    assert job.receive(Signalled(INT), 3.0) == [SignalRanks(KILL)]
    for rank in range(3):
        job.receive(ended(rank, -9), 3.1)
    assert job.verdict().status == 130


def test_a_failure_before_the_signal_is_still_the_cause():
    job = started()
    job.receive(ended(1, 3), 2.0)
    job.receive(Signalled(INT), 3.0)
    for rank in (0, 2):
        job.receive(ended(rank, 1), 3.1)
    assert job.verdict().status == 3


def test_user_signals_are_forwarded_and_who_dies_of_one_is_no_cause():
    job = started()
    assert job.receive(Signalled(signal.SIGUSR1), 2.0) == [SignalRanks(signal.SIGUSR1)]
    job.receive(ended(0, -signal.SIGUSR1), 2.1)
    job.receive(ended(1, 7), 2.2)
    job.receive(ended(2, 0), 2.3)
    assert job.verdict().status == 7


def test_a_signal_before_the_start_ends_mpirun():
    job = Job(Limits(2, 5.0, 60.0), 0.0)
    job.receive(Reported(seat(0)), 0.1)
    assert job.receive(Signalled(TERM), 0.2) == [SignalMpirun(TERM)]
    assert job.receive(Reported(seat(1)), 0.3) == []
    job.receive(MpirunEnded(1), 0.4)
    assert job.stage >= Stage.RELEASED
    assert job.verdict().status == 143


def test_a_start_that_takes_too_long_ends_mpirun():
    job = Job(Limits(2, 5.0, 60.0), 0.0)
    assert job.receive(Tick(), 60.0) == [SignalMpirun(TERM)]
    assert not job.begun


def test_closed_output_ends_the_job_at_once():
    job = started()
    assert job.receive(Signalled(signal.SIGPIPE), 2.0) == [SignalRanks(TERM)]
    for rank in range(3):
        job.receive(ended(rank, -15), 2.1)
    assert job.verdict().status == 141


def test_ranks_that_mpirun_ends_are_no_causes():
    job = started()
    job.receive(Dismissed(0), 2.0)
    job.receive(ended(0, -15), 2.0)
    job.receive(Vanished(2), 2.0)
    job.receive(ended(1, 7), 2.1)
    assert job.verdict().cause.rank == 1


def test_a_lost_shim_is_a_failure_of_its_rank():
    job = started()
    (action,) = job.receive(Vanished(2), 2.0)
    assert action.end.how.startswith("lost")
    assert job.deadline == 7.0


def test_without_mpirun_the_rest_is_given_up_soon():
    job = started()
    job.receive(MpirunEnded(1), 2.0)
    assert told(job.receive(Tick(), 7.0)) == [Release()]


events = one_of(
    builds(Reported, builds(seat, integers(0, 3))),
    builds(ended, integers(0, 3), integers(-15, 3), sampled_from(["", "x"])),
    builds(Vanished, integers(0, 3)),
    builds(Dismissed, integers(0, 3)),
    builds(Signalled, sampled_from([INT, TERM, signal.SIGUSR1, signal.SIGPIPE])),
    just(MpirunEnded(1)),
    just(Tick()),
)


@given(lists(tuples(events, floats(0, 3))))
def test_any_order_of_events_comes_to_an_end(history):
    """Whatever has happened: once a rank failed or a signal came, ticks alone end the job."""
    job = Job(Limits(3, 5.0, 60.0), 0.0)
    now, actions = 0.0, []
    for event, after in history:
        now += after
        actions += job.receive(event, now)
    if job.begun and not any(end.failed for end in job.ends):
        actions += job.receive(Vanished(0), now) + job.receive(ended(1, 1), now)
        actions += job.receive(ended(2, 1), now)
    for _ in range(12):
        if job.deadline is not None:
            now = max(now, job.deadline)
            actions += job.receive(Tick(), now)
    assert job.stage >= Stage.RELEASED
    assert actions.count(Begin()) == job.begun
    assert actions.count(Release()) <= 1
    announced = [action.end.rank for action in actions if isinstance(action, Announce)]
    assert sorted(announced) == sorted({end.rank for end in job.ends})
    if job.begun:
        assert sorted(announced) == [0, 1, 2]
