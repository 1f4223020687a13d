"""What a requester sent before the capture began is not known, so a capture begun in the middle says less."""

from __future__ import annotations

import pytest
from talk import MS, TIMEOUT, US, Talk, named, only


def both_ways() -> Talk:
    """A capture that shows the two QPs as a pair, by b's own SENDs."""
    t = Talk()
    for psn in range(4):
        t.send(1000 + psn, by="b")
        t.ack(1000 + psn, by="a")
    return t


def goes_back(t: Talk, *, nak: bool) -> Talk:
    """The capture's first request is PSN 50; the requester goes back to 10 and sends all up to 50 again."""
    t.send(50)
    if nak:
        t.wait(20 * US)
        t.nak(10)
    t.wait(MS)
    for psn in range(10, 51):
        t.send(psn)
    t.wait(20 * US)
    t.ack(50)
    for psn in range(51, 60):
        t.send(psn)
        t.ack(psn)
    return t


def test_no_packet_was_lost_for_being_sent_before_the_capture() -> None:
    """An RNR NAK before the capture, or a lost ACK, makes a requester go back as well."""
    assert named(goes_back(both_ways(), nak=False).findings()) == []


def test_a_nak_names_one_packet_and_not_all_that_were_sent_before() -> None:
    found = only(goes_back(both_ways(), nak=True).findings(), "loss")
    assert found.title.startswith("PSN 10 was probably lost")
    assert found.evidence["lost_packets"] == 1
    assert found.evidence["lost_before_capture_point"] == found.evidence["lost_behind_capture_point"] == 0
    assert "before the capture began" in found.advice
    assert "hole_frame" not in found.evidence["cases"][0]


@pytest.mark.parametrize("known", ["CM", "long before"])
def test_where_the_first_packets_would_be_in_the_capture_their_loss_is_told(known: str) -> None:
    t = both_ways() if known == "long before" else Talk()
    if known == "CM":
        t.request()
        t.reply(starting_psn=10)
        t.cm("RTU", local_comm_id=1, remote_comm_id=2)
    else:
        t.wait(3_000 * MS)
    found = only(goes_back(t, nak=True).findings(), "loss")
    assert found.evidence["lost_packets"] == 40
    assert found.evidence["lost_before_capture_point"] == 1


def test_a_later_loss_has_no_hole_of_before_the_capture() -> None:
    """The NAK of the second pass is for a packet that this pass lacks."""
    t = both_ways()
    t.send(50)
    t.wait(TIMEOUT)
    for psn in range(10, 51):
        if psn != 20:
            t.send(psn)
    t.wait(20 * US)
    t.nak(20)
    t.wait(100 * US)
    for psn in range(20, 51):
        t.send(psn)
    t.wait(20 * US)
    t.ack(50)
    found = only(t.findings(), "loss")
    assert found.title.startswith("PSN 20 was lost")
    assert found.evidence["lost_before_capture_point"] == 1
    assert "hole_frame" not in found.evidence["cases"][0]


def test_how_long_a_requester_waited_before_the_capture_is_not_known() -> None:
    """Responses to what was sent before the capture, then the first request, which is sent again."""
    t = both_ways()
    for psn in range(5):
        t.responses(psn * 4, 4)
    t.wait(50 * MS)
    t.read(0, 4)
    t.responses(0, 4)
    found = t.findings()
    waits = [f.evidence["waited_ns"] for f in found if "waited_ns" in f.evidence]
    assert all(wait < 1_000 * MS for wait in waits)
    assert not any(" s, and all" in f.title for f in found)


def test_no_other_qp_begins_so_soon_behind_the_last_request() -> None:
    """A requester that goes back below the capture's first PSN after 400 µs is the same as before."""
    t = both_ways()
    for psn in range(20, 28):
        t.send(psn)
        t.ack(psn)
    t.wait(400 * US)
    for psn in range(16, 28):
        t.send(psn)
    t.wait(20 * US)
    t.ack(27)
    assert "qpn-used-again" not in [f.rule for f in t.findings()]


def test_a_copy_of_what_was_first_sent_before_the_capture_is_not_late() -> None:
    """The answer to 20 is lost before it comes to the capture, and the network makes two of the repeat."""
    t = both_ways()
    for first, last, unanswered in ((50, 90, {70, 89}), (10, 90, {20, 40, 89}), (20, 90, {89})):
        for psn in range(first, last):
            frame = t.atomic(psn)
            t.wait(20 * US)
            if psn not in unanswered:
                t.atomic_answer(psn)
            if psn == first == 20:
                t.again(frame)
                t.wait(20 * US)
                t.atomic_answer(psn)
        t.wait(MS)
    found = t.findings()
    assert "reordering" not in named(found)
    assert not any("out of order" in finding.title for finding in found)


def test_reads_that_were_asked_for_before_the_capture_were_not_lost_before_it() -> None:
    """The first packets are responses, to a READ of before; the first request is behind three of before."""
    t = Talk()
    t.responses(0, 16, lost=range(4))
    t.wait(4 * MS)
    t.read(64, 16)
    t.wait(500 * US)
    t.nak(16)
    t.wait(500 * US)
    for psn in (16, 32, 48, 64):
        t.read(psn, 16)
    for psn in (16, 32, 48, 64):
        t.responses(psn, 16)
    found = only(t.findings(), "loss")
    assert found.title.startswith("PSN 16 was probably lost")
    assert found.evidence["lost_before_capture_point"] == 0
    assert "before the capture began" in found.advice
