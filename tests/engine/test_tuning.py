"""Trials over real wires, and choices that are kept."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from commrt.core.tuning import Choice
from commrt.engine.tuning import Kept, Trials
from commrt.errors import PeerLostError
from commrt.testing.wire import MemorySwitch
from commrt.transports.base import Members, Wire
from transports.test_tcp import make_wires


def none() -> None:
    pass


def everywhere(
    wires: list[dict[str, Wire]], check: Callable[[], None] = none, allowed: float = 0.25
) -> list[Choice | None]:
    """Run the trials of all ranks, each in a thread."""
    ranks = tuple(range(len(wires)))

    def play(rank: int) -> Choice | None:
        trials = Trials(wires[rank], Members(ranks, rank), check)
        if rank == 0:
            return trials.lead(allowed)
        return trials.follow()  # type: ignore[func-returns-value]

    with ThreadPoolExecutor(len(wires)) as pool:
        return list(pool.map(play, ranks))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_first_member_chooses_after_trials_of_all_wires(size: int) -> None:
    tcp, _ = make_wires(size)
    switch = MemorySwitch()
    try:
        found = everywhere([{"tcp": tcp[r], "mpi": switch.wire(r)} for r in range(size)])
    finally:
        for wire in tcp.values():
            wire.close(orderly=True)
    assert found[1:] == [None] * (size - 1)
    choice = found[0]
    assert choice is not None and choice.wire in ("tcp", "mpi")
    assert all(rate > 0 for _, rate in choice.rates)


def test_who_waits_in_vain_asks_whether_the_job_goes_on() -> None:
    class Over(Exception):
        pass

    def check() -> None:
        raise Over

    tcp, _ = make_wires(2)
    try:
        with pytest.raises(Over):
            Trials({"tcp": tcp[1]}, Members((0, 1), 1), check).follow()
    finally:
        for wire in tcp.values():
            wire.close(orderly=True)


def test_a_member_that_goes_is_missed() -> None:
    tcp, _ = make_wires(2)
    everywhere([{"tcp": tcp[0]}, {"tcp": tcp[1]}], allowed=0.0)
    tcp[0].close(orderly=False)
    try:
        with pytest.raises(PeerLostError):
            Trials({"tcp": tcp[1]}, Members((0, 1), 1), none).follow()
    finally:
        tcp[1].close(orderly=True)


def test_a_choice_is_kept_for_the_same_facts_and_wires(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there yet"
    choice = Choice("tcp", 1 << 17, 1 << 18, (("tcp", 1e8), ("mpi", 5e7)))
    Kept(directory, ["1.0", "a", "b"]).save(choice)
    assert Kept(directory, ["1.0", "a", "b"]).load(["tcp", "mpi"]) == choice
    assert Kept(directory, ["1.0", "a", "b"]).load(["mpi"]) is None
    assert Kept(directory, ["1.1", "a", "b"]).load(["tcp", "mpi"]) is None
    [file] = directory.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700
    for garbage in (b"", b"\xff", b"{}", b'{"wire":"tcp","segment":0}', b'{"wire":3}'):
        file.write_bytes(garbage)
        assert Kept(directory, ["1.0", "a", "b"]).load(["tcp", "mpi"]) is None


def test_a_choice_is_made_anew_after_a_week(tmp_path: Path) -> None:
    kept = Kept(tmp_path, ["x"])
    kept.save(Choice("tcp"))
    [file] = tmp_path.iterdir()
    for age, expected in ((6, Choice("tcp")), (8, None)):
        then = time.time() - age * 86400
        os.utime(file, (then, then))
        assert kept.load(["tcp"]) == expected


def test_where_nothing_can_be_kept_nothing_happens(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = Kept(tmp_path / "file" / "cache", ["x"])
    kept.save(Choice("tcp"))
    assert kept.load(["tcp"]) is None
