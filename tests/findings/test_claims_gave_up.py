"""What a requester that gave up never asked for again is no gap of the capture."""

from __future__ import annotations

from talk import MS, TIMEOUT, US, Talk


def reads(*, then: str) -> Talk:
    """Responses of PSN 5 are not in the capture, nor asked for again; then READs go on, well or not."""
    t = Talk()
    t.connect(retry_count=1)
    for psn in range(0, 16, 4):
        t.read(psn, 4)
        t.wait(20 * US)
        t.responses(psn, 4, lost=(5,) if psn == 4 else ())
        t.wait(100 * US)
    t.read(16, 4)
    t.wait(20 * US)
    t.responses(16, 4, lost=(18,) if then == "gave up" else ())
    t.wait(5 * TIMEOUT)
    t.packet("UD_SEND_ONLY", 7, bytes(64), src="10.9.0.7", dst="10.9.0.8", src_qpn=9, dest_qpn=8)
    return t


def test_responses_of_a_requester_that_gave_up_were_not_missed_for_sure() -> None:
    """rdma_rxe goes on with new READs until the timer of the one that lacks a response runs out."""
    assert "capture-gap" not in [f.rule for f in reads(then="gave up").findings()]


def test_responses_of_one_that_went_on_were() -> None:
    (found,) = (f for f in reads(then="went on").findings() if f.rule == "capture-gap")
    assert found.evidence["packets_missed"] == 1


def test_a_message_whose_first_packet_was_lost_before_the_end_is_no_gap() -> None:
    """The FIRST of the last message but one was lost; nothing of both is acknowledged."""
    t = Talk()
    t.connect(retry_count=1)
    for psn in range(0, 12, 4):
        t.write(psn, 4)
        t.wait(20 * US)
        t.ack(psn + 3)
    t.write(12, 4, lost=(12,))
    t.write(16, 4)
    t.wait(MS)
    assert "capture-gap" not in [f.rule for f in t.findings()]


def test_cnps_from_another_port_are_no_second_path() -> None:
    t = Talk()
    t.connect()
    for psn in range(8):
        t.send(psn, sport=50_000)
        t.packet("RC_ACKNOWLEDGE", psn, by="b", syndrome=0x1F, msn=psn + 1, sport=50_001)
        t.packet("CNP", 0, by="b", sport=60_000)
    assert "multipath" not in [f.rule for f in t.findings()]


def test_a_read_whose_response_came_at_last_was_not_given_up() -> None:
    """The capture begins among the responses, so that the READ is not complete in it (``drawn-646``)."""
    t = Talk()
    t.connect()
    t.read(0, 8)
    t.wait(20 * US)
    cut = t.responses(0, 8, lost=(6,))[2]
    for tries in range(4):
        t.wait(TIMEOUT)
        t.read(0, 8, skip=6)
        t.wait(20 * US)
        t.responses(0, 8, skip=6, lost=(6,) if tries < 3 else ())
    t.frames = t.frames[cut:]
    assert not {"retry-exceeded", "peer-silent"} & {f.rule for f in t.findings()}
