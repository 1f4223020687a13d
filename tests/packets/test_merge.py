"""Several captures of the same traffic: every packet once, in one order, on clocks that agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from amount import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from story import Shot, Story
from two_points import both_ends

import rocekit
from rocekit.analysis import Analysis

MS = 1_000_000
RING = [f"nccl_ring_node{n}.pcap" for n in range(3)]


def analyze(folder: Path, *captures: list[Shot]) -> Analysis:
    paths = []
    for number, shots in enumerate(captures):
        story = Story()
        story.shots = shots
        paths.append(story.write(folder / f"{number}.pcapng"))
    return rocekit.analyze(*paths)


def traffic(count: int = 20) -> Story:
    story = Story()
    for p in range(count):
        story.a("RC_SEND_FIRST", 2 * p, 1024).a("RC_SEND_LAST", 2 * p + 1, 100).wait(us=20)
        story.b("ACK", 2 * p + 1).wait(us=20)
    return story


def facts(analysis: Analysis) -> list[tuple[object, ...]]:
    return [
        (t.operation, t.first_psn, t.bytes, t.packets, t.status, t.retransmitted_packets, t.duplicates)
        for t in analysis.transfers
    ]


def test_what_two_captures_saw_counts_once(tmp_path: Path) -> None:
    story = traffic()
    two = analyze(tmp_path, *both_ends(story))
    assert two.capture.counts.frames == 2 * len(story.shots)
    assert two.capture.to_dict()["roce_packets"] == len(story.shots)
    assert two.capture.copies == len(story.shots)
    assert facts(two) == facts(story.analyze(tmp_path))
    assert two.connections[0].packets == len(story.shots)


def test_a_packet_lost_between_the_capture_points_is_in_one_of_them(tmp_path: Path) -> None:
    story = Story(
        "a RC_SEND_ONLY 5 64\n b ACK 5\n a RC_SEND_ONLY 6 64\n a RC_SEND_ONLY 7 64\n +5us\n b NAK 6"
    )
    story.lines("+5us\n a RC_SEND_ONLY 6 64\n a RC_SEND_ONLY 7 64\n +5us\n b ACK 7")
    lost = story.shots[2].data
    at_a, at_b = both_ends(story)
    two = analyze(tmp_path, at_a, [s for s in at_b if s.data != lost])
    assert two.capture.copies == len(story.shots) - 1
    assert facts(two) == facts(story.analyze(tmp_path))


@pytest.mark.parametrize("ahead_ms", [-5_000, -3, 3, 40, 5_000])
def test_clocks_are_aligned_by_what_both_captures_saw(tmp_path: Path, ahead_ms: int) -> None:
    story = traffic()
    two = analyze(tmp_path, *both_ends(story, ahead_ns=ahead_ms * MS))
    alignment = two.capture.alignments[1]
    assert alignment.bound_ns is not None
    assert abs(alignment.offset_ns - ahead_ms * MS) <= alignment.bound_ns + 1
    assert alignment.bound_ns <= 2_001  # the flight time: no capture of both ends can tell more
    assert abs(alignment.offset_ns - ahead_ms * MS) <= 1  # the middle, as both flights last as long
    assert facts(two) == facts(story.analyze(tmp_path))
    assert [t.status for t in two.transfers] == ["acked"] * 20
    assert all(t.acked_ns is not None and t.acked_ns > t.first_ns for t in two.transfers)


def test_captures_whose_clocks_agree_within_the_flight_time_stay_as_they_are(tmp_path: Path) -> None:
    two = analyze(tmp_path, *both_ends(traffic()))
    assert [a.offset_ns for a in two.capture.alignments] == [0, 0]


def test_the_order_of_the_files_changes_no_transfer(tmp_path: Path) -> None:
    at_a, at_b = both_ends(traffic(), ahead_ns=7 * MS)
    assert facts(analyze(tmp_path, at_a, at_b)) == facts(analyze(tmp_path, at_b, at_a))


def test_frames_name_their_file(tmp_path: Path) -> None:
    story = traffic(1)
    at_a, _ = both_ends(story)
    (transfer,) = analyze(tmp_path, [at_a[0]], at_a[1:]).to_dict()["transfers"]
    assert transfer["frames"] == ["0:1", "1:2"]


def test_captures_with_nothing_in_common_are_put_side_by_side(tmp_path: Path) -> None:
    others = Story(a="10.0.0.7", b="10.0.0.8").lines("a RC_SEND_ONLY 5 64\n b ACK 5")
    two = analyze(tmp_path, traffic(2).shots, others.shots)
    assert two.capture.copies == 0
    assert len(two.connections) == 2
    assert two.capture.alignments[1].bound_ns is None


def test_a_retransmission_is_no_copy(tmp_path: Path) -> None:
    """The same PSN twice in each file: the k-th there is the k-th here."""
    story = Story(
        "a RC_SEND_ONLY 4 8\n b ACK 4\n a RC_SEND_ONLY 5 64\n +70ms\n a RC_SEND_ONLY 5 64\n b ACK 5",
        ip_ids=False,
    )
    two = analyze(tmp_path, *both_ends(story))
    assert two.capture.copies == len(story.shots)
    assert [t.retransmitted_packets for t in two.transfers] == [0, 1]


def test_a_retransmission_is_not_taken_for_what_it_repeats(tmp_path: Path) -> None:
    """The IP identification tells which of the two came through; else the clocks would seem 70 ms apart."""
    sent = Story("a RC_SEND_ONLY 5 64\n +70ms\n a RC_SEND_ONLY 5 64").shots
    arrived = [Shot(sent[1].data, sent[1].time_ns + 2_000)]
    two = analyze(tmp_path, sent, arrived)
    assert two.capture.copies == 1
    assert abs(two.capture.alignments[1].offset_ns) <= 2_000


def test_connection_management_is_read_from_several_captures_too(tmp_path: Path) -> None:
    story = Story().connect(5, 900).lines("a RC_SEND_ONLY 5 64\n b ACK 5")
    two = analyze(tmp_path, *both_ends(story))
    assert [r.message for r in two.cm] == ["REQ", "REP", "RTU"]
    assert two.connections[0].paired_by == "cm"


@settings(max_examples=examples(25))
@given(st.lists(st.sampled_from(["a", "b", "both"]), min_size=60, max_size=60), st.integers(-50, 50))
def test_wherever_each_packet_was_captured_the_transfers_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, where: list[str], ahead_ms: int
) -> None:
    """Each capture point may miss packets that the other has."""
    folder = tmp_path_factory.mktemp("several")
    story = traffic()
    at = {s.data: w for s, w in zip(story.shots, where, strict=True)}
    at[story.shots[0].data] = at[story.shots[2].data] = "both"  # something in common, of both hosts
    at_a, at_b = both_ends(story, ahead_ns=ahead_ms * MS)
    two = analyze(
        folder,
        [s for s in at_a if at[s.data] in ("a", "both")],
        [s for s in at_b if at[s.data] in ("b", "both")],
    )
    assert facts(two) == facts(story.analyze(folder))


def test_one_allreduce_seen_at_three_hosts_has_every_frame_once(others: Path) -> None:
    three = rocekit.analyze(*(others / name for name in RING))
    single = [rocekit.analyze(others / name) for name in RING]
    assert three.capture.counts.frames == 3 * 184
    assert three.capture.to_dict()["roce_packets"] == 3 * 184 // 2
    assert three.capture.copies == 3 * 184 // 2
    assert sum(c.packets for c in three.connections) == 3 * 184 // 2
    assert all(t.status == "acked" for t in three.transfers)
    assert sum(len(a.transfers) for a in single) == 2 * len(three.transfers)
    assert [f.rule for f in three.findings if f.severity != "info"] == []
    assert {c.paired_by for c in three.connections} == {"psn"}
