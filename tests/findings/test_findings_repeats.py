"""Why a requester sent again: each cause has its rule, with the capture point before or behind the loss."""

from __future__ import annotations

from pathlib import Path

import pytest
from talk import MS, TIMEOUT, US, Talk, named, only, settled

from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.findings import Evidence
from rocekit.findings.rules import find
from rocekit.findings.stories.build import build_stories
from rocekit.flows.observer import Observer
from rocekit.track.tracker import Tracker


class TestLoss:
    def test_captured_behind_the_drop(self) -> None:
        """The PSN is missing, a NAK comes, and the repeat has the PSN for the first time."""
        t = settled(Talk(), 99)
        seen = t.send(100, 8, lost={103})
        nak = t.nak(103)
        again = t.send(100, 8, only=range(103, 108))
        ack = t.ack(107)
        found = only(t.findings(), "loss")
        assert found.evidence["psns"] == [103]
        assert found.evidence["lost_packets"] == 1
        assert found.evidence["repeated_packets"] == 5
        assert found.evidence["repeated_bytes"] == 5 * 1024
        assert found.evidence["lost_before_capture_point"] == 1
        assert found.frames == (seen[104], nak, again[103], ack)
        assert found.transfer is not None
        assert found.transfer.first_psn == 100

    def test_captured_before_the_drop(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 8)
        t.nak(103)
        t.send(100, 8, only=range(103, 108))
        t.ack(107)
        found = only(t.findings(), "loss")
        assert found.evidence["psns"] == [103]
        assert found.evidence["lost_behind_capture_point"] == 1

    def test_across_the_wrap_of_the_psn(self) -> None:
        t = settled(Talk(), (1 << 24) - 4)
        t.send((1 << 24) - 3, 8, lost={1 << 24})
        t.nak(0)
        t.send((1 << 24) - 3, 8, only=range(1 << 24, (1 << 24) + 5))
        t.ack(4)
        assert only(t.findings(), "loss").evidence["psns"] == [0]

    def test_the_first_packets_are_sent_again_and_not_late(self) -> None:
        """The second packet of a connection shows that its sender counts: 100 was numbered behind 101."""
        t = Talk()
        t.ident += 1  # 100 was lost before the capture point, and so is the NAK
        t.send(100, 4, only=[101])
        t.wait(3 * MS)
        t.send(100, 4, only=[100])
        t.ident += 1  # 101 was lost, too
        t.send(100, 4, only=[102, 103])
        t.ack(100)
        t.send(100, 4, only=[101, 102, 103])
        t.ack(103)
        assert "reordering" not in [f.rule for f in t.findings()]

    def test_the_repeat_is_lost_too(self) -> None:
        """Lumina's drop of the retransmission: one story, three transmissions."""
        t = settled(Talk(), 99)
        t.send(100, 4)
        t.nak(101)
        t.send(100, 4, only=range(101, 104))
        t.wait(TIMEOUT)
        t.send(100, 4, only=range(101, 104))
        t.ack(103)
        found = only(t.findings(), "loss")
        assert found.evidence["count"] == 1
        assert found.evidence["most_transmissions"] == 3
        assert found.evidence["added_ns"] >= TIMEOUT

    def test_the_nak_is_lost_and_the_timeout_brings_it_back(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 4, lost={101})
        t.wait(TIMEOUT)
        t.send(100, 4)
        t.ack(103)
        found = only(t.findings(), "loss")
        assert found.evidence["psns"] == [101]
        assert found.evidence["nak_seen"] == 0

    def test_a_storm_is_one_finding(self) -> None:
        t = settled(Talk(), 99)
        for first in range(100, 180, 8):
            t.send(first, 8, lost={first + 2})
            t.nak(first + 2)
            t.send(first, 8, only=range(first + 2, first + 8))
            t.ack(first + 7)
        found = only(t.findings(), "loss")
        assert found.evidence["count"] == 10
        assert found.evidence["psns"] == list(range(102, 182, 8))
        assert found.evidence["repeated_packets"] == 60

    def test_over_ipv6(self) -> None:
        t = settled(Talk(a="fd00:9::1", b="fd00:9::2"), 99)
        t.send(100, 8, lost={103})
        t.nak(103)
        t.send(100, 8, only=range(103, 108))
        t.ack(107)
        assert only(t.findings(), "loss").evidence["psns"] == [103]

    def test_each_direction_has_its_own_finding(self) -> None:
        t = settled(Talk(), 99)
        t.send(5, by="b")
        t.ack(5, by="a")
        for first, by, other in ((100, "a", "b"), (6, "b", "a")):
            t.send(first, 8, lost={first + 3}, by=by)
            t.nak(first + 3, by=other)
            t.send(first, 8, only=range(first + 3, first + 8), by=by)
            t.ack(first + 7, by=other)
        found = [f for f in t.findings() if f.rule == "loss"]
        assert sorted(f.evidence["psns"][0] for f in found) == [9, 103]

    def test_what_the_capture_missed_is_no_loss(self) -> None:
        """The responder acknowledged the PSN that is not in the capture."""
        t = settled(Talk(), 99)
        t.send(100, 8, lost={103})
        t.ack(107)
        findings = t.findings()
        assert named(findings) == []
        assert [f.rule for f in findings] == ["capture-gap"]
        assert findings[0].evidence["packets_missed"] == 1

    def test_uc_has_only_the_hole(self) -> None:
        t = Talk(transport="UC")
        t.send(100, 4)
        t.send(104, 4, lost={106})
        for first in range(108, 4000, 8):
            t.send(first, 8)
        found = only(t.findings(), "loss")
        assert found.evidence["psns"] == [106]


