"""Traffic classes, congestion, pauses, path MTUs, dead QPs and the depth of READs."""

from __future__ import annotations

import struct

import pytest
from capture_bytes import Frame
from talk import MS, TIMEOUT, US, A, Talk, agreed, evidence_of, named, only, settled
from witness_frames import icmp

from rocekit import wire
from rocekit.decode import Pause
from rocekit.findings import Finding
from rocekit.findings.rules import find
from rocekit.track.connections import Negotiated
from rocekit.wire.build import ethernet


class TestTrafficClasses:
    def test_by_direction(self) -> None:
        t = Talk()
        t.common["dscp"] = 26
        data = t.send(100)
        t.common["dscp"] = 0
        ack = t.ack(100)
        found = only(t.findings(), "dscp-mismatch")
        assert found.evidence["differs"] == "by direction"
        assert found.frames == (data[100], ack)

    def test_within_a_direction(self) -> None:
        t = Talk()
        t.common["dscp"] = 26
        for psn in (100, 101):
            t.send(psn)
            t.ack(psn)
        t.send(102, dscp=0)
        t.ack(102)
        assert only(t.findings(), "dscp-mismatch").evidence["differs"] == "within a direction"

    def test_acks_in_another_class_at_both_ends_are_info(self) -> None:
        t = Talk()
        for by, other in (("a", "b"), ("b", "a")):
            t.common["dscp"] = 26
            t.send(100, by=by)
            t.common["dscp"] = 46
            t.ack(100, by=other)
        found = next(f for f in t.findings() if f.rule == "dscp-mismatch")
        assert found.title == "ACKs are in another traffic class than requests: DSCP 46, not 26"
        assert (found.severity, found.evidence["differs"]) == ("info", "by kind")
        assert "rewritten" not in found.advice

    def test_read_data_in_another_class_than_requests(self) -> None:
        t = Talk()
        for by, other in (("a", "b"), ("b", "a")):
            t.common["dscp"] = 26
            t.read(100, 2, by=by)
            t.common["dscp"] = 0
            t.responses(100, 2, by=other)
        found = only(t.findings(), "dscp-mismatch")
        assert found.title.startswith("Responses, READ data among them,")
        assert found.severity == "warning"

    def test_one_requester_leaves_open_whose_class_the_acks_have(self) -> None:
        t = Talk()
        t.send(100, dscp=26)
        t.ack(100)
        assert (
            "Open: whether the responder's QP has another class" in only(t.findings(), "dscp-mismatch").advice
        )

    def test_a_cnp_has_its_own_class(self) -> None:
        t = Talk()
        t.common["dscp"] = 26
        t.send(100, ecn=3)
        t.ack(100)
        t.packet("CNP", 0, by="b", dscp=48, becn=1)
        t.wait(5 * MS)
        t.send(101)
        t.ack(101)
        assert t.findings() == []

    def test_ecn_is_no_class(self) -> None:
        t = Talk()
        t.send(100, ecn=2)
        t.ack(100, msn=1)
        assert t.findings() == []


