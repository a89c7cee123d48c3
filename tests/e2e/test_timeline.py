"""Timelines and Horovod's settings on real ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import run_ranks

pytestmark = pytest.mark.ranks

REDUCE = """
    import sys
    import numpy as np
    import commrt
    commrt.init()
    for i in range(5):
        commrt.allreduce(np.ones(1000), name=f"loss {i}")
"""


def names(path: Path) -> list[str]:
    """Return the names of the buckets of a finished timeline."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return [name for event in events if event["ph"] == "X" for name in event["args"]["names"]]


def test_each_rank_writes_what_it_did_between_start_and_stop(tmp_path: Path) -> None:
    script = (
        REDUCE
        + """
    commrt.start_timeline(sys.argv[1])
    commrt.allreduce(np.ones(3), name='in "it"')
    commrt.stop_timeline()
    commrt.allreduce(np.ones(3), name="after")
    """
    )
    result = run_ranks(script, 2, args=[str(tmp_path / "{rank}.json")])
    assert result.status == 0
    assert names(tmp_path / "0.json") == names(tmp_path / "1.json") == ['in "it"']


def test_a_timeline_asked_for_by_a_variable_lasts_until_exit(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    result = run_ranks(REDUCE, 2, env={"HOROVOD_TIMELINE": str(path), "HOROVOD_CYCLE_TIME": "1"})
    assert result.status == 0
    assert names(path) == [f"loss {i}" for i in range(5)]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("level", "said"), [("info", 2), ("warning", 1)])
def test_horovods_settings_are_spoken_of_once_in_the_job(level: str, said: int) -> None:
    env = {"HOROVOD_FUSION_THRESHOLD": "1048576", "HOROVOD_LOG_LEVEL": level,
           "HOROVOD_CYCLE_TIME": "1", "HOROVOD_AUTOTUNE": "1"}  # fmt: skip
    result = run_ranks(REDUCE, 2, env=env)
    assert result.status == 0
    lines = [line for line in result.output.splitlines() if "HOROVOD_" in line]
    assert len(lines) == said
    assert lines[-1].endswith("have no effect on commrt: HOROVOD_AUTOTUNE, HOROVOD_CYCLE_TIME")
    assert lines[-1].startswith("[0]")


def test_a_killed_rank_leaves_the_events_that_were_written(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    script = (
        REDUCE
        + """
    import os, signal, time
    if commrt.rank() == 0:
        while open(sys.argv[1]).read().count("loss 4") < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    commrt.barrier()
    """
    )
    result = run_ranks(script, 2, args=[str(path)], env={"COMMRT_TIMELINE": str(path)})
    assert result.status == 128 + 9
    events = json.loads(path.read_text() + "]")
    assert [e["args"]["names"] for e in events[1:]] == [[f"loss {i}"] for i in range(5)]


def test_a_timeline_that_cannot_be_written_is_no_reason_not_to_train(tmp_path: Path) -> None:
    path = tmp_path / "none" / "timeline.json"
    result = run_ranks(REDUCE, 2, env={"COMMRT_TIMELINE": str(path)})
    assert result.status == 0
    assert result.output.count("can't write a timeline to") == 1
