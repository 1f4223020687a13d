"""What the findings claim of a peer that does not answer: no more than the capture has."""

from __future__ import annotations

import pytest
from talk import MS, TIMEOUT, US, Talk, only, settled

from rocekit.findings import Finding


def others(t: Talk) -> None:
    """A packet of other hosts: the capture goes on."""
    t.packet("UD_SEND_ONLY", 7, bytes(64), src="10.9.0.7", dst="10.9.0.8", src_qpn=9, dest_qpn=8)


def repeated(t: Talk, psn: int, times: int = 4) -> None:
    for _ in range(times):
        t.send(psn)
        t.wait(TIMEOUT)


def exceeded(t: Talk) -> Finding:
    return only(t.findings(), "retry-exceeded")


def begun(answered: int = 3) -> Talk:
    t = Talk()
    t.connect(retry_count=3)
    for psn in range(answered):
        t.send(psn)
        t.ack(psn)
    return t


def test_it_was_silent_from_the_first_transmission_on() -> None:
    t = begun()
    repeated(t, 3)
    found = exceeded(t)
    assert found.evidence["silent_for_ns"] >= 3 * TIMEOUT
    assert found.evidence["after_last_repeat_ns"] == 0


def test_a_capture_that_ends_with_the_last_repeat_does_not_show_who_gave_up() -> None:
    t = begun()
    repeated(t, 3)
    found = exceeded(t)
    assert found.evidence["gave_up"] is False
    assert found.title.endswith("then the capture ends")
    t.wait(10 * TIMEOUT)
    others(t)
    found = exceeded(t)
    assert found.evidence["gave_up"] is True
    assert found.title.endswith("then silence")


def test_a_peer_that_answers_other_qps_did_not_stop_answering() -> None:
    t = begun()
    for _ in range(4):
        t.send(3)
        t.wait(TIMEOUT // 2)
        # QP 0x22 at the same hosts
        t.packet("RC_SEND_ONLY", 50, bytes(64), dest_qpn=0x32, ackreq=1)
        t.wait(TIMEOUT // 2)
        t.packet("RC_ACKNOWLEDGE", 50, by="b", dest_qpn=0x22, syndrome=0x1F)
    others(t)
    found = next(f for f in t.findings() if f.rule == "retry-exceeded")
    assert "stopped answering" not in found.title
    assert found.title.startswith("No answer from 10.9.0.2 QP 0x12 any more: PSN 3")
    assert found.evidence["host_sent_meanwhile"]
    assert not found.evidence["peer_sent_meanwhile"]
    assert "the host runs and is reachable" in found.advice


def test_a_peer_qp_that_sends_meanwhile_is_not_silent() -> None:
    t = begun()
    t.send(0, by="b")
    t.ack(0, by="a")
    for k in range(4):
        t.send(3)
        t.wait(TIMEOUT // 2)
        t.send(1 + k, by="b")
        t.ack(1 + k, by="a")
        t.wait(TIMEOUT // 2)
    t.wait(10 * TIMEOUT)
    others(t)
    found = exceeded(t)
    assert found.title.startswith(
        "10.9.0.2 QP 0x12 sent other packets, but no ACK for a PSN: PSN 3 was sent 4 times"
    )
    assert found.evidence["peer_sent_meanwhile"]
    assert "alive and reachable" in found.advice


def test_in_one_direction_what_is_not_sent_again_was_answered() -> None:
    """The capture has no packet of the peer. The requester went back to PSN 103: 100 to 102 arrived."""
    t = Talk()
    for psn in (100, 101, 102):
        t.send(psn)
        t.wait(20 * US)
    repeated(t, 103)
    t.wait(10 * TIMEOUT)
    others(t)
    found = exceeded(t)
    assert found.title.startswith("The capture has no response from ")
    assert not found.evidence["gave_up"]
    assert found.evidence["peer_packets"] == 0
    assert "It had answered before all the same" in found.advice


def test_in_one_direction_a_peer_that_gets_the_first_psn_again_and_again_never_answered() -> None:
    t = Talk()
    repeated(t, 100, 5)
    found = only(t.findings(), "peer-silent")
    assert found.title.startswith("The capture has no response from ")
    assert "Open: whether the peer answered" in found.advice
    assert found.evidence["silent_for_ns"] > 0


@pytest.mark.parametrize("lost", [False, True])
def test_a_stall_in_mid_message_leaves_a_loss_open_where_others_were_lost_behind_the_capture(
    lost: bool,
) -> None:
    t = settled(Talk(), 99)
    t.send(100, 4)
    if lost:
        t.nak(101)
        t.send(100, 4, only=range(101, 104))
    t.ack(103)
    t.send(104, 2, only=[104])
    t.wait(27 * MS)
    t.send(104, 2)
    t.ack(105)
    found = next(f for f in t.findings() if f.rule == "needless-repeat")
    assert ("nothing in the capture shows a loss" in found.title) == lost
    assert found.evidence.get("or_not_in_capture", 0) == int(lost)
    assert ("may be sent again for a loss" in found.advice) == lost


@pytest.mark.parametrize("packets", [40, 128])
def test_a_requester_with_a_full_window_did_not_send_what_seems_lost_at_its_end(packets: int) -> None:
    """It went back, and sent ``packets`` of a longer message: those behind them need not have been sent
    (``drawn-601`` of the truth bench).
    """
    t = Talk()
    t.connect()
    for psn in range(20):
        settled(t, psn)
        t.wait(200 * US)
    t.send(20, 400, only=range(20, 20 + packets))
    t.wait(TIMEOUT)
    t.send(20, 400, only=range(20, 20 + packets))
    t.wait(50 * US)
    t.ack(20 + packets // 2)
    t.wait(2 * TIMEOUT)
    t.send(20, 400, only=range(21 + packets // 2, 420))
    t.wait(50 * US)
    t.ack(419)
    lost = [f for f in t.findings() if f.rule == "tail-loss" and 20 + packets in f.evidence["psns"]]
    assert [("probably" in f.title) for f in lost] == [packets == 128]