class TestSiblings:
    @staticmethod
    def found(*dscps: int, vlan: int | None = None, **of_last: int) -> list[Finding]:
        """Connections of the same two hosts, one after the other."""
        frames: list[Frame] = []
        for n, dscp in enumerate(dscps):
            t = Talk(qa=0x100 + n, qb=0x200 + n)
            t.now += n * MS
            t.common |= {"dscp": dscp, "vlan": vlan} | (of_last if n == len(dscps) - 1 else {})
            t.send(1000 * n)
            t.ack(1000 * n)
            frames += t.frames
        return find(evidence_of(frames))

    def test_one_qp_in_another_class(self) -> None:
        (found,) = self.found(26, 26, 0)
        assert (found.rule, found.severity) == ("class-differs", "info")
        assert found.title == (
            f"Connections from {A} to 10.9.0.2 use different traffic classes: DSCP 26 on 2, DSCP 0 on 1 "
            f"({A} QP 0x102 → 10.9.0.2 QP 0x202)"
        )
        assert found.connection is not None

    def test_two_of_two_have_no_odd_one(self) -> None:
        (found,) = self.found(26, 0)
        assert found.connection is None

    def test_one_class_is_nothing(self) -> None:
        assert self.found(26, 26) == []

    def test_another_vlan_priority(self) -> None:
        (found,) = self.found(26, 26, 26, vlan=5, priority=4)
        assert "DSCP 26 with VLAN priority 4 on 1" in found.title

    def test_hosts_in_two_vlans_are_not_the_same(self) -> None:
        assert self.found(26, 26, 0, vlan=5) != []
        frames: list[Frame] = []
        for n, (dscp, vlan) in enumerate(((26, 5), (0, 6))):
            t = Talk(qa=0x100 + n, qb=0x200 + n)
            t.now += n * MS
            t.common |= {"dscp": dscp, "vlan": vlan}
            t.send(1000 * n)
            t.ack(1000 * n)
            frames += t.frames
        assert find(evidence_of(frames)) == []

    def test_directions_are_not_siblings(self) -> None:
        """A sends with 26 on one connection, B with 0 on the other; each answers in its own class."""
        frames: list[Frame] = []
        for n, (by, other) in enumerate((("a", "b"), ("b", "a"))):
            t = Talk(qa=0x100 + n, qb=0x200 + n)
            t.now += n * MS
            dscp = {"a": 26, "b": 0}
            t.common["dscp"] = dscp[by]
            t.send(1000 * n, by=by)
            t.common["dscp"] = dscp[other]
            t.ack(1000 * n, by=other)
            frames += t.frames
        assert "class-differs" not in [f.rule for f in find(evidence_of(frames))]


class TestEntropy:
    @staticmethod
    def qps(ports: list[int]) -> list[Finding]:
        frames, now = [], None
        for i, port in enumerate(ports):
            t = Talk(qa=0x100 + i, qb=0x200 + i)
            t.now = now or t.now
            t.common["sport"] = port
            t.send(1000 * i)
            t.ack(1000 * i)
            frames += t.frames
            now = t.now
        return find(evidence_of(frames))

    def test_many_qps_share_a_port(self) -> None:
        findings = self.qps([0xC000] * 8)
        assert [(f.rule, f.severity) for f in findings] == [("low-entropy", "info")]
        assert findings[0].evidence["qps"] == 8
        assert findings[0].evidence["port_count"] == 1

    def test_a_port_each_is_nothing(self) -> None:
        assert self.qps([0xC000 + i for i in range(8)]) == []

    def test_two_qps_on_one_port_are_nothing(self) -> None:
        assert self.qps([0xC000, 0xC000]) == []


class TestCongestion:
    def test_marks_without_cnp(self) -> None:
        t = settled(Talk(), 99)
        marked = t.send(100, 4, ecn=3)
        t.ack(103)
        t.wait(5 * MS)
        t.send(104)
        t.ack(104)
        found = only(t.findings(), "ecn-unanswered")
        assert found.evidence["marked_packets"] == 4
        assert found.frames == tuple(marked.values())

    def test_an_answered_mark_is_nothing(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 4, ecn=3)
        t.ack(103)
        t.packet("CNP", 0, by="b", becn=1)
        t.wait(5 * MS)
        t.send(104)
        t.ack(104)
        assert t.findings() == []

    def test_a_mark_at_the_very_end_is_nothing(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 4, ecn=3)
        t.ack(103)
        assert t.findings() == []

    def test_capable_but_unmarked_is_nothing(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 4, ecn=2)
        t.ack(103)
        t.wait(5 * MS)
        t.send(104, ecn=2)
        t.ack(104)
        assert t.findings() == []

    @staticmethod
    def notified(pause_after_ns: int, each: int = 1) -> list[Finding]:
        """10 ms at full rate, a packet in 50 µs; then 10 ms with a CNP at ``each`` of them, and the sender
        pauses after it."""
        t = settled(Talk(), 99)
        for n in range(400):
            congested = n >= 200
            t.send(100 + n, ecn=3 if congested else 2)
            t.ack(100 + n)
            t.wait(48 * US - US * congested + pause_after_ns * congested)
            if congested and n % each == 0:
                t.packet("CNP", 0, by="b", becn=1)
        return t.findings()

    def test_a_storm_that_changes_nothing(self) -> None:
        found = only(self.notified(0), "cnp-storm")
        assert found.evidence["cnps"] == 200
        assert found.evidence["rate_after_bps"] == pytest.approx(found.evidence["rate_before_bps"], rel=0.1)

    def test_cnps_between_which_a_rate_can_recover_are_nothing(self) -> None:
        """A CNP a millisecond: DCQCN cuts the rate and is back at it before the next one."""
        assert named(self.notified(0, each=20)) == []

    def test_a_sender_that_slows_down_is_nothing(self) -> None:
        assert named(self.notified(400 * US)) == []

    def test_cnps_closer_together_than_nics_send_them(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 4, ecn=3)
        for _ in range(20):
            t.packet("CNP", 0, by="b", becn=1)
        t.ack(103)
        assert only(t.findings(), "cnp-storm").evidence["spacing_median_ns"] == US


