"""An ACK that names just a packet that was sent again: what was taken for lost may only have come late.

rdma_rxe sends ACKs for the last packet of a message, and one for each duplicate (IBA Vol. 1, 9.7.5.1.3).
"""

from __future__ import annotations

import pytest
from talk import TIMEOUT, US, Talk, of_rule, only


def refused(*, named: int) -> Talk:
    """PSNs 41 and 65, each the second packet of four, draw NAKs; behind the repeat an ACK names ``named``."""
    t = Talk()
    t.connect()
    for begin in range(0, 100, 4):
        t.write(begin, 4)
        t.wait(20 * US)
        if begin in (40, 64):
            t.nak(begin + 1)
            t.wait(20 * US)
            t.write(begin, 4, only=range(begin + 1, begin + 4))
            t.wait(20 * US)
            if begin <= named < begin + 3:
                t.ack(named)
        t.ack(begin + 3)
    return t


def test_a_nak_s_packet_whose_ack_comes_with_its_message_was_lost() -> None:
    found = only(refused(named=-1).findings(), "loss")
    assert found.title.startswith("At least 2 packets lost on ")
    assert found.evidence["probably_lost_packets"] == 0


@pytest.mark.parametrize("named", [41, 65])
def test_where_an_ack_names_just_the_packet_both_are_only_probable(named: int) -> None:
    found = only(refused(named=named).findings(), "loss")
    assert found.title.startswith("At least 2 packets lost (all of them probably)")
    assert found.evidence["probably_lost_packets"] == 2
    assert "an ACK named just a packet that had been sent again" in found.advice


def test_an_ack_of_another_packet_says_nothing_of_it() -> None:
    assert "probably" not in only(refused(named=42).findings(), "loss").title


def acked_once_more(*, again: int = 0, copied: bool = False, after_timeout: bool = False) -> Talk:
    """PSN 41 draws a NAK and comes again; when its message is acknowledged, the same ACK comes once more."""
    t = Talk()
    for begin in range(0, 100, 4):
        t.write(begin, 4)
        t.wait(20 * US)
        if begin == 40:
            t.nak(41)
            t.wait(20 * US)
            t.write(begin, 4, only=range(41, 44))
            t.wait(20 * US)
        if begin == 80 and after_timeout:
            t.wait(TIMEOUT)
            t.write(begin, 4)
            t.wait(20 * US)
        ack = t.ack(begin + 3, msn=begin // 4 + 1)
        if begin == again:
            t.wait(400 * US)
            t.again(ack) if copied else t.ack(begin + 3, msn=begin // 4 + 1)
    return t


@pytest.mark.parametrize("again", [40, 52])
def test_an_ack_once_more_is_to_a_packet_that_came_twice(again: int) -> None:
    """Nothing that had come was sent again, so it is to the original of 41, or to a copy on the way."""
    found = only(acked_once_more(again=again).findings(), "loss")
    assert found.title.startswith("PSN 41 was probably lost on ")
    assert "or an answer came once more" in found.advice


def test_an_ack_once_more_before_the_nak_says_nothing_of_it() -> None:
    assert only(acked_once_more(again=36).findings(), "loss").title.startswith("PSN 41 was lost on ")


def test_a_copy_of_an_ack_says_nothing() -> None:
    found = of_rule(acked_once_more(again=40, copied=True).findings(), "loss")
    assert found[0].title.startswith("PSN 41 was lost on ")


def test_after_a_timeout_packets_that_had_come_are_sent_again() -> None:
    """The ACK once more is to one of those."""
    found = of_rule(acked_once_more(again=80, after_timeout=True).findings(), "loss")
    assert found[0].title.startswith("PSN 41 was lost on ")


@pytest.mark.parametrize(("copied", "rule"), [((), "reordering"), ((1, 2, 3, 7, 8), "loss")])
def test_an_atomic_answered_once_more_came_late_unless_others_are_copied(
    copied: tuple[int, ...], rule: str
) -> None:
    """Two answers to one that was sent again: the original came late, or the network copied the second."""
    t = Talk()
    for psn in range(0, 40, 2):
        t.atomic(psn)
        t.atomic(psn + 1)
        t.wait(20 * US)
        if psn == 10:
            t.nak(psn)
            t.wait(20 * US)
            t.atomic(psn)
            t.atomic(psn + 1)
            t.wait(20 * US)
        t.atomic_answer(psn)
        t.atomic_answer(psn + 1)
        if psn == 10 or psn // 2 in copied:
            t.wait(20 * US)
            t.atomic_answer(psn)
        t.wait(100 * US)
    (found,) = of_rule(t.findings(), rule)
    assert rule != "loss" or "PSN 10 was probably lost" in found.title


def single_messages(*, doubled: int = -1) -> Talk:
    """Messages of one packet; PSN 40 draws a NAK, and the ACK of ``doubled`` comes twice, sent twice."""
    t = Talk()
    t.connect()
    for psn in range(30, 60):
        t.send(psn)
        t.wait(20 * US)
        if psn == 40:
            t.send(41)
            t.wait(20 * US)
            t.nak(40)
            t.wait(20 * US)
            t.send(40)
            t.wait(20 * US)
        t.ack(psn)
        if psn == doubled:
            t.ack(psn)
    return t


def test_an_ack_sent_again_behind_new_packets_may_answer_the_original() -> None:
    found = only(single_messages(doubled=45).findings(), "loss")
    assert found.title.startswith("PSN 40 was probably lost on ")
    assert found.evidence["probably_lost_packets"] == 1


@pytest.mark.parametrize("doubled", [-1, 35])
def test_an_ack_sent_again_before_the_nak_tells_nothing(doubled: int) -> None:
    found = only(single_messages(doubled=doubled).findings(), "loss")
    assert found.title.startswith("PSN 40 was lost on ")