class TestTailLoss:
    def test_the_last_packet_is_lost_behind_the_capture_point(self) -> None:
        """The ACK of the duplicate proves that all but the last had arrived."""
        t = settled(Talk(), 99)
        t.send(100, 8)
        t.wait(TIMEOUT)
        t.send(100, 8, only=range(100, 102))
        t.ack(106)
        t.send(100, 8, only=range(102, 108))
        t.ack(107)
        found = only(t.findings(), "tail-loss")
        assert found.evidence["psns"] == [107]
        assert found.evidence["waited_max_ns"] >= TIMEOUT
        assert found.evidence["or_acknowledgement_lost"] == 0

    def test_the_last_packet_is_lost_before_the_capture_point(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 8, lost={107})
        t.wait(TIMEOUT)
        t.send(100, 8, only=range(100, 101))
        t.ack(106)
        t.send(100, 8, only=range(101, 108))
        t.ack(107)
        assert only(t.findings(), "tail-loss").evidence["psns"] == [107]

    def test_a_lone_packet_may_be_lost_either_way(self) -> None:
        t = settled(Talk(), 99)
        t.send(100)
        t.wait(TIMEOUT)
        t.send(100)
        t.ack(100)
        found = only(t.findings(), "tail-loss")
        assert found.evidence["or_acknowledgement_lost"] == 1
        assert "capture at the responder" in found.advice

    def test_a_slow_answer_without_repeat_is_nothing(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 8)
        t.wait(TIMEOUT)
        t.ack(107)
        assert t.findings() == []