def pause(quanta: int, *, priorities: int | None = None) -> bytes:
    """A PFC frame, or 802.3 PAUSE without priorities."""
    head = ethernet(0x8808, src_mac="02:00:00:00:00:aa", dst_mac="01:80:c2:00:00:01")
    if priorities is None:
        return head + struct.pack("!HH", 0x0001, quanta) + bytes(42)
    times = [quanta if priorities >> i & 1 else 0 for i in range(8)]
    return head + struct.pack("!HH8H", 0x0101, priorities, *times) + bytes(26)


class TestPauses:
    def test_pfc_of_one_priority(self) -> None:
        t = settled(Talk(), 99)
        first = t.raw(pause(0xFFFF, priorities=0x08))
        t.wait(100 * US)
        t.raw(pause(0, priorities=0x08))
        t.send(100)
        t.ack(100)
        found = only(t.findings(), "pause-stall")
        assert found.evidence["priorities"] == [3]
        assert found.evidence["source"] == "02:00:00:00:00:aa"
        assert found.evidence["release_frames"] == 1
        assert found.frames == (first,)

    def test_pause_of_all(self) -> None:
        t = settled(Talk(), 99)
        t.raw(pause(0x1000))
        assert only(t.findings(), "pause-stall").evidence["priorities"] is None

    def test_a_release_alone_is_nothing(self) -> None:
        t = settled(Talk(), 99)
        t.raw(pause(0))
        assert t.findings() == []

    def test_other_mac_control_frames_are_nothing(self) -> None:
        t = settled(Talk(), 99)
        t.raw(ethernet(0x8808) + struct.pack("!H", 0x0002) + bytes(44))
        assert t.findings() == []

    def test_a_truncated_pause_frame_is_read_as_far_as_it_goes(self) -> None:
        t = settled(Talk(), 99)
        t.raw(pause(0xFFFF, priorities=0x08)[:17])
        evidence = t.evidence()
        assert [type(p) for p in evidence.pauses] == [Pause]
        assert named(find(evidence)) == []


def times(**quanta: int) -> bytes:
    """A PFC frame with a time for each priority that is named: ``p3=0xFFFF``."""
    each = {int(name[1]): value for name, value in quanta.items()}
    head = ethernet(0x8808, src_mac="02:00:00:00:00:aa", dst_mac="01:80:c2:00:00:01")
    mask = sum(1 << p for p in each)
    return head + struct.pack("!HH8H", 0x0101, mask, *(each.get(p, 0) for p in range(8))) + bytes(26)


