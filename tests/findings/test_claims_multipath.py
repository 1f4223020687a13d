"""Adaptive routing, packet spraying and multipath: what the receiver takes is neither lost nor a fault.

The neighbours: a real loss among packets out of order, a go-back-N because of the order, packets without an
ACK in the capture, a port that changed once.
"""

from __future__ import annotations

import pytest
from alike import PORTS, adaptive_routing, sprayed
from talk import US, Talk, named, of_rule, only, settled

from rocekit import wire

UNDO = "Keep a flow on one path"


@pytest.mark.parametrize("ids", [True, False])
def test_out_of_order_without_nak_is_no_fault(ids: bool) -> None:
    findings = adaptive_routing(ports=[0xC000], ids=ids).findings()
    assert named(findings) == []
    (found,) = findings
    assert found.rule == "reordering"
    assert found.title.startswith("21 packets arrived out of order, up to 4 µs late")
    assert found.title.endswith("no NAK, nothing sent again, all acknowledged")
    assert found.advice.startswith("Nothing to do: the receiver takes packets out of order")
    assert UNDO not in found.advice
    assert found.evidence["all_acknowledged"] is True


def test_without_acks_whether_the_receiver_takes_it_is_open() -> None:
    talk = Talk(mtu=4096)
    sprayed(talk, 11, 64, ports=[0xC000])
    (found,) = of_rule(talk.findings(), "reordering")
    assert found.severity == "info"
    assert "acknowledged" not in found.title
    assert "Whether the receiver takes packets out of order is unknown" in found.advice
    assert UNDO not in found.advice
    assert found.evidence["all_acknowledged"] is False


@pytest.mark.parametrize("ids", [True, False])
def test_one_qp_with_many_ports_is_multipath_probably(ids: bool) -> None:
    findings = adaptive_routing(ids=ids).findings()
    assert named(findings) == []
    (found,) = of_rule(findings, "multipath")
    assert found.title == ("10.9.0.1 QP 0x11 → 10.9.0.2 QP 0x12 uses 8 UDP source ports: multipath, probably")
    assert found.evidence["udp_source_ports"] == list(PORTS)
    assert found.evidence["only_writes"] is True


def test_two_ports_are_said_and_no_more() -> None:
    talk = settled(Talk(), 1)
    talk.send(2, sport=0xC005)
    talk.ack(2)
    (found,) = talk.findings()
    assert (found.rule, found.title) == (
        "multipath",
        "10.9.0.1 QP 0x11 → 10.9.0.2 QP 0x12 uses 2 UDP source ports",
    )
    assert found.evidence["only_writes"] is False


def test_each_direction_has_a_port_of_its_own() -> None:
    talk = Talk()
    talk.send(1)
    talk.packet("RC_ACKNOWLEDGE", 1, by="b", sport=0xD000, syndrome=wire.make_syndrome(wire.ACK), msn=1)
    assert talk.findings() == []


@pytest.mark.parametrize("ids", [True, False])
def test_a_loss_among_sprayed_packets_is_a_loss(ids: bool) -> None:
    """The NAK names PSN 40, and only that comes again: selective repeat."""
    talk = Talk(mtu=4096)
    talk.write(10, 1)
    talk.ack(10)
    sprayed(talk, 11, 64, lost={40}, ids=ids)
    talk.nak(40)
    talk.wait(100 * US)
    talk.write(11, 64, only=[40], identification=talk.ident + 1 if ids else 0)
    talk.ack(74)
    evidence = talk.evidence()
    findings = talk.findings()
    found = only(findings, "loss")
    assert found.title.startswith("PSN 40 was lost")
    (info,) = of_rule(findings, "reordering")
    assert info.title.endswith("no NAK or repeat because of it, all acknowledged")
    assert info.advice.startswith("Nothing to do: the receiver takes packets out of order")
    assert evidence.connections[0].recovery == "selective"


@pytest.mark.parametrize("go_back_n", [True, False])
def test_a_loss_is_a_loss_although_packets_are_late_between_nak_and_repeat(go_back_n: bool) -> None:
    talk = Talk(mtu=4096)
    talk.write(10, 1)
    talk.ack(10)
    sprayed(talk, 11, 64, lost={40}, nak_after=(48, 40))
    talk.wait(100 * US)
    talk.write(11, 64, only=range(40, 75) if go_back_n else [40])
    talk.ack(74)
    findings = talk.findings()
    found = only(findings, "loss")
    assert found.title.startswith("PSN 40 was lost")
    assert found.evidence["lost_packets"] == 1
    (info,) = of_rule(findings, "reordering")
    assert info.title.endswith("no NAK or repeat because of it, all acknowledged")
    assert UNDO not in info.advice
    assert info.advice.startswith("Nothing to do about the order") == go_back_n