class TestAckLoss:
    def test_the_acknowledgement_was_captured(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 4)
        t.ack(103)
        t.wait(TIMEOUT)
        t.send(100, 4)
        t.ack(103)
        found = only(t.findings(), "ack-loss")
        assert found.evidence["psns"] == [103]
        assert found.evidence["acknowledgement_captured"] == 1
        assert found.evidence["repeated_packets"] == 4

    def test_the_first_repeat_is_answered_for_all(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 4)
        t.wait(TIMEOUT)
        t.send(100, 4, only=[100])
        t.ack(103)
        t.send(100, 4, only=[101, 102, 103])
        assert only(t.findings(), "ack-loss").evidence["psns"] == [103]

    @pytest.mark.parametrize(("under_way", "rule"), [(8, "tail-loss"), (40, "tail-loss"), (80, "ack-loss")])
    def test_a_sender_with_a_full_window_waits_for_an_acknowledgement(
        self, under_way: int, rule: str
    ) -> None:
        """All that was sent had arrived, and the second message was not finished. A sender with few packets
        under way would have sent the next one, which was lost; one with many waited for the acknowledgement.
        """
        t = settled(Talk(), 99)
        t.send(100, 2)
        t.send(102, 200, only=range(102, 100 + under_way))
        t.wait(TIMEOUT)
        t.send(100, 2, only=[100])
        t.ack(100 + under_way - 1)
        t.send(100, 2, only=[101])
        t.send(102, 200, only=range(102, 302))
        t.ack(301)
        last = 100 + under_way - 1
        found = only(t.findings(), rule)
        assert found.evidence["psns"] == [last + 1 if rule == "tail-loss" else 101]

    def test_a_later_acknowledgement_covers_for_a_lost_one(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 4)
        t.send(104, 4)
        t.ack(107)
        assert t.findings() == []

    def test_the_rest_of_the_capture_decides_for_a_lone_packet(self) -> None:
        """Packets from A are lost before the capture point; so is probably A's ACK of B's packet."""
        t = settled(Talk(), 99)
        t.send(5, by="b")
        t.ack(5, by="a")
        t.send(100, 8, lost={103})
        t.nak(103)
        t.send(100, 8, only=range(103, 108))
        t.ack(107)
        t.send(6, by="b")
        t.wait(TIMEOUT)
        t.send(6, by="b")
        t.ack(6, by="a")
        assert sorted(named(t.findings())) == ["ack-loss", "loss"]


def test_an_ack_of_what_is_before_a_repeat_is_not_to_it() -> None:
    """It is to a copy of the go-back before. That 142 was lost at first, it does not say."""
    t = settled(Talk(), 139)
    t.send(140, 8)
    t.wait(20 * US)
    t.ack(141)
    t.wait(270 * MS)
    t.send(142, 8, only=range(142, 144))
    t.wait(60 * US)
    t.ack(141)
    t.send(142, 8, only=range(144, 148))
    t.wait(60 * US)
    t.ack(147)
    found = only(t.findings(), "tail-loss")
    assert "or its response" in found.title or "probably" in found.title, found.title


