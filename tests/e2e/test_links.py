"""What happens to init() when a link fails while it is measured. Ranks play two hosts here."""

from __future__ import annotations

import re

import pytest

from harness import run_ranks

pytestmark = pytest.mark.faults

HOSTS = """
    import errno, os, socket, sys, tempfile, time
    rank, each = int(os.environ["RANK"]), int(sys.argv[1])
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    socket.gethostname = lambda: f"h{rank // each}"
    import numpy as np
    import commrt
    import commrt.engine.tuning as tuning
    import commrt.transports.door as door

    def before(number, act, trials=tuning.Trials, count=[0]):
        once = trials._once
        def counted(self, trial):
            count[0] += 1
            if count[0] == number:
                act()
            return once(self, trial)
        trials._once = counted

    def begin():
        try:
            commrt.init()
        except commrt.CommError as exc:
            return f"{type(exc).__name__} {exc} {getattr(exc, 'ranks', '')}"
        total = commrt.allreduce(np.full(100_000, 1.0 + rank), op=commrt.Sum)
        size = commrt.size()
        assert (total == size * (size + 1) / 2).all()
        return "right " + commrt.api.session().runtime.parts.moved_by
"""

REFUSED = """
    if rank == 0:
        def call(self, peer):
            raise self._unreachable(peer, OSError(errno.EHOSTUNREACH, "No route to host"))
        door.Door.call = call
    print(begin(), flush=True)
"""


@pytest.mark.parametrize(("np", "each"), [(2, 1), (4, 2)])
def test_where_tcp_does_not_serve_mpi_does(np: int, each: int) -> None:
    result = run_ranks(HOSTS + REFUSED, np, args=[str(each)], env={"COMMRT_INIT_TIMEOUT": "9"})
    assert result.status == 0, result.output
    for said in result.stdout_of.values():
        assert re.match(r"right .*MPI, .*TCP failed when it was measured", said), said
    assert len(result.stdout_of) == np
    assert "TCP does not serve, so MPI moves data: rank 0: " in result.output
    assert "No route to host" in result.output


def test_where_tcp_is_demanded_and_does_not_serve_init_fails_on_all() -> None:
    env = {"COMMRT_INIT_TIMEOUT": "9", "COMMRT_TRANSPORT": "tcp"}
    result = run_ranks(HOSTS + REFUSED, 4, args=["2"], env=env)
    assert len(set(result.stdout_of.values())) == 1 and len(result.stdout_of) == 4, result.output
    assert "InitError while the links" in result.stdout_of[0]
    assert "No route to host" in result.stdout_of[0]


DEATH = """
    if rank == 2:
        before(5, lambda: os._exit(3))
    print(begin(), flush=True)
"""


def test_a_death_while_links_are_measured_is_a_lost_peer_to_all() -> None:
    result = run_ranks(HOSTS + DEATH, 4, args=["2"])
    assert result.status == 3, result.output
    for rank in (0, 1, 3):
        assert re.match(r"PeerLostError lost rank 2 .* \(2,\)", result.stdout_of[rank])


LATE = """
    if rank == 1:
        before(5, lambda: time.sleep(7))  # the first trial over MPI; its partner waits for 5 s
    print(begin(), flush=True)
    memory = [np.full(n, 7, np.uint8) for n in (4096, 16384, 65536) for _ in range(40)]
    print(begin(), flush=True)
    assert all((array == 7).all() for array in memory)
"""


def test_what_is_left_of_a_failed_trial_over_mpi_spoils_nothing() -> None:
    result = run_ranks(HOSTS + LATE, 2, args=["1"], env={"COMMRT_INIT_TIMEOUT": "15"})
    assert result.status == 0, result.output
    for said in result.stdout_of.values():
        first, second = said.splitlines()
        assert re.match(r"InitError while the links .* no data from rank 1 in 5 s", first), said
        assert second.startswith("right "), said