class TestPausedClasses:
    """Pause frames every 2 ms for 20 ms; the class with DSCP 26 sends nothing meanwhile, DSCP 0 goes on."""

    @staticmethod
    def talk(frame: bytes, *, until: int = 20, pausing: int = 10, **common: int) -> list[Finding]:
        held, other = Talk(qa=0x11, qb=0x12), Talk(qa=0x21, qb=0x22)
        held.common |= {"dscp": 26} | common
        settled(held, 99)
        start = held.now
        for k in range(pausing):
            held.now = start + 2 * k * MS
            held.raw(frame)
        held.now = start + until * MS
        held.send(100)
        held.ack(100)
        for k in range(until):
            other.now = start + k * MS
            other.send(500 + k)
            other.ack(500 + k)
        return find(evidence_of(sorted(held.frames + other.frames, key=lambda f: f.time_ns)))

    def test_the_class_and_its_silence_are_named(self) -> None:
        found = only(self.talk(times(p3=0xFFFF)), "pause-stall")
        hosts = {c["host"]: c for c in found.evidence["silent_classes"]}
        assert set(hosts) == {A, "10.9.0.2"}  # B had nothing to acknowledge
        assert hosts[A]["dscp"] == 26
        assert hosts[A]["priority_by"] == "DSCP / 8"
        assert hosts[A]["longest_ns"] == pytest.approx(20 * MS, rel=0.01)
        assert f"DSCP 26 of {A} sent nothing for 20.00 ms" in found.title
        assert "Open: whether these DSCPs have the paused priorities" in found.advice
        assert "not all silent hosts need have been stopped by it" in found.advice

    def test_vlan_tags_name_the_priority(self) -> None:
        found = only(self.talk(times(p5=0xFFFF), vlan=7, priority=5), "pause-stall")
        assert found.evidence["silent_classes"][0]["priority_by"] == "VLAN tag"
        assert "Open" not in found.advice

    def test_pauses_of_another_class_explain_nothing(self) -> None:
        found = only(self.talk(times(p4=0xFFFF)), "pause-stall")
        assert found.evidence["silent_classes"] == []
        found = only(self.talk(times(p3=0xFFFF), vlan=7, priority=5), "pause-stall")
        assert found.evidence["silent_classes"] == []

    def test_a_silence_longer_than_its_pauses_is_not_explained(self) -> None:
        found = only(self.talk(times(p3=0xFFFF), pausing=2), "pause-stall")
        assert found.evidence["silent_classes"] == []

    def test_a_frame_that_pauses_one_class_and_releases_another(self) -> None:
        found = only(self.talk(times(p3=0, p4=0xFFFF)), "pause-stall")
        assert found.evidence["priorities"] == [4]
        assert "paused priority 4:" in found.title
        assert found.evidence["silent_classes"] == []

    def test_each_class_has_its_own_time(self) -> None:
        """The pause of DSCP 26's class is far too short for the silence; that of another class is not."""
        found = only(self.talk(times(p3=0x10, p4=0xFFFF)), "pause-stall")
        assert found.evidence["silent_classes"] == []

    def test_several_classes_in_one_frame(self) -> None:
        found = only(self.talk(times(p3=0xFFFF, p4=0x10)), "pause-stall")
        assert found.evidence["priorities"] == [3, 4]
        assert {c["dscp"] for c in found.evidence["silent_classes"]} == {26}


class TestPausesWithoutFrames:
    """Two QPs in one class, a third in another; the capture has no pause frame."""

    @staticmethod
    def talk(*, others_go_on: bool = True, second_waits: bool = True, lost: bool = False) -> list[Finding]:
        one, two, other = Talk(qa=0x11, qb=0x12), Talk(qa=0x21, qb=0x22), Talk(qa=0x31, qb=0x32)
        frames: list[Frame] = []
        one.common["dscp"] = two.common["dscp"] = 26
        start = one.now
        silence = 100 * MS

        def at(t: Talk, ns: int) -> Talk:
            t.now = start + ns
            return t

        first = {id(t): 1000 * n for n, t in enumerate((one, two, other), 1)}
        for t in (one, two, other):
            settled(at(t, 0), first[id(t)] - 1)
        for t in (one, two) if second_waits else (one,):
            psn = first[id(t)]
            at(t, MS).send(psn, 2, only=[psn])  # a message in the middle of which the class stops
            at(t, MS + silence).send(psn, 2)
            if lost:  # the first packet, and the second one shows it
                t.nak(psn)
                t.send(psn, 2)
            t.ack(psn + 1)
        for t in (other, two)[: 2 - second_waits] if others_go_on else ():
            for k in range(110):
                at(t, k * MS).send(first[id(t)] + k)
                t.ack(first[id(t)] + k)
        for t in (one, two, other):
            frames += t.frames
        return find(evidence_of(sorted(frames, key=lambda f: f.time_ns)))

    def test_a_class_that_stops_as_a_whole(self) -> None:
        found = only(self.talk(), "pause-stall")
        assert found.evidence["host"] == A
        assert len(found.evidence["connections"]) == 2
        assert found.evidence["silence_ns"] == pytest.approx(100 * MS, rel=0.02)
        assert found.evidence["repeated_packets"] == 2

    def test_a_host_that_stops_as_a_whole_is_none(self) -> None:
        assert "pause-stall" not in named(self.talk(others_go_on=False))

    def test_one_connection_alone_is_none(self) -> None:
        assert "pause-stall" not in named(self.talk(second_waits=False))

    def test_losses_behind_the_silence_are_none(self) -> None:
        assert "pause-stall" not in named(self.talk(lost=True))