class TestNeedlessRepeats:
    """Repeats that prove nothing: they must not cause a warning."""

    def test_a_sender_that_stalls_in_the_middle_of_a_message(self) -> None:
        """Soft RoCE in an emulator: no ACK was due, and nothing was missing."""
        t = settled(Talk(), 99)
        t.send(100, 2, only=[100])
        t.wait(27 * MS)
        t.send(100, 2)
        t.ack(101)
        findings = t.findings()
        assert [(f.rule, f.severity) for f in findings] == [("needless-repeat", "info")]
        assert findings[0].evidence["in_mid_message"] == 1

    def test_the_same_after_a_whole_timeout_is_a_loss(self) -> None:
        t = Talk()
        t.connect(primary_local_ack_timeout=12)
        t.send(0, 2, only=[0])
        t.wait(17 * MS)
        t.send(0, 2)
        t.ack(1)
        found = only(t.findings(), "tail-loss")
        assert found.evidence["psns"] == [1]

    def test_a_sender_that_stalls_often_stalls_as_long_as_its_timer_by_chance(self) -> None:
        """Of seven such repeats of a run of rxe in a busy emulator, two came as long after as the timeout."""
        t = Talk()
        t.connect(primary_local_ack_timeout=12)
        for n, wait_ms in enumerate((17, 14, 4, 1, 14)):
            t.send(2 * n, 2, only=[2 * n])
            t.wait(wait_ms * MS)
            t.send(2 * n, 2)
            t.ack(2 * n + 1)
        [found] = t.findings()
        assert (found.rule, found.evidence["in_mid_message"]) == ("needless-repeat", 5)

    def test_the_same_where_packets_are_lost_in_that_direction(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 4, lost={101})
        t.nak(101)
        t.send(100, 4, only=range(101, 104))
        t.ack(103)
        t.send(104, 2, only=[104])
        t.wait(27 * MS)
        t.send(104, 2)
        t.ack(105)
        assert sorted(named(t.findings())) == ["loss", "tail-loss"]

    def test_a_repeat_that_crosses_its_acknowledgement(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 4)
        t.wait(TIMEOUT)
        t.ack(103)
        t.send(100, 4)
        t.ack(103)
        [found] = t.findings()
        assert found.rule == "needless-repeat"
        # The ACK may as well have been lost between the capture and the requester, however late it came.
        assert found.evidence["or_not_in_capture"] == 1
        assert "nothing in the capture shows a loss" in found.title
        assert "an ACK that the capture has may then have been lost behind it" in found.advice

    def test_a_repeat_before_the_timer_can_have_run_out(self) -> None:
        t = Talk()
        t.connect(primary_local_ack_timeout=14)
        t.send(0)
        t.ack(0)
        t.wait(1 * MS)
        t.send(0)
        t.ack(0)
        assert [f.rule for f in t.findings()] == ["needless-repeat"]


class TestReordering:
    def test_late_before_the_nak(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 8, only=[100, 101, 103, 102, 104])
        t.nak(102)
        t.send(100, 8, only=range(102, 108))
        t.ack(107)
        found = only(t.findings(), "reordering")
        assert found.evidence["psns"] == [102]
        assert found.evidence["late_max_ns"] == US

    def test_late_behind_the_nak_but_before_the_repeat(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 8, only=[100, 101, 103])
        t.nak(102)
        t.send(100, 8, only=[102, 104, 105])
        t.wait(20 * US)
        t.send(100, 8, only=range(102, 108))
        t.ack(107)
        found = only(t.findings(), "reordering")
        assert found.evidence["psns"] == [102]
        assert found.evidence["repeated_packets"] >= 3

    def test_without_cost_it_is_only_info(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 8, only=[100, 101])
        overtaken = t.ident = t.ident + 1
        t.send(100, 8, only=[103])
        t.send(100, 8, only=[102], identification=overtaken)
        t.send(100, 8, only=[104, 105, 106, 107])
        t.ack(107)
        findings = t.findings()
        assert [(f.rule, f.severity) for f in findings] == [("reordering", "info")]

    def test_uc_drops_the_message(self) -> None:
        t = Talk(transport="UC")
        t.send(90, 4)
        t.send(94, 6)
        t.send(100, 4, only=[100, 102, 101, 103])
        for first in range(104, 4000, 8):
            t.send(first, 8)
        found = only(t.findings(), "reordering")
        assert found.evidence["psns"] == [101]
        assert len(found.evidence["transfers"]) == 1

    def test_uc_in_order_is_nothing(self) -> None:
        t = Talk(transport="UC")
        for first in range(0, 4000, 8):
            t.send(first, 8)
        assert t.findings() == []


