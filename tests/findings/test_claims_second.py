"""A NAK for the packet right behind the one with which the requester went back.

If that first one comes late, the responder drops what came before it (IBA Vol. 1, 9.7.5.1.1), and asks for
the second. A capture at the requester's side shows the same where the second was lost.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from talk import US, Talk, only
from two_points import findings_of_two

PACKETS = 6


def gone_back(*, then: int) -> Talk:
    """PSN 40 draws a NAK, and the go-back draws one for ``then``."""
    t = Talk()
    t.connect()
    for begin in range(0, 40, 4):
        t.write(begin, 4)
        t.wait(20 * US)
        t.ack(begin + 3)
    t.write(40, PACKETS)
    t.wait(20 * US)
    t.nak(40)
    t.wait(20 * US)
    t.write(40, PACKETS)
    t.wait(20 * US)
    t.nak(then)
    t.wait(20 * US)
    t.write(40, PACKETS, only=range(then, 40 + PACKETS))
    t.wait(20 * US)
    t.ack(40 + PACKETS - 1)
    return t


def test_the_second_packet_of_a_go_back_was_lost_or_came_before_the_first() -> None:
    found = only(gone_back(then=41).findings(), "loss")
    assert found.title.startswith("At least 2 packets lost (1 of them probably) on ")
    assert found.evidence["probably_lost_packets"] == 1
    assert "right behind the one with which the requester went back" in found.advice


def test_a_later_packet_of_a_go_back_was_lost() -> None:
    found = only(gone_back(then=43).findings(), "loss")
    assert found.title.startswith("At least 2 packets lost on ")
    assert found.evidence["probably_lost_packets"] == 0


def test_the_second_packet_of_what_is_sent_the_first_time_was_lost() -> None:
    t = Talk()
    t.connect()
    for begin in range(0, 80, 4):
        t.write(begin, 4)
        t.wait(20 * US)
        if begin == 40:
            t.nak(41)
            t.wait(20 * US)
            t.write(40, 4, only=range(41, 44))
            t.wait(20 * US)
        t.ack(begin + 3)
    assert "probably" not in only(t.findings(), "loss").title


@pytest.mark.parametrize("misses", [False, True])
def test_beside_a_capture_that_misses_packets_the_other_one_may_have_missed_it(
    tmp_path: Path, misses: bool
) -> None:
    """The second capture has packets that were overtaken, and none of PSN 41 before its NAK (``drawn-601`` of
    the truth bench, as from a mirror that drops the ends of bursts).
    """
    t = gone_back(then=41)
    of_requests = [n for n, f in enumerate(t.frames) if f.data[42] < 0x0C]
    firsts = [n for n in of_requests if int.from_bytes(t.frames[n].data[51:54]) == 40]
    lost = {firsts[0], firsts[1] + 1}
    at_a = [f for n, f in enumerate(t.frames) if not (misses and n in of_requests[3:5])]
    at_b = [f for n, f in enumerate(t.frames) if n not in lost]
    late, before = at_b[of_requests[9]], at_b[of_requests[10]]
    at_b[of_requests[9]] = replace(late, data=before.data)
    at_b[of_requests[10]] = replace(before, data=late.data)
    found = only(findings_of_two(tmp_path, at_a, at_b), "loss")
    assert found.evidence["count"] == 2
    assert ("probably" in found.title) == misses