class TestPathMtu:
    def test_full_packets_of_another_size_draw_a_nak(self) -> None:
        """A sends 1024, B 4096: each sends a NAK for the other's packets."""
        t = Talk()
        t.mtu = 4096
        t.send(5, 3, by="b")
        t.ack(7, by="a")
        t.mtu = 1024
        t.send(100, 4)
        t.nak(100, wire.NAK_INVALID_REQUEST)
        found = only(t.findings(), "mtu-mismatch")
        assert found.severity == "error"
        assert found.evidence["full_packets_a_bytes"] == [4096]  # it is the one that asked first
        assert found.evidence["full_packets_b_bytes"] == [1024]

    def test_another_size_than_in_the_req(self) -> None:
        t = Talk(mtu=4096)
        t.connect()
        t.mtu = 1024
        t.send(0, 4)
        t.nak(0, wire.NAK_INVALID_REQUEST)
        found = only(t.findings(), "mtu-mismatch")
        assert found.evidence["req_path_mtu"] == 4096
        assert "but the REQ says 4,096: probably therefore NAK" in found.title
        assert "the NAK may have another cause" in found.advice

    def test_a_size_that_was_accepted_before_is_not_the_cause(self) -> None:
        """Both QPs are set to 1024, whatever the REQ says; the NAK is for a SEND longer than its receive."""
        t = Talk(mtu=4096)
        t.connect()
        t.mtu = 1024
        t.send(0, 4)
        t.ack(3)
        t.send(4, 4)
        t.nak(4, wire.NAK_INVALID_REQUEST)
        only(t.findings(), "invalid-request")

    def test_smaller_than_agreed_and_accepted_is_nothing(self) -> None:
        t = Talk(mtu=4096)
        t.connect()
        t.mtu = 1024
        t.send(0, 4)
        t.ack(3)
        assert named(t.findings()) == []

    def test_an_invalid_request_of_one_packet_is_no_matter_of_size(self) -> None:
        t = Talk()
        t.connect()
        t.send(0, 4)
        t.ack(3)
        t.send(4)
        t.nak(4, wire.NAK_INVALID_REQUEST)
        only(t.findings(), "invalid-request")

    def test_large_packets_vanish_and_small_ones_pass(self) -> None:
        t = Talk(mtu=4096)
        t.connect(retry_count=3)
        t.packet("RC_SEND_ONLY", 0, bytes(64), ackreq=1)
        t.ack(0)
        for _ in range(4):
            t.send(1, 4)
            t.wait(TIMEOUT)
        t.packet("RC_SEND_ONLY", 0, bytes(64), by="b", ackreq=1)
        t.ack(0, by="a")
        found = only(t.findings(), "mtu-mismatch")
        assert found.evidence["vanishing_bytes"] == 4096
        assert found.evidence["passing_bytes"] == 64
        assert found.evidence["link_mtu_guess"] == 1500
        assert found.title == (
            f"Probably an MTU black hole on {A} QP 0x11 → 10.9.0.2 QP 0x12: packets with 4,096 bytes of "
            "payload get no answer, with up to 64 bytes they do"
        )
        assert (
            "An MTU of 1,500 on one link would do this: the large packets have at least 4,140" in found.advice
        )

    @staticmethod
    def reads(*passed: int) -> Talk:
        """READs of some lengths that are answered, then one of 16 KiB that is not; the host is alive."""
        t = Talk(mtu=4096)
        t.connect(retry_count=3)
        psn = 0
        for length in passed:
            t.packet("RC_RDMA_READ_REQUEST", psn, rkey=1, remote_va=2, dma_length=length, ackreq=1)
            t.packet("RC_RDMA_READ_RESPONSE_ONLY", psn, bytes(length), by="b", syndrome=0x1F)
            psn += 1
        for _ in range(4):
            t.read(psn, 4)
            t.wait(TIMEOUT)
        t.packet("RC_SEND_ONLY", 0, bytes(64), by="b", ackreq=1)
        t.ack(0, by="a")
        return t

    def test_read_responses_vanish_and_small_ones_come(self) -> None:
        found = only(self.reads(64, 512).findings(), "mtu-mismatch")
        assert found.title.startswith(
            f"Probably an MTU black hole on 10.9.0.2 QP 0x12 → {A} QP 0x11: READ responses with 4,096 bytes"
        )
        assert found.evidence["passing_bytes"] == 512

    def test_a_read_response_as_large_had_come_before(self) -> None:
        only(self.reads(4096).findings(), "retry-exceeded")

    def test_an_icmp_error_is_named_with_the_black_hole(self) -> None:
        t = Talk(mtu=4096)
        t.connect(retry_count=3)
        t.packet("RC_SEND_ONLY", 0, bytes(64), ackreq=1)
        t.ack(0)
        for _ in range(4):
            sent = t.send(1, 4)
            t.raw(icmp(t.frames[sent[1] - 1].data, 3, 4, source="10.9.0.254", mtu=1500))
            t.wait(TIMEOUT)
        t.packet("RC_SEND_ONLY", 0, bytes(64), by="b", ackreq=1)
        t.ack(0, by="a")
        findings = t.findings()
        assert named(findings) == ["icmp-too-big", "mtu-mismatch"]
        assert findings[1].advice.startswith("10.9.0.254 sent ICMP errors")

    def test_packets_that_had_passed_before_are_not_too_large(self) -> None:
        t = Talk(mtu=4096)
        t.connect(retry_count=3)
        t.send(0, 4)
        t.ack(3)
        for _ in range(4):
            t.send(4, 4)
            t.wait(TIMEOUT)
        t.packet("RC_SEND_ONLY", 0, bytes(64), by="b", ackreq=1)
        t.ack(0, by="a")
        only(t.findings(), "retry-exceeded")