class TestImpliedNak:
    def test_a_response_in_the_middle(self) -> None:
        t = settled(Talk(), 99)
        t.read(100, 8)
        t.responses(100, 8, lost={103})
        t.read(100, 8, skip=3)
        t.responses(100, 8, skip=3)
        found = only(t.findings(), "implied-nak")
        assert found.evidence["psns"] == [103]
        assert found.evidence["operations"] == ["READ"]

    def test_captured_before_the_drop(self) -> None:
        t = settled(Talk(), 99)
        t.read(100, 8)
        t.responses(100, 8)
        t.read(100, 8, skip=3)
        t.responses(100, 8, skip=3)
        found = only(t.findings(), "implied-nak")
        assert found.evidence["psns"] == [103]
        assert found.evidence["repeated_responses"] == 5

    def test_an_atomics_answer(self) -> None:
        t = settled(Talk(), 99)
        t.atomic(100)
        t.atomic_answer(100)
        t.wait(TIMEOUT)
        t.atomic(100)
        t.atomic_answer(100)
        assert only(t.findings(), "implied-nak").evidence["psns"] == [100]

    def test_a_response_that_only_the_capture_missed(self) -> None:
        t = settled(Talk(), 99)
        t.read(100, 8)
        t.responses(100, 8, lost={103})
        t.send(108)
        t.ack(108)
        findings = t.findings()
        assert [f.rule for f in findings] == ["capture-gap"]


class TestRnr:
    def test_a_wait_and_one_repeat(self) -> None:
        t = settled(Talk(), 99)
        t.send(100)
        t.rnr(100, 12)
        t.wait(640 * US)
        t.send(100)
        t.ack(100)
        found = only(t.findings(), "rnr")
        assert found.severity == "warning"
        assert found.evidence["psns"] == [100]
        assert found.evidence["advertised_timer_us"] == 640
        assert found.evidence["waited_min_ns"] >= 640 * US
        assert found.evidence["waited_too_short"] == 0

    def test_its_effects_are_no_loss(self) -> None:
        """Packets behind the one with the RNR NAK draw a NAK for its PSN."""
        t = settled(Talk(), 99)
        t.send(100)
        t.send(101)
        t.rnr(100, 12)
        t.nak(100)
        t.wait(640 * US)
        t.send(100)
        t.send(101)
        t.ack(101)
        assert only(t.findings(), "rnr").evidence["rnr_naks"] == 1

    def test_the_count_runs_out(self) -> None:
        t = Talk()
        t.connect(rnr_retry_count=2)
        t.send(0, by="b")
        t.ack(0, by="a")
        for _ in range(3):
            t.send(1, by="b")
            t.rnr(1, 12, by="a")
            t.wait(640 * US)
        found = only(t.findings(), "rnr")
        assert found.severity == "error"
        assert found.evidence["gave_up_psn"] == 1
        assert found.evidence["rnr_naks"] == 3

    def test_never_tried_again(self) -> None:
        """The retry count is unknown: the silence after the last RNR NAK decides."""
        t = settled(Talk(), 99)
        t.send(100)
        t.rnr(100, 12)
        t.wait(100 * MS)
        t.send(5, by="b")
        t.ack(5, by="a")
        assert only(t.findings(), "rnr").severity == "error"


class TestDuplicate:
    def test_the_network_duplicates_a_packet(self) -> None:
        t = settled(Talk(), 99)
        t.send(100, 3)
        t.again(len(t.frames) - 1)
        t.ack(102)
        findings = t.findings()
        assert [(f.rule, f.severity) for f in findings] == [("duplicate", "info")]
        assert findings[0].evidence["psns"] == [101]


