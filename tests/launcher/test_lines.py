"""Lines stay whole, whatever the order in which their bytes come."""

from hypothesis import given
from hypothesis.strategies import binary, integers, lists, sampled_from, tuples

from commrun.lines import Screen
from commrun.wire import STDERR, STDOUT


def screen(*terminals, patience=0.2):
    return Screen(lambda rank: b"[%d] " % rank, frozenset(terminals), patience)


def shown(pieces):
    return b"".join(data for _, data in pieces)


def test_a_line_gets_its_prefix_when_it_is_whole():
    view = screen()
    assert view.feed(3, STDOUT, b"hel", 0.0) == []
    assert view.feed(3, STDOUT, b"lo\nwor", 0.0) == [(STDOUT, b"[3] hello\n")]
    assert view.feed(3, STDERR, b"e\n", 0.0) == [(STDERR, b"[3] e\n")]
    assert view.close() == [(STDOUT, b"[3] wor"), (STDOUT, b"\n")]


def test_a_prompt_is_shown_after_a_while_and_can_be_continued():
    view = screen()
    assert view.feed(0, STDOUT, b"name? ", 1.0) == []
    assert view.deadline == 1.2
    assert view.tick(1.1) == []
    assert view.tick(1.2) == [(STDOUT, b"[0] name? ")]
    assert view.deadline is None
    assert view.feed(0, STDOUT, b"thanks\n", 2.0) == [(STDOUT, b"thanks\n")]


def test_a_line_that_waits_is_broken_by_others_and_goes_on_with_a_prefix():
    view = screen()
    view.feed(0, STDOUT, b"half", 0.0)
    assert shown(view.tick(0.2)) == b"[0] half"
    assert view.feed(1, STDERR, b"x\n", 0.3) == [(STDOUT, b"\n"), (STDERR, b"[1] x\n")]
    assert shown(view.feed(0, STDOUT, b" and half\n", 0.4)) == b"[0]  and half\n"


def test_a_progress_bar_shows_while_it_goes_on():
    view = screen(STDOUT)
    assert shown(view.feed(0, STDOUT, b"\r10%", 0.0)) == b""
    assert shown(view.feed(0, STDOUT, b"\r20%", 0.1)) == b"[0] 10%\r"
    assert shown(view.tick(0.4)) == b"\x1b[K[0] 20%"
    assert shown(view.feed(0, STDOUT, b"\r30%", 0.4)) == b"\r"
    assert shown(view.feed(1, STDOUT, b"note\r\n", 0.4)) == b"\x1b[K[1] note\n"
    assert shown(view.feed(0, STDOUT, b"\n", 0.5)) == b"[0] 30%\n"


def test_a_progress_bar_shows_in_files_too():
    view = screen()
    text = shown(view.feed(0, STDOUT, b"\r10%", 0.0)) + shown(view.tick(0.2))
    text += shown(view.feed(0, STDOUT, b"\r20%\n", 0.3))
    assert text == b"[0] \r10%\r20%\n"


def test_a_line_without_end_is_not_kept_for_ever():
    view = screen()
    assert len(shown(view.feed(0, STDOUT, b"x" * 2_000_000, 0.0))) == 2_000_004


chunks = lists(
    tuples(
        integers(0, 3),
        sampled_from([STDOUT, STDERR]),
        binary(min_size=1, max_size=8) | sampled_from([b"\n", b"ab\ncd", b"\r", b"x"]),
    )
)


@given(chunks)
def test_no_byte_is_lost_and_no_line_torn(parts):
    view = screen()
    pieces = [piece for part in parts for piece in view.feed(*part, 0.0)] + view.close()
    lines = shown(pieces).split(b"\n")
    assert lines.pop() == b""
    for rank in range(4):
        for stream in (STDOUT, STDERR):
            said = b"".join(data for r, s, data in parts if (r, s) == (rank, stream))
            expected = said.split(b"\n")
            if not expected[-1]:
                expected.pop()
            own = shown(piece for piece in pieces if piece[0] == stream).split(b"\n")
            prefix = b"[%d] " % rank
            assert [x[len(prefix) :] for x in own if x.startswith(prefix)] == expected


@given(chunks, lists(integers(0, 3)))
def test_bytes_survive_any_waiting(parts, waits):
    """Prefixes and breaks are added, nothing else is changed."""
    view = screen()
    now, pieces = 0.0, []
    for i, part in enumerate(parts):
        now += (waits[i] if i < len(waits) else 0) / 10
        pieces += view.tick(now) + view.feed(*part, now)
    text = shown(pieces + view.close())
    said = b"".join(data for _, _, data in parts)
    assert text.count(b"\n") >= said.count(b"\n")
    assert not text or text.endswith(b"\n")
