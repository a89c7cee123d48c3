from __future__ import annotations

import threading

from commrt.control.base import PeerGone, Received
from commrt.control.memory import MemoryHub


def test_messages_arrive_in_order_with_their_sender() -> None:
    hub = MemoryHub(2)
    for data in (b"a", b"b"):
        hub.link(0).send(1, data)
    assert hub.link(1).poll(None) == [Received(0, b"a"), Received(0, b"b")]
    assert hub.link(1).poll(0) == []


def test_a_rank_may_send_to_itself() -> None:
    hub = MemoryHub(1)
    hub.link(0).send(0, b"a")
    assert hub.link(0).poll(None) == [Received(0, b"a")]


def test_a_wake_before_or_while_polling_ends_the_poll() -> None:
    link = MemoryHub(1).link(0)
    link.wake()
    assert link.poll(None) == []
    ended = threading.Event()

    def sleep() -> None:
        link.poll(None)
        ended.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    link.wake()
    thread.join()
    assert ended.is_set()


def test_a_loss_is_told_to_all_others_who_hear_nothing_more_of_the_dead() -> None:
    hub = MemoryHub(3)
    dead = hub.link(1)
    hub.lose(1, "killed")
    dead.send(0, b"from beyond")
    hub.link(0).send(1, b"to beyond")
    assert hub.link(0).poll(0) == hub.link(2).poll(0) == [PeerGone(1, "killed")]
    assert dead.poll(0) == []


def test_a_closed_end_gets_nothing_more_and_closing_twice_is_fine() -> None:
    hub = MemoryHub(2)
    link = hub.link(1)
    link.close()
    link.close()
    hub.link(0).send(1, b"a")
    assert link.poll(0) == []


def test_rank_0_notices_a_closed_end_and_all_notice_rank_0_s() -> None:
    hub = MemoryHub(3)
    links = [hub.link(r) for r in range(3)]
    links[1].close()
    assert links[0].poll(0) == [PeerGone(1, "its connection closed", hung_up=True)]
    assert links[2].poll(0) == []
    links[0].close()
    assert links[2].poll(0) == [PeerGone(0, "its connection closed", hung_up=True)]