class TestSilence:
    def test_the_peer_never_says_anything(self) -> None:
        t = Talk()
        for _ in range(5):
            t.send(100)
            t.wait(TIMEOUT)
        found = only(t.findings(), "peer-silent")
        assert found.evidence["transmissions"] == 5
        assert found.evidence["psns"] == [100]

    def test_the_peer_stops_answering(self) -> None:
        t = Talk()
        t.connect(retry_count=3)
        t.send(0)
        t.ack(0)
        for _ in range(4):
            t.send(1)
            t.wait(TIMEOUT)
        t.packet("UD_SEND_ONLY", 7, bytes(64), src="10.9.0.7", dst="10.9.0.8", src_qpn=9, dest_qpn=8)
        found = only(t.findings(), "retry-exceeded")
        assert found.evidence["transmissions"] == 4
        assert found.evidence["psns"] == [1]
        assert found.evidence["gave_up"] is True
        assert found.evidence["configured_timeout_us"] == pytest.approx(67_108.864)

    @pytest.mark.parametrize(
        ("silent_ms", "gave_up"), [(60, False), (200, False), (400, True), (2_000, True)]
    )
    def test_a_requester_that_lets_several_intervals_pass_gave_up(
        self, silent_ms: int, gave_up: bool
    ) -> None:
        """Two repeats, 100 ms apart, without an answer. Another connection shows how long the capture goes
        on: where the next repeat is not yet long overdue, nobody gave up.
        """
        t = settled(Talk(), 99)
        for _ in range(3):
            t.send(100)
            t.wait(100 * MS)
        t.wait((silent_ms - 100) * MS)
        t.packet("UD_SEND_ONLY", 7, bytes(64), src="10.9.0.7", dst="10.9.0.8", src_qpn=9, dest_qpn=8)
        assert named(t.findings()) == (["retry-exceeded"] if gave_up else ["tail-loss"])

    def test_repeats_answered_at_last_are_a_tail_loss(self) -> None:
        t = settled(Talk(), 99)
        for _ in range(4):
            t.send(100)
            t.wait(TIMEOUT)
        t.ack(100)
        found = only(t.findings(), "tail-loss")
        assert found.evidence["repeated_packets"] == 3

    def test_one_direction_alone_without_repeats_is_nothing(self) -> None:
        t = Talk()
        for psn in range(100, 120):
            t.send(psn)
        assert named(t.findings()) == []


class TestCleanCaptures:
    def test_others_captures(self, others: Path) -> None:
        files = sorted(others.glob("*.pcap"))
        assert files
        for file in files:
            assert named(find(_read(file))) == [], file.name


def _read(file: Path) -> Evidence:
    decoder, tracker, observer = Decoder(), Tracker(), Observer()
    with open_capture(file) as reader:
        for batch in reader:
            packets = decoder.decode(batch)
            observer.feed(packets)
            tracker.feed(packets)
    tracker.finish()
    return Evidence(
        tracker.connections,
        tracker.transfers,
        tracker.cm.exchanges,
        decoder.counts,
        build_stories,
        malformed=tracker.malformed,
        bad_icrc=tracker.bad_icrc,
        icrc_ignored=tracker.icrc_ignored,
        observer=observer,
        cm=tracker.cm.records,
    )


def test_what_is_acknowledged_again_and_again_had_arrived() -> None:
    """The NAK for 104 is lost: each repeat that the responder has draws an ACK of 103 (9.7.5.1.2)."""
    t = settled(Talk(), 99)
    t.write(100, 8)
    t.wait(TIMEOUT)
    t.write(100, 8)
    t.wait(60 * US)
    for _ in range(4):
        t.ack(103)
    t.ack(107)
    assert only(t.findings(), "tail-loss").evidence["psns"] == [104]


def test_one_ack_in_the_middle_leaves_open_what_was_lost() -> None:
    t = settled(Talk(), 99)
    t.write(100, 8)
    t.wait(TIMEOUT)
    t.write(100, 8, only=range(100, 105))
    t.wait(60 * US)
    t.ack(103)
    t.write(100, 8, only=range(105, 108))
    t.wait(60 * US)
    t.ack(107)
    assert "or its response" in only(t.findings(), "tail-loss").title


@pytest.mark.parametrize("acks", [1, 2])
def test_an_ack_that_may_have_come_twice_does_not_say_what_was_lost(acks: int) -> None:
    """With identification 0, a second ACK may be a copy that the network or a mirror made."""
    t = settled(Talk(), 99)
    t.common["identification"] = 0
    t.write(100, 8)
    t.wait(TIMEOUT)
    t.write(100, 8)
    t.wait(60 * US)
    for _ in range(acks):
        t.ack(103)
    t.ack(107)
    found = only(t.findings(), "tail-loss")
    assert "or its response" in found.title
    assert found.evidence["psns"] != [104]
