"""What the finding ``duplicate`` claims: that the network made the copies, only where that is so.

A sender numbers its IPv4 packets: a copy that the network makes has its original's identification, and a
packet that is sent again has another one. Identification 0 tells nothing; then a network doubles single
packets, and a sender goes back over a run of them.
"""

from __future__ import annotations

import pytest
from talk import MS, US, Talk, settled

from rocekit.findings import Finding


def duplicates(t: Talk) -> list[Finding]:
    return [f for f in t.findings() if f.rule == "duplicate"]


class TestReadsAskedAgain:
    @staticmethod
    def _asked_again(**again: int) -> Talk:
        """A READ that is asked again after a newer one, though the capture has its responses."""
        t = Talk()
        t.common = dict(again) if again.get("identification") == 0 else {}
        settled(t, 99)
        first = t.read(100, 2)
        t.responses(100, 2)
        t.read(102, 1)
        t.wait(20 * US)
        if again:
            t.read(100, 2)
        else:
            t.again(first)
        t.responses(102, 1)
        return t

    def test_another_identification_is_no_copy(self) -> None:
        assert duplicates(self._asked_again(identification=4000)) == []

    def test_the_same_identification_is_a_copy(self) -> None:
        (found,) = duplicates(self._asked_again())
        assert found.title == "PSN 100 came again between 10.9.0.1 and 10.9.0.2: its sender sent it once"
        assert found.evidence["same_identification"] == 1
        assert "Open: whether copies were made on the way, or where they were captured" in found.advice

    def test_identification_0_leaves_it_at_probably(self) -> None:
        for found in duplicates(self._asked_again(identification=0)):
            assert found.title.endswith(": its sender probably sent it once")
            assert found.evidence["same_identification"] == 0

    def test_responses_sent_again_without_a_request_in_the_capture(self) -> None:
        t = settled(Talk(), 99)
        t.read(100, 3)
        t.responses(100, 3)
        t.wait(MS)
        t.responses(100, 3)  # with new identifications: the responder sent them again
        assert duplicates(t) == []

    def test_responses_that_the_network_doubles(self) -> None:
        t = settled(Talk(), 99)
        t.read(100, 3)
        seen = t.responses(100, 3)
        t.again(seen[102])
        (found,) = duplicates(t)
        assert found.evidence["count"] == found.evidence["same_identification"] == 1

    def test_a_copy_of_a_response_that_was_sent_again(self) -> None:
        t = settled(Talk(), 99)
        t.read(100, 3)
        t.responses(100, 3, lost={102})
        t.wait(70 * MS)
        t.read(100, 3)
        seen = t.responses(100, 3)
        t.again(seen[102])
        (found,) = duplicates(t)
        assert found.evidence["psns"] == [102]
        assert found.evidence["same_identification"] == 1

    @pytest.mark.parametrize("order", ["first, second", "second, first"])
    def test_both_responses_to_a_doubled_request_are_doubled(self, order: str) -> None:
        """The responder answers each of the two requests, before the network makes its copies."""
        t = settled(Talk(), 99)
        t.again(t.read(100, 1))
        first, second = t.responses(100, 1)[100], t.responses(100, 1)[100]
        for copy in (first, second) if order == "first, second" else (second, first):
            t.again(copy)
        (found,) = duplicates(t)
        assert found.evidence["count"] == found.evidence["same_identification"] == 3
        (read,) = (transfer for transfer in t.evidence().transfers if transfer.is_read)
        assert read.retransmitted_packets == 1  # the response to the second request


class TestRunsOfPsns:
    def test_without_identifications_a_run_that_comes_again_was_sent_again(self) -> None:
        t = Talk()
        t.common = {"identification": 0}
        settled(t, 99)
        t.write(100, 8)
        t.write(100, 8, only=[104, 105, 106, 107])  # the NAK is not in the capture
        t.ack(107)
        for found in duplicates(t):
            assert found.title.endswith("in runs of consecutive PSNs: probably sent again")
            assert found.evidence["probably_sent_again"] == 4

    def test_without_identifications_single_packets_are_doubled(self) -> None:
        t = Talk()
        t.common = {"identification": 0}
        settled(t, 99)
        for psn in range(100, 108):
            frames = t.write(100, 8, only=[psn])
            if psn in (102, 103):
                t.again(frames[psn])
        t.ack(107)
        (found,) = duplicates(t)
        assert found.title == (
            "2 packets came again between 10.9.0.1 and 10.9.0.2: each was probably sent once"
        )

    @pytest.mark.parametrize("psn", [0, 100])
    def test_with_the_same_identifications_a_run_was_doubled(self, psn: int) -> None:
        t = settled(Talk(), psn + 99)
        seen = t.write(psn + 100, 8)
        for p in (4, 5, 6):
            t.again(seen[psn + 100 + p])
        t.ack(psn + 107)
        (found,) = duplicates(t)
        assert found.title == "3 packets came again between 10.9.0.1 and 10.9.0.2: each was sent once"


def test_datagrams_with_the_same_psn_and_other_identifications_are_two() -> None:
    t = Talk(transport="UD")
    first = t.packet("UD_SEND_ONLY", 5, bytes(64), src_qpn=0x11, qkey=1)
    t.packet("UD_SEND_ONLY", 5, bytes(64), src_qpn=0x11, qkey=1)
    assert duplicates(t) == []
    t = Talk(transport="UD")
    first = t.packet("UD_SEND_ONLY", 5, bytes(64), src_qpn=0x11, qkey=1)
    t.again(first)
    assert len(duplicates(t)) == 1


class TestOneIdentificationForAllPackets:
    """Senders that give all their packets one identification: it tells of no packet that it was sent once."""

    def test_acks(self) -> None:
        t = Talk()
        t.common = {"identification": 7}
        for psn in range(3):
            t.send(psn)
            t.ack(psn)
        t.ack(2)
        assert not [f for f in t.findings() if f.rule == "duplicate"]

    def test_acks_behind_copies_of_one(self) -> None:
        t = Talk()
        t.common = {"identification": 7}
        for psn in range(3):
            t.send(psn)
            t.ack(psn)
        for _ in range(3):
            t.ack(2)
        assert not [f for f in t.findings() if f.rule == "duplicate"]

    def test_an_ack_among_others_was_sent_once(self) -> None:
        t = Talk()
        for psn in range(3):
            t.send(psn)
            ack = t.ack(psn)
        t.again(ack)
        (found,) = (f for f in t.findings() if f.rule == "duplicate")
        assert found.evidence["same_identification"] == 1

    def test_cm_messages(self) -> None:
        """A DREQ comes again after a quarter of its timeout, and its sender gives all messages one number."""
        t = Talk()
        t.request(ip_id=7)
        t.reply()
        t.cm("RTU", local_comm_id=1, remote_comm_id=2, ip_id=7)
        t.send(0)
        t.ack(0)
        for _ in range(2):
            t.cm("DREQ", local_comm_id=1, remote_comm_id=2, remote_qpn=0x12, ip_id=7)
            t.wait(1_000 * MS)
        records = t.evidence().cm_records
        assert [r.repeated for r in records if r.message == "DREQ"] == [False, True]
