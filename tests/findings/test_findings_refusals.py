"""Fatal NAKs, connections that were never established, corrupted packets, and limits of the capture."""

from __future__ import annotations

import pytest
from talk import MS, START_NS, TIMEOUT, Talk, named, only, settled

from rocekit import wire

SECOND = 1_000_000_000


class TestFatalNaks:
    @pytest.mark.parametrize(
        ("code", "rule"),
        [
            (wire.NAK_REMOTE_ACCESS, "remote-access-error"),
            (wire.NAK_REMOTE_OPERATIONAL, "remote-operational-error"),
            (wire.NAK_INVALID_REQUEST, "invalid-request"),
        ],
    )
    def test_a_fatal_nak_names_its_rule(self, code: int, rule: str) -> None:
        t = settled(Talk(), 99)
        seen = t.write(100, 4)
        nak = t.nak(100, code)
        found = only(t.findings(), rule)
        assert found.severity == "error"
        assert found.evidence["rkey"] == 0x1A2B
        assert found.evidence["remote_va"] == 0x7F0000001000
        assert found.evidence["bytes"] == 4096
        assert found.frames == (seen[100], nak)

    def test_requests_on_their_way_behind_it_are_counted_and_no_finding(self) -> None:
        t = settled(Talk(), 99)
        t.write(100, 2)
        t.write(102, 2)
        t.write(104, 2)
        t.nak(100, wire.NAK_REMOTE_ACCESS)
        found = only(t.findings(), "remote-access-error")
        assert found.evidence["flushed"] == 2

    def test_a_read_that_gets_a_fatal_nak(self) -> None:
        t = settled(Talk(), 99)
        t.read(100, 4)
        t.nak(100, wire.NAK_REMOTE_ACCESS)
        assert only(t.findings(), "remote-access-error").evidence["operation"] == "READ"

    def test_a_sequence_error_is_not_fatal(self) -> None:
        t = settled(Talk(), 99)
        t.write(100, 2, lost={100})
        t.nak(100)
        t.write(100, 2)
        t.ack(101)
        assert named(t.findings()) == ["loss"]


class TestConnectionManager:
    def test_no_listener(self) -> None:
        t = Talk()
        req = t.request()
        rej = t.cm("REJ", by="b", local_comm_id=0, remote_comm_id=1, reason=8)
        found = only(t.findings(), "cm-rejected")
        assert found.evidence["reason"] == 8
        assert found.frames == (req, rej)
        assert "No program listens on port 18515" in found.advice

    def test_the_program_said_no_and_why(self) -> None:
        t = Talk()
        t.request()
        t.cm("REJ", by="b", local_comm_id=0, remote_comm_id=1, reason=28, private_data=b"full")
        found = only(t.findings(), "cm-rejected")
        assert found.evidence["private_data"] == b"full".hex()

    def test_a_client_that_tries_again_and_again_is_told_once(self) -> None:
        """The Linux kernel's NFS client does for minutes."""
        t = Talk()
        frames = []
        for attempt in range(1, 4):
            for _ in range(1 + (attempt == 2)):  # the second REQ is sent twice
                frames.append(t.request(local_comm_id=attempt, local_qpn=0x20 + attempt))
                t.wait(SECOND)
            frames.append(t.cm("REJ", by="b", local_comm_id=0, remote_comm_id=attempt, reason=8))
            t.wait(SECOND)
        t.request(local_comm_id=9, local_qpn=0x30, service_id=0x0106_0000 | 2049)
        t.cm("REJ", by="b", local_comm_id=0, remote_comm_id=9, reason=8)
        often, other = (f for f in t.findings() if f.rule == "cm-rejected")
        assert often.evidence["attempts"] == 3
        assert often.frames == tuple(frames)
        assert "connection to port 18515, 3 times: " in often.title
        assert other.evidence["attempts"] == 1
        assert "connection to port 2049: " in other.title

    def test_attempts_that_ended_differently_are_told_apart(self) -> None:
        t = Talk()
        for attempt, reason, why in ((1, 28, b"full"), (2, 28, b"busy"), (3, 10, b"")):
            t.request(local_comm_id=attempt, local_qpn=0x20 + attempt)
            t.cm("REJ", by="b", local_comm_id=0, remote_comm_id=attempt, reason=reason, private_data=why)
        assert [f.evidence["attempts"] for f in t.findings() if f.rule == "cm-rejected"] == [1, 1, 1]

    def test_a_rejection_whose_request_was_not_captured(self) -> None:
        t = Talk()
        t.cm("REJ", by="b", local_comm_id=0, remote_comm_id=1, reason=10)
        assert only(t.findings(), "cm-rejected").evidence["reason"] == 10

    def test_a_request_repeated_and_never_answered(self) -> None:
        t = Talk()
        frames = []
        for _ in range(4):
            frames.append(t.request())
            t.wait(4 * SECOND)
        found = only(t.findings(), "cm-unanswered")
        assert found.severity == "error"
        assert found.evidence["times_sent"] == 4
        assert found.frames == tuple(frames)

    def test_an_answer_after_a_repeat_cost_time(self) -> None:
        t = Talk()
        t.request()
        t.wait(4 * SECOND)
        t.request()
        t.reply()
        t.cm("RTU", local_comm_id=1, remote_comm_id=2)
        found = only(t.findings(), "cm-unanswered")
        assert found.severity == "warning"
        assert found.evidence["added_ns"] > 4 * SECOND

    def test_a_rep_without_rtu(self) -> None:
        t = Talk()
        t.request()
        for _ in range(3):
            t.reply()
            t.wait(4 * SECOND)
        assert only(t.findings(), "cm-unanswered").evidence["times_sent"] == 3

    def test_data_counts_as_an_rtu(self) -> None:
        t = Talk()
        t.request()
        t.reply()
        t.send(0)
        t.ack(0)
        t.wait(20 * SECOND)
        t.send(1)
        t.ack(1)
        assert t.findings() == []

    def test_a_whole_life_is_nothing(self) -> None:
        t = Talk()
        t.connect()
        t.send(0)
        t.ack(0)
        t.cm("DREQ", local_comm_id=1, remote_comm_id=2, remote_qpn=0x12)
        t.cm("DREP", by="b", local_comm_id=2, remote_comm_id=1)
        assert t.findings() == []

    def test_a_capture_that_ends_right_after_the_request_is_nothing(self) -> None:
        t = Talk()
        t.request()
        assert t.findings() == []