class TestDeadQp:
    def test_another_starting_psn_than_agreed(self) -> None:
        """The responder expects PSN 0 and sends a NAK for 500."""
        t = Talk()
        t.connect(retry_count=3)
        for _ in range(4):
            t.send(500)
            t.nak(0)
            t.wait(TIMEOUT)
        found = only(t.findings(), "dead-qp")
        assert found.evidence["first_psn"] == 500
        assert found.evidence["expected_psn"] == 0
        assert found.evidence["off_by"] == 500

    def test_a_starting_psn_behind_the_agreed_one_is_taken_for_a_duplicate(self) -> None:
        t = Talk()
        t.request()
        t.reply(starting_psn=500)
        t.cm("RTU", local_comm_id=1, remote_comm_id=2)
        for _ in range(4):
            t.send(490)
            t.wait(TIMEOUT)
        found = only(t.findings(), "dead-qp")
        assert found.evidence["off_by"] == -10

    def test_the_first_packets_that_only_the_capture_missed(self) -> None:
        t = Talk()
        t.connect()
        t.send(0, 4, lost={0, 1})
        t.ack(3)
        assert named(t.findings()) == []

    def test_a_first_packet_that_was_lost_and_came_later(self) -> None:
        t = Talk()
        t.connect()
        t.send(1)
        t.nak(0)
        t.send(0)
        t.send(1)
        t.rnr(0)
        assert "dead-qp" not in named(t.findings())

    def test_repeats_after_the_disconnect(self) -> None:
        t = Talk()
        t.connect(retry_count=3)
        t.send(0)
        t.ack(0)
        t.cm("DREQ", by="b", local_comm_id=2, remote_comm_id=1, remote_qpn=0x11)
        t.cm("DREP", local_comm_id=1, remote_comm_id=2)
        t.wait(10 * MS)
        for _ in range(4):
            t.send(1)
            t.wait(TIMEOUT)
        found = only(t.findings(), "dead-qp")
        assert found.evidence["reason"] == "closed"
        assert found.evidence["under_way_at_close"] is False

    def test_a_request_under_way_when_the_peer_closed_was_not_sent_after_it(self) -> None:
        """The server is killed: its kernel sends the DREQ, and the client's QP repeats what it had sent."""
        t = Talk()
        t.connect(retry_count=3)
        t.send(0)
        t.ack(0)
        t.send(1)
        t.cm("DREQ", by="b", local_comm_id=2, remote_comm_id=1, remote_qpn=0x11)
        for _ in range(3):
            t.wait(TIMEOUT)
            t.send(1)
        found = only(t.findings(), "dead-qp")
        assert "under way at that time" in found.title
        assert found.evidence["closed_by"] == "10.9.0.2"
        assert "stop posting" not in found.advice

    def test_new_requests_long_after_a_fatal_nak(self) -> None:
        t = settled(Talk(), 99)
        t.write(100)
        t.nak(100, wire.NAK_REMOTE_ACCESS)
        t.wait(10 * MS)
        t.write(101)
        t.write(102)
        assert sorted(named(t.findings())) == ["dead-qp", "remote-access-error"]

    def test_requests_already_on_their_way_are_none(self) -> None:
        t = settled(Talk(), 99)
        t.write(100)
        t.write(101)
        t.nak(100, wire.NAK_REMOTE_ACCESS)
        t.write(102)
        assert named(t.findings()) == ["remote-access-error"]


