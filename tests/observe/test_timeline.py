"""The timeline file."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commrt.errors import ArgumentError
from commrt.observe.timeline import EventWriter, Recorder, Timeline, file_of_rank
from commrt.observe.trace import BucketRecord, Trace
from commrt.types import Topology


def place(rank: int = 0) -> Topology:
    return Topology(rank, 2, rank, 2, 0, 1, ("node1", "node2"))


def record(number: int, started: float, done: float, *names: str) -> BucketRecord:
    return BucketRecord(number, names or ("loss",), 4096, 2048, started - 2, started - 1,
                        started, done)  # fmt: skip


def events(path: Path) -> list[dict[str, Any]]:
    """Return the buckets' events of a finished file."""
    found: list[dict[str, Any]] = json.loads(path.read_text())
    assert found[0]["ph"] == "M"
    return found[1:]


names = st.lists(st.text(max_size=6), min_size=1, max_size=5)
spans = st.tuples(st.integers(0, 9), st.integers(0, 9))


@given(st.lists(st.tuples(names, spans), max_size=9))
def test_a_timeline_is_json_whatever_the_names(found: list[tuple[list[str], Any]]) -> None:
    writer = EventWriter(3)
    lines = [writer.head("rank 3")]
    found.sort(key=lambda f: f[1][1])
    for number, (named, (length, done)) in enumerate(found):
        lines.append(writer.line(record(number, float(done - length), float(done), *named)))
    whole = json.loads("".join(lines) + writer.tail())
    assert [e["args"]["names"] for e in whole[1:]] == [named for named, _ in found]
    assert {e["pid"] for e in whole} == {3}


@given(st.lists(spans, max_size=9))
def test_events_of_one_lane_do_not_overlap(found: list[tuple[int, int]]) -> None:
    writer = EventWriter(0)
    ends: dict[int, float] = {}
    for length, done in sorted(found, key=lambda f: f[1]):
        event = json.loads(writer.line(record(0, float(done - length), float(done)))[2:])
        assert event["ts"] >= ends.get(event["tid"], event["ts"])
        ends[event["tid"]] = event["ts"] + event["dur"]


def test_an_event_takes_one_line_and_is_whole_before_the_next_begins() -> None:
    writer = EventWriter(0)
    text = writer.head("a\nb") + writer.line(record(0, 1.0, 2.0, 'a"\n\\')) + writer.tail()
    lines = text.splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("[", "]", 4)
    assert json.loads("\n".join(lines[:3]).rstrip(",") + "]")


def test_an_event_says_when_its_bucket_was_submitted_ready_started_and_done() -> None:
    event = json.loads(EventWriter(1).line(record(7, 10.0, 10.5, "a", "b", "c", "d"))[2:])
    assert (event["ts"], event["dur"]) == (10_000_000, 500_000)
    assert event["name"] == "a, b, c and 1 more"
    assert event["args"] == {
        "number": 7,
        "names": ["a", "b", "c", "d"],
        "bytes": 4096,
        "wire_bytes": 2048,
        "submitted": 8_000_000,
        "ready_on_all_ranks": 9_000_000,
    }


@pytest.mark.parametrize(
    ("path", "rank", "file"),
    [("t.json", 0, "t.json"), ("t.json", 1, None), ("{rank}/t.{rank}", 12, "12/t.12")],
)
def test_a_rank_has_a_file_of_its_own_only_if_its_number_is_asked_for(
    path: str, rank: int, file: str | None
) -> None:
    assert file_of_rank(path, rank) == file


def test_a_recorder_writes_what_is_done_between_start_and_stop(tmp_path: Path) -> None:
    trace, path = Trace(capacity=1), tmp_path / "timeline.1.json"
    recorder = Recorder(trace, place(1))
    trace.add(record(0, 1.0, 2.0))
    recorder.start(str(tmp_path / "timeline.{rank}.json"))
    for number in range(1, 50):
        trace.add(record(number, number, number + 1.0))
    recorder.stop()
    trace.add(record(50, 60.0, 61.0))
    assert [e["args"]["number"] for e in events(path)] == list(range(1, 50))
    assert json.loads(path.read_text())[0]["args"]["name"] == "rank 1 of 2 on node2"


def test_a_second_timeline_follows_only_when_the_first_is_stopped(tmp_path: Path) -> None:
    trace = Trace()
    recorder = Recorder(trace, place())
    recorder.stop()
    recorder.start(str(tmp_path / "first"))
    with pytest.raises(ArgumentError, match=r"first; call stop_timeline\(\) first"):
        recorder.start(str(tmp_path / "second"))
    recorder.stop()
    recorder.start(str(tmp_path / "second"))
    recorder.stop()
    assert events(tmp_path / "first") == events(tmp_path / "second") == []


def test_a_file_that_cannot_be_opened_is_an_error_that_names_it(tmp_path: Path) -> None:
    recorder = Recorder(Trace(), place())
    with pytest.raises(ArgumentError, match=r"can't write a timeline to .*/none/t: No such file"):
        recorder.start(str(tmp_path / "none" / "t"))
    recorder.stop()


def test_a_rank_without_a_file_writes_nothing(tmp_path: Path) -> None:
    recorder = Recorder(Trace(), place(1))
    recorder.start(str(tmp_path / "t"))
    recorder.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_the_timeline_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    timeline = Timeline("/dev/full", place())
    for number in range(3):
        timeline.add(record(number, number, number + 1.0))
    timeline.close()
    assert caplog.messages == ["the timeline /dev/full ends early: No space left on device"]
    assert not [t for t in threading.enumerate() if t.name == "commrt timeline"]
