"""A NAK that follows an RNR NAK for the same packet, and comes late: nothing need have been overtaken."""

from __future__ import annotations

import pytest
from talk import MS, US, Talk, of_rule


def late_nak(*, refused: bool) -> Talk:
    """103 is sent again; then a NAK for it comes, an ACK, and what the NAK asks for.

    If it was ``refused`` with an RNR NAK at first, that NAK may be of its first copy (``drawn-427`` of the
    truth bench).
    """
    t = Talk()
    t.connect(primary_local_ack_timeout=12)
    for psn in range(90, 100):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    for psn in range(100, 108):
        t.send(psn)
    t.wait(20 * US)
    for psn in range(100, 103):
        t.ack(psn)
    if refused:
        t.rnr(103)
    t.wait(20 * MS)
    for psn in range(103, 108):
        t.send(psn)
    t.wait(30 * US)
    t.nak(103)
    t.wait(20 * US)
    t.ack(103)
    t.wait(100 * US)
    for psn in range(103, 108):
        t.send(psn)
    t.wait(20 * US)
    t.ack(107)
    return t


@pytest.mark.parametrize("refused", [False, True])
def test_a_nak_behind_an_rnr_nak_for_its_packet_proves_no_reordering(refused: bool) -> None:
    (found,) = of_rule(late_nak(refused=refused).findings(), "reordering")
    assert ("probably" in found.title) is refused
    assert ("an RNR NAK for the same packet came before" in found.advice) is refused
