"""One capture that has packets twice is used as two capture points, or without the copies."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from capture_bytes import Frame
from doubled_capture import in_vlan, other_macs, routed, same, ttl_only, twice, write
from encapsulated import BY_NAME, around
from places import PCAPS

import rocekit
from rocekit.points.doubled import may_be_doubled
from rocekit.points.paths import Path as Path_

LOSS = PCAPS / "ping-write-loss-behind.pcap"
A, B = "10.9.0.1", "10.9.0.2"

CHANGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "router": (routed, "before and behind a router (TTL 64 and 63)"),
    "TTL": (ttl_only, "before and behind a router (TTL 64 and 63)"),
    "MAC addresses": (other_macs, "with different MAC addresses"),
    "VLAN": (in_vlan(20), "without a VLAN tag and in VLAN 20"),
    "mirror session": (
        lambda frame: around(frame[14:], BY_NAME["erspan-2"]),
        "with different headers around it (a tunnel or a mirror session)",
    ),
}


def paths(analysis: rocekit.Analysis) -> list[Path_]:
    """What happened between the two places."""
    assert analysis.capture.paths is not None
    return analysis.capture.paths.every


def told(analysis: rocekit.Analysis) -> list[tuple[object, ...]]:
    """What is known of the transfers."""
    names = ("operation", "bytes", "first_psn", "status", "retransmitted_packets", "duplicates", "naks")
    return [tuple(getattr(t, name) for name in names) for t in analysis.transfers]


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize(
    "name", ["ping-write-loss-behind", "ping-write-duplication", "rping-clean", "ib_read_bw-clean"]
)
def test_each_packet_at_two_places_is_one_packet(tmp_path: Path, name: str, how: str) -> None:
    change, words = CHANGES[how]
    path = write(twice(PCAPS / f"{name}.pcap", change), tmp_path / "x.pcap")
    analysis, source = rocekit.analyze(path), rocekit.analyze(PCAPS / f"{name}.pcap", journals=[])
    capture = analysis.capture
    assert capture.doubled is not None
    said = str(analysis).splitlines()
    assert said[1].startswith(
        f"  Every packet is in the capture twice: {words}. Used as two capture points: "
    )
    assert told(analysis) == told(source)
    assert len(analysis.connections) == len(source.connections)
    assert {f.rule for f in analysis.findings} == {f.rule for f in source.findings}
    assert [(p.missing, p.doubled) for p in paths(analysis) if p.src in (A, B)] == [(0, 0)] * 2


def test_the_points_are_named_by_the_hosts_they_are_nearer_to(tmp_path: Path) -> None:
    analysis = rocekit.analyze(write(twice(LOSS, routed), tmp_path / "x.pcap"))
    assert analysis.capture.names == [f"x.pcap (nearer to {A})", f"x.pcap (nearer to {B})"]
    ways = {(p.src, p.dst): (p.first, p.second) for p in paths(analysis)}
    assert ways == {(A, B): (0, 1), (B, A): (1, 0)}
    assert analysis.capture.sightings is not None
    assert all(way.took.median_ns == 5_000 for way in analysis.capture.sightings.one_way)


@pytest.mark.parametrize("share", [0.0, 0.7])
def test_one_direction_may_be_late_or_lost_between(tmp_path: Path, share: float) -> None:
    rng, kept = random.Random(7), []
    for frame in twice(LOSS, routed):
        of_b, is_behind = frame.data[26:30] == bytes([10, 9, 0, 2]), frame.data[22] == 63
        if of_b and is_behind:
            if rng.random() < share:
                continue
            frame = Frame(frame.data, frame.time_ns + 200_000_000)
        kept.append(frame)
    kept.sort(key=lambda frame: frame.time_ns)
    analysis = rocekit.analyze(write(kept, tmp_path / "x.pcap"))
    assert {(p.src, p.dst) for p in paths(analysis)} == {(A, B), (B, A)}
    [way] = [p for p in paths(analysis) if p.src == B]
    assert (way.missing + way.missed_second > 0) == (share > 0)
    assert not way.doubled


def test_packets_lost_between_the_two_places_are_lost_there(tmp_path: Path) -> None:
    rng, lost, kept = random.Random(7), 0, []
    for n, frame in enumerate(twice(LOSS, routed)):
        is_behind = frame.data[22] == 63
        if is_behind and n > 20 and rng.random() < 0.1:
            lost += 1
            continue
        kept.append(frame)
    analysis = rocekit.analyze(write(kept, tmp_path / "x.pcap"))
    assert lost > 10
    assert analysis.capture.doubled is not None
    # What its receiver acknowledged was there: then the mirror missed it.
    assert sum(p.missing + p.missed_second for p in paths(analysis)) == lost
    assert "packets are in the capture twice" in str(analysis).splitlines()[1]


def test_copies_that_nothing_tells_apart_are_left_out(tmp_path: Path) -> None:
    analysis = rocekit.analyze(write(twice(LOSS, same, 3_000), tmp_path / "x.pcap"))
    source = rocekit.analyze(LOSS, journals=[])
    assert told(analysis) == told(source)
    assert [f.rule for f in analysis.findings] == [f.rule for f in source.findings]
    assert "nothing tells the copies apart" in str(analysis).splitlines()[1]
    assert not analysis.capture.several
    assert analysis.packets.frame.tolist() == sorted(set(analysis.packets.frame.tolist()))


def test_single_copies_are_duplicated_by_the_network() -> None:
    analysis = rocekit.analyze(PCAPS / "ping-write-duplication.pcap")
    assert analysis.capture.doubled is None
    assert "duplicate" in {f.rule for f in analysis.findings}


def test_copies_of_a_few_behind_a_router_are_no_second_place(tmp_path: Path) -> None:
    frames = twice(LOSS, routed)
    kept = [frame for n, frame in enumerate(frames) if frame.data[22] != 63 or n % 10 == 0]
    assert rocekit.analyze(write(kept, tmp_path / "x.pcap")).capture.doubled is None


def test_the_same_traffic_much_later_in_another_vlan_is_another_connection(tmp_path: Path) -> None:
    frames = twice(PCAPS / "rping-clean.pcap", in_vlan(20), 1_000_000_000)
    analysis = rocekit.analyze(write(frames, tmp_path / "x.pcap"))
    assert analysis.capture.doubled is None
    assert len(analysis.connections) == 2


def test_a_capture_without_copies_is_read_once() -> None:
    assert not may_be_doubled(rocekit.analyze(PCAPS / "ping-write-loss-behind.pcap", journals=[]).connections)


def test_packets_and_stories_are_those_of_the_two_points(tmp_path: Path) -> None:
    analysis = rocekit.analyze(write(twice(LOSS, routed), tmp_path / "x.pcap"))
    stories = rocekit.packet_stories(analysis)
    assert len(stories.packets) == len(rocekit.analyze(LOSS, journals=[]).packets)
    assert set(analysis.packets.file.tolist()) == {0, 1}


def test_frames_keep_their_numbers(tmp_path: Path) -> None:
    frames = [Frame(frame.data, frame.time_ns) for frame in twice(LOSS, routed)]
    analysis = rocekit.analyze(write(frames, tmp_path / "x.pcap"))
    packets = analysis.packets
    assert sorted(packets.frame.tolist()) == list(range(1, len(frames) + 1))
