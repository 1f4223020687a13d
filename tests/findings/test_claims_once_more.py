"""Packets without IPv4 identification that fill a gap, and come once more though nothing asks for them."""

from __future__ import annotations

import pytest
from talk import MS, US, Talk, of_rule, settled


def filled(identification: int | None) -> Talk:
    """101 is missing, gets a NAK, and is sent again with 102 behind it."""
    talk = settled(Talk(), 99)
    if identification is not None:
        talk.common = {"identification": identification}
    talk.send(100, 3, only=[100, 102])
    talk.wait(20 * US)
    talk.nak(101)
    talk.wait(100 * US)
    talk.send(100, 3, only=[101, 102])
    talk.wait(20 * US)
    return talk


def is_probable(talk: Talk) -> bool:
    """Whether the loss of 101 is only a probable one."""
    found = [f for f in of_rule(talk.findings(), "loss") if 101 in f.evidence["psns"]]
    assert len(found) == 1
    assert ("identifications do not tell" in found[0].advice) == ("probably" in found[0].title)
    return "probably" in found[0].title


@pytest.mark.parametrize("wait_ns", [1 * MS, 50 * MS])
def test_what_comes_once_more_when_it_is_acknowledged_may_be_the_first_copy(wait_ns: int) -> None:
    """Two packets in their order, as of a queue that was held up: rxe, whose processors take turns."""
    talk = filled(0)
    talk.ack(102)
    talk.send(103)
    talk.ack(103)
    talk.wait(wait_ns)
    talk.send(100, 3, only=[101, 102])
    assert is_probable(talk)


def test_what_comes_once_more_alone_may_be_the_first_copy() -> None:
    """A requester that goes back sends again what is behind it as well."""
    talk = filled(0)
    talk.wait(1 * MS)
    talk.send(100, 3, only=[101])
    talk.ack(102)
    assert is_probable(talk)


@pytest.mark.parametrize("again", [(), (101, 102)])
def test_what_fills_a_gap_once_or_is_lost_again_was_lost(again: tuple[int, ...]) -> None:
    """Both are sent once more after the timeout, and acknowledged then: the second copies were lost."""
    talk = filled(0)
    if again:
        talk.wait(200 * MS)
        talk.send(100, 3, only=again)
        talk.wait(20 * US)
    talk.ack(102)
    assert not is_probable(talk)


def test_an_identification_tells_a_packet_that_is_sent_again_from_the_first_one() -> None:
    talk = filled(None)
    talk.ack(102)
    talk.send(103)
    talk.ack(103)
    talk.wait(260 * MS)
    talk.send(100, 3, only=[101, 102])
    assert not is_probable(talk)
