"""What was agreed compared with what was done: each difference is a finding, or is named in one."""

from __future__ import annotations

from pathlib import Path

import pytest
from story import Story
from talk import MS, TIMEOUT, US, A, B, Talk, agreed, named, only, settled

from rocekit import wire
from rocekit.findings import Finding
from rocekit.track.connections import Negotiated
from rocekit.track.pairs.known_pairs import Pair


def info(findings: list[Finding], rule: str) -> Finding:
    """The one finding, which must be info."""
    assert [(f.rule, f.severity) for f in findings] == [(rule, "info")], [str(f) for f in findings]
    return findings[0]


class TestTrafficClass:
    @staticmethod
    def sent(dscp: int, **request: int) -> list[Finding]:
        t = Talk()
        t.connect(**request)
        t.common["dscp"] = dscp
        t.send(0)
        t.ack(0)
        return t.findings()

    def test_another_dscp_than_the_request_said(self) -> None:
        found = info(self.sent(26, primary_traffic_class=0), "dscp-mismatch")
        assert found.evidence["agreed_dscp_a"] == found.evidence["agreed_dscp_b"] == 0
        assert found.evidence["dscp_a"] == [26]
        assert found.frames[:2] == (1, 2)  # the REQ and the REP that say so

    def test_the_one_that_was_agreed_on_is_nothing(self) -> None:
        assert self.sent(26, primary_traffic_class=26 << 2 | 2) == []

    def test_another_vlan_priority_than_the_service_level(self) -> None:
        t = Talk()
        t.connect(primary_sl=3)
        t.common["vlan"], t.common["priority"] = 7, 5
        t.send(0)
        t.ack(0)
        found = info(t.findings(), "dscp-mismatch")
        assert (found.evidence["agreed_service_level_a"], found.evidence["priority_a"]) == (3, [5])

    def test_the_priority_of_the_service_level_is_nothing(self) -> None:
        t = Talk()
        t.connect(primary_sl=5)
        t.common["vlan"], t.common["priority"] = 7, 5
        t.send(0)
        t.ack(0)
        assert t.findings() == []


class TestPathMtu:
    def test_less_than_agreed_is_info(self) -> None:
        t = Talk(mtu=4096)
        t.connect()
        t.mtu = 1024
        t.send(0, 4)
        t.ack(3)
        found = info(t.findings(), "mtu-mismatch")
        assert found.evidence["req_path_mtu"] == 4096
        assert found.evidence["path_mtu_a"] is None
        assert found.evidence["full_packets_a_bytes"] == [1024]
        # A program may set its QP to less than the REQ says, so the REQ does not tell what it was set to.
        assert "the REQ says 4,096" in found.title
        assert "is set to" not in found.title

    def test_as_agreed_is_nothing(self) -> None:
        t = Talk(mtu=1024)
        t.connect()
        t.send(0, 4)
        t.ack(3)
        assert t.findings() == []


class TestTimeout:
    @staticmethod
    def after(wait_ns: int, code: int = 14) -> Finding:
        t = Talk()
        t.connect(primary_local_ack_timeout=code)
        t.send(0)
        t.ack(0)
        t.send(1)
        t.wait(wait_ns)
        t.send(1)
        t.ack(1)
        return only(t.findings(), "tail-loss")

    def test_four_times_as_long_is_allowed(self) -> None:
        found = self.after(260 * MS)
        assert found.evidence["configured_timeout_us"] == pytest.approx(67_108.864)
        assert found.evidence["waits_above_four_timeouts"] == 0

    def test_longer_is_reported(self) -> None:
        """Devices round small timeouts up to their own minimum."""
        found = self.after(260 * MS, code=8)
        assert found.evidence["waits_above_four_timeouts"] == 1
        assert "longer than four times" in found.advice


class TestRetries:
    @staticmethod
    def given_up(transmissions: int, retry_count: int) -> Finding:
        t = Talk()
        t.connect(retry_count=retry_count)
        t.send(0)
        t.ack(0)
        for _ in range(transmissions):
            t.send(1)
            t.wait(TIMEOUT)
        t.wait(10 * TIMEOUT)
        t.send(5, by="b")
        t.ack(5, by="a")
        return only(t.findings(), "retry-exceeded")

    def test_as_many_as_agreed(self) -> None:
        found = self.given_up(4, 3)
        assert (found.evidence["retries"], found.evidence["retry_count"]) == (3, 3)
        assert found.evidence["retries_differ"] is False
        assert "agreed" not in found.title

    def test_fewer_than_agreed(self) -> None:
        found = self.given_up(4, 7)
        assert found.evidence["retries_differ"] is True
        assert "sent 4 times (agreed: 7 retries)" in found.title

    def test_a_peer_whose_own_requests_failed_answers_no_more(self) -> None:
        t = Talk()
        t.connect(retry_count=2, rnr_retry_count=0)
        t.send(0)
        t.ack(0)
        t.send(0, by="b")
        t.rnr(0, 12, by="a")
        t.wait(30 * MS)
        for _ in range(3):
            t.send(1)
            t.wait(TIMEOUT)
        t.wait(10 * TIMEOUT)
        found = next(f for f in t.findings() if f.rule == "retry-exceeded")
        assert found.evidence["peer_failed_by"] == "rnr"
        assert "Look at that finding first" in found.advice