@pytest.mark.parametrize("ids", [True, False])
def test_order_that_costs_a_go_back_keeps_its_advice(ids: bool) -> None:
    """The receiver sends a NAK for PSN 40, which comes late, and all behind it is sent again."""
    talk = Talk(mtu=4096)
    talk.write(10, 1)
    talk.ack(10)
    own = {"identification": 500} if ids else {}
    if not ids:
        talk.common = {"identification": 0}
    talk.ident = 400
    talk.write(11, 64, only=range(11, 40))
    talk.ident += 1
    held = talk.ident if ids else 0
    talk.write(11, 64, only=[41, 42])
    talk.nak(40)
    talk.write(11, 64, only=[43])
    talk.write(11, 64, only=[40], **(own | {"identification": held}))
    talk.write(11, 64, only=[44, 45])
    talk.wait(100 * US)
    talk.write(11, 64, only=range(40, 75))
    talk.ack(74)
    found = only(talk.findings(), "reordering")
    assert UNDO in found.advice
    assert found.evidence["all_acknowledged"] is False


def test_sprayed_qps_do_not_share_one_path() -> None:
    """32 QPs, each sprayed over the same four ports."""
    whole = Talk(mtu=4096)
    for n in range(32):
        t = Talk(qa=0x100 + n, qb=0x900 + n, mtu=4096)
        t.now, t.ident, t.frames = whole.now, whole.ident, whole.frames
        sprayed(t, 11, 16, ports=PORTS[:4], seed=n)
        t.ack(26)
        whole.now, whole.ident = t.now, t.ident
    findings = whole.findings()
    assert named(findings) == []
    assert not of_rule(findings, "low-entropy")
    assert len(of_rule(findings, "multipath")) == 32


def marked_qps(count: int) -> list[Talk]:
    """QPs of two hosts whose packets have a CE mark; the later half of the capture is long behind."""
    talks: list[Talk] = []
    for n in range(count):
        t = Talk(qa=0x100 + n, qb=0x200 + n)
        if talks:
            t.now, t.ident, t.frames = talks[-1].now, talks[-1].ident, talks[-1].frames
        t.common = {"dscp": 26, "ecn": 2}
        t.send(1)
        t.ack(1)
        t.send(2, 20, ecn=3)
        t.ack(21)
        talks.append(t)
    talks[0].now = talks[-1].now + 5_000_000
    return talks


def test_one_cnp_in_its_own_class_answers_for_all_qps_of_the_host() -> None:
    talks = marked_qps(3)
    talks[0].packet("CNP", 0, bytes(16), by="b", dscp=48, ecn=0, becn=1)
    assert named(talks[0].findings()) == []


def test_marks_without_any_cnp_are_still_said() -> None:
    talks = marked_qps(3)
    talks[0].send(22)
    talks[0].ack(22)
    assert named(talks[0].findings()) == ["ecn-unanswered"] * 3


@pytest.mark.parametrize("migreq", [0, 1])
def test_the_migration_bit_changes_nothing(migreq: int) -> None:
    talk = Talk()
    talk.common = {"migreq": migreq}
    talk.send(1)
    talk.ack(1)
    talk.send(2, 8)
    talk.ack(9)
    assert talk.findings() == []


def test_one_ack_with_credits_for_many_messages() -> None:
    talk = settled(Talk(), 1)
    for k in range(16):
        talk.send(2 + 4 * k, 4, ackreq=0)
    talk.aeth(65, wire.ACK, 13, by="b", msn=17)
    evidence = talk.evidence()
    assert {t.status for t in evidence.transfers} == {"acked"}
    assert talk.findings() == []


def test_two_requesters_of_one_host_that_send_to_one_number_are_said_to_be_two_probably() -> None:
    """One still tries when its peer has ended, and the peer's number was given to another QP."""
    talk = Talk()
    for n in range(20):
        talk.send(14_000_000 + n)
        talk.ack(14_000_000 + n)
    for n in range(6):
        talk.wait(300 * US)
        for psn in range(14_000_020, 14_000_024):
            talk.send(psn)
        talk.send(14_000_024 + 2 * n, 2, only=[14_000_025 + 2 * n])
        for psn in range(2_000 + 4 * n, 2_004 + 4 * n):
            talk.wait(20 * US)
            talk.send(psn, sport=0xC005)
            talk.packet(
                "RC_ACKNOWLEDGE",
                psn,
                by="b",
                dest_qpn=0x24,
                syndrome=wire.make_syndrome(wire.ACK),
                msn=psn & 0xFFF,
            )
    findings = talk.findings()
    (found,) = of_rule(findings, "multipath")
    assert found.title.endswith("PSNs far apart in turn: probably two QPs that send to one number")
    assert "“unacknowledged” in it may have been acknowledged" in found.advice
    assert "capture-gap" not in [f.rule for f in findings], [str(f) for f in findings]


def test_a_port_that_changes_where_psns_go_on_is_no_second_requester() -> None:
    talk = Talk()
    for n in range(40):
        talk.send(n, sport=0xC000 + n // 10 % 2)
        talk.ack(n)
    (found,) = of_rule(talk.findings(), "multipath")
    assert "probably" not in found.title


def test_a_number_used_again_one_life_after_the_other_is_no_second_requester() -> None:
    """Each life begins at a PSN of its own, far back or far ahead, and none comes back."""
    talk = Talk()
    for first, sport in ((5_000_000, 0xC001), (1_000_000, 0xC002), (9_000_000, 0xC003)):
        for psn in range(first, first + 20):
            talk.send(psn, sport=sport)
            talk.ack(psn)
    assert not any("two QPs" in f.title for f in talk.findings())