class TestCorruption:
    def test_a_corrupted_packet_its_nak_and_repeat_are_one(self) -> None:
        t = settled(Talk(), 99)
        seen = t.send(100, 8)
        t.corrupted(seen[103])
        nak = t.nak(103)
        t.send(100, 8, only=range(103, 108))
        t.ack(107)
        found = only(t.findings(), "icrc-bad")
        assert found.severity == "error"
        assert found.evidence["psns"] == [103]
        assert found.evidence["repeated_packets"] == 5
        assert seen[103] in found.frames
        assert nak in found.frames

    def test_a_corrupted_last_packet(self) -> None:
        t = settled(Talk(), 99)
        seen = t.send(100, 4)
        t.corrupted(seen[103])
        t.wait(TIMEOUT)
        t.send(100, 4, only=[100])
        t.ack(102)
        t.send(100, 4, only=[101, 102, 103])
        t.ack(103)
        assert only(t.findings(), "icrc-bad").evidence["psns"] == [103]

    def test_a_corrupted_header_still_explains_the_gap(self) -> None:
        """The QPN itself is damaged, so the packet belongs to no connection."""
        t = settled(Talk(), 99)
        seen = t.send(100, 8)
        t.corrupted(seen[103], at=14 + 20 + 8 + 6)
        t.nak(103)
        t.send(100, 8, only=range(103, 108))
        t.ack(107)
        found = only(t.findings(), "icrc-bad")
        assert found.evidence["psns"] == [103]
        assert seen[103] in found.frames

    def test_a_corrupted_read_response(self) -> None:
        t = settled(Talk(), 99)
        t.read(100, 8)
        seen = t.responses(100, 8)
        t.corrupted(seen[103])
        t.read(100, 8, skip=3)
        t.responses(100, 8, skip=3)
        assert only(t.findings(), "icrc-bad").evidence["psns"] == [103]

    def test_corruption_and_a_loss_elsewhere_are_two(self) -> None:
        t = settled(Talk(), 99)
        seen = t.send(100, 8)
        t.corrupted(seen[103])
        t.nak(103)
        t.send(100, 8, only=range(103, 108))
        t.ack(107)
        t.wait(50 * MS)
        t.send(108, 8)
        t.nak(110)
        t.send(108, 8, only=range(110, 116))
        t.ack(115)
        assert sorted(named(t.findings())) == ["icrc-bad", "loss"]

    def test_all_wrong_is_rewriting(self) -> None:
        t = Talk()
        t.common["icrc"] = 0x12345678
        for psn in range(100, 110):
            t.send(psn)
            t.ack(psn)
        found = only(t.findings(), "icrc-bad")
        assert found.evidence["acknowledged_anyway"] is True

    def test_malformed_packets_with_a_right_icrc(self) -> None:
        t = settled(Talk(), 99)
        frame = t.packet("RC_SEND_ONLY", 100, b"abcd", version=3)
        assert only(t.findings(), "malformed").frames == (frame,)


class TestCaptureLimits:
    def test_the_snaplen_is_only_info(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 8)
        t.ack(107)
        findings = t.findings(snaplen=100)
        assert [(f.rule, f.severity) for f in findings] == [("capture-truncated", "info")]
        assert findings[0].evidence["truncated_packets"] == 9

    def test_a_capture_that_begins_inside_a_message(self) -> None:
        t = Talk()
        t.send(100, 8, only=range(104, 108))
        t.ack(107)
        t.send(108)
        t.ack(108)
        findings = t.findings()
        assert [f.rule for f in findings] == ["capture-gap"]
        assert findings[0].evidence["messages_without_first_packet"] == 1

    def test_a_damaged_file_is_reported(self) -> None:
        t = settled(Talk(), 99)
        findings = t.findings(damage=[("x.pcap", "the last record is cut")])
        assert [(f.rule, f.severity) for f in findings] == [("capture-truncated", "info")]


def test_the_json_names_frames_by_file_where_there_are_several() -> None:
    t = settled(Talk(), 99)
    t.send(100, 8, lost={103})
    t.nak(103)
    t.send(100, 8, only=range(103, 108))
    t.ack(107)
    finding = t.findings()[0]
    assert finding.to_dict()["frames"] == [6, 10, 11, 16]
    document = finding.to_dict(several=True)
    assert document["frames"] == ["0:6", "0:10", "0:11", "0:16"]
    assert document["evidence"]["worst"]["frames"] == ["0:6", "0:10", "0:11", "0:16"]
    assert document["evidence"]["cases"][0]["nak_frame"] == "0:10"
    assert set(document) == {
        "rule", "severity", "title", "connection", "transfer", "frames", "evidence", "advice"
    }  # fmt: skip
    assert t.frames[0].time_ns > START_NS