class TestReadDepth:
    def outstanding(self, n: int, **request: int) -> list[Finding]:
        t = Talk()
        t.connect(**request)
        for i in range(n):
            t.read(2 * i, 2)
        for i in range(n):
            t.responses(2 * i, 2)
        return t.findings()

    def test_more_than_agreed(self) -> None:
        found = only(self.outstanding(6), "read-depth")
        assert found.evidence["outstanding"] == 6
        assert found.evidence["limit"] == 4

    def test_as_many_as_agreed_is_nothing(self) -> None:
        assert self.outstanding(4) == []

    def test_one_after_the_other_is_nothing(self) -> None:
        t = Talk()
        t.connect(initiator_depth=1)
        for i in range(6):
            t.read(2 * i, 2)
            t.responses(2 * i, 2)
        assert t.findings() == []

    def test_without_agreement_nothing_is_said(self) -> None:
        t = Talk()
        for i in range(100):
            t.read(2 * i, 2)
        for i in range(100):
            t.responses(2 * i, 2)
        assert t.findings() == []

    def test_atomics_count_too(self) -> None:
        t = Talk()
        t.connect(initiator_depth=2)
        for i in range(3):
            t.atomic(i)
        for i in range(3):
            t.atomic_answer(i)
        assert only(t.findings(), "read-depth").evidence["outstanding"] == 3


class TestSilence:
    def test_roce_v1_is_named(self) -> None:
        t = Talk()
        t.common["roce_version"] = 1
        for _ in range(4):
            t.send(100, identification=0)
            t.wait(TIMEOUT)
        found = only(t.findings(), "peer-silent")
        assert found.evidence["roce_version"] == 1
        assert found.advice.startswith("These are RoCE v1 packets")

    def test_link_local_addresses_are_named(self) -> None:
        t = Talk(a="fe80::1", b="fe80::2")
        for _ in range(4):
            t.send(100)
            t.wait(TIMEOUT)
        assert only(t.findings(), "peer-silent").evidence["link_local"] is True


def test_journals_say_what_both_ends_were_set_to() -> None:
    """A's and B's programs set different starting PSNs: B never answers."""
    t = Talk()
    for _ in range(4):
        t.send(500)
        t.wait(TIMEOUT)
    findings = t.findings(pairs=agreed(Negotiated(starting_psn=500, retry_count=3)))
    assert named(findings) == ["peer-silent"]
