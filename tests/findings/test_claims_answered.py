"""An ACK that names just a packet that was sent again: what was taken for lost may only have come late.

rdma_rxe sends ACKs for the last packet of a message, and one for each duplicate (IBA Vol. 1, 9.7.5.1.3).
"""

from __future__ import annotations

import pytest
from talk import US, Talk, only


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