class TestRnr:
    def test_a_wait_shorter_than_the_rnr_timer(self) -> None:
        t = settled(Talk(), 99)
        t.send(100)
        t.rnr(100, 12)
        t.wait(100 * US)
        t.send(100)
        t.ack(100)
        found = only(t.findings(), "rnr")
        assert found.evidence["waited_too_short"] == 1
        assert "did not wait as long" in found.advice

    def test_more_tries_than_the_retry_count(self) -> None:
        t = Talk()
        t.connect(rnr_retry_count=2)
        t.send(0, by="b")
        t.ack(0, by="a")
        for _ in range(5):
            t.send(1, by="b")
            t.rnr(1, 12, by="a")
            t.wait(640 * US)
        t.send(1, by="b")
        t.ack(1, by="a")
        found = only(t.findings(), "rnr")
        assert (found.evidence["rnr_retry_count"], found.evidence["most_rnr_naks"]) == (2, 5)
        assert "but its RNR retry count is 2" in found.advice

    def test_another_timer_than_the_responder_s_qp_was_given(self, tmp_path: Path) -> None:
        story = Story("A created\nB created\nA modified dest_qpn=0x12 sq_psn=5\n")
        story.lines(
            "B modified dest_qpn=0x11 rq_psn=5 min_rnr_timer=20\nA wr 1 SEND 64\n a RC_SEND_ONLY 5 64"
        )
        story.lines("b RNR 5 timer=12\n +700us\n a RC_SEND_ONLY 5 64\n b ACK 5\nA wc 1 SUCCESS")
        found = only(list(story.analyze(tmp_path).findings), "rnr")
        assert (found.evidence["configured_timer_us"], found.evidence["advertised_timer_us"]) == (10240, 640)
        assert "but its QP was set to 10.24 ms" in found.advice


class TestReadDepth:
    def test_the_journals_depths_count_as_well(self) -> None:
        """max_rd_atomic at the requester and max_dest_rd_atomic at its peer."""
        for limits in ((Negotiated(initiator_depth=2), None), (None, Negotiated(responder_resources=2))):
            t = Talk()
            for i in range(3):
                t.read(2 * i, 2)
            for i in range(3):
                t.responses(2 * i, 2)
            assert only(t.findings(pairs=agreed(*limits)), "read-depth").evidence["limit"] == 2

    def test_as_they_stand_in_a_journal(self, tmp_path: Path) -> None:
        story = Story("A created\nA modified dest_qpn=0x12 sq_psn=5 max_rd_atomic=1 path_mtu=1024")
        story.lines("A wr 1 RDMA_READ 64\nA wr 2 RDMA_READ 64\n a RC_RDMA_READ_REQUEST 5 64")
        story.lines("a RC_RDMA_READ_REQUEST 6 64\n b RC_RDMA_READ_RESPONSE_ONLY 5 64")
        story.lines("b RC_RDMA_READ_RESPONSE_ONLY 6 64\nA wc 1 SUCCESS\nA wc 2 SUCCESS")
        found = only(list(story.analyze(tmp_path).findings), "read-depth")
        assert (found.evidence["outstanding"], found.evidence["limit"]) == (2, 1)


class TestHandshake:
    """The TCP handshake of perftest."""

    @staticmethod
    def refused(rkey: int, remote_va: int) -> Finding:
        t = Talk()
        told = Negotiated(starting_psn=0, rkey=0x1A2B, remote_va=0x7F0000001000)
        t.packet("RC_RDMA_WRITE_ONLY", 0, bytes(64), rkey=rkey, remote_va=remote_va, dma_length=64)
        t.nak(0, wire.NAK_REMOTE_ACCESS)
        pairs = [Pair("RC", (A, B), (0x11, 0x12), (Negotiated(starting_psn=0), told), "handshake")]
        return only(t.findings(pairs=pairs), "remote-access-error")

    def test_another_rkey_than_the_peer_offered(self) -> None:
        found = self.refused(0x9999, 0x7F0000001000)
        assert found.evidence["offered_rkey"] == 0x1A2B
        assert "the handshake offered rkey 0x1a2b" in found.title

    def test_an_address_before_the_offered_memory(self) -> None:
        assert "8 bytes in front of what was offered" in self.refused(0x1A2B, 0x7F0000000FF8).title

    def test_an_address_behind_the_start_of_the_offered_memory(self) -> None:
        assert "4,096 bytes into what the handshake offered" in self.refused(0x1A2B, 0x7F0000002000).title

    def test_another_starting_psn_than_announced(self) -> None:
        t = Talk()
        for _ in range(4):
            t.send(500)
            t.nak(0)
            t.wait(TIMEOUT)
        told = (Negotiated(starting_psn=0), Negotiated(starting_psn=0))
        pairs = [Pair("RC", (A, B), (0x11, 0x12), told, "handshake")]
        assert only(t.findings(pairs=pairs), "dead-qp").evidence["expected_psn"] == 0


def test_what_keeps_to_the_agreement_is_nothing() -> None:
    t = Talk()
    t.connect()
    t.send(0, 4)
    t.ack(3)
    assert named(t.findings()) == []
