"""How several captures go together: the same traffic, one after the other, one direction each, or neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from story import START_NS, Shot, Story
from two_points import both_ends, seen_at, source

import rocekit
from rocekit.analysis import Analysis
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.report.collector import Collector
from rocekit.report.document import document
from rocekit.report.lane_columns import build_lanes

US, MS, S, HOUR = 1_000, 1_000_000, 1_000_000_000, 3_600_000_000_000
A, B = "10.0.0.1", "10.0.0.2"


def write(path: Path, shots: list[Shot]) -> Path:
    with PcapngWriter(path) as writer:
        for shot in shots:
            writer.write(shot.data, shot.time_ns)
    return path


def traffic(count: int = 20, *, first: int = 0, ids: bool = True, a: str = A, b: str = B) -> Story:
    story = Story(ip_ids=ids, a=a, b=b)
    for p in range(first, first + count):
        story.a("RC_SEND_ONLY", p, 64).wait(us=20).b("ACK", p).wait(us=20)
    return story


def captures(folder: Path, *parts: list[Shot]) -> list[Path]:
    return [write(folder / f"{'abcd'[n]}.pcapng", shots) for n, shots in enumerate(parts)]


def relation(analysis: Analysis) -> Any:
    document = analysis.to_dict()
    json.dumps(document)
    return document["capture"]["relation"]


def report_of(paths: list[Path]) -> str:
    """What the report says of where captures were taken."""
    collector = Collector()
    analysis = rocekit.analyze(*paths, watch=collector)
    meta, _ = document(analysis, build_lanes(collector, analysis))
    return "\n".join(meta["capture"]["places"])


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("turned", [False, True])
def test_rotated_files_are_one_stream_whatever_their_order(tmp_path: Path, turned: bool, ids: bool) -> None:
    """The boundary is in the middle of a message; retransmissions without identification are in both."""
    story = traffic(ids=ids).lines("a RC_SEND_FIRST 20 1024\n +5us\n a RC_SEND_LAST 21 100\n +70ms")
    story.lines("a RC_SEND_FIRST 20 1024\n a RC_SEND_LAST 21 100\n +5us\n b ACK 21")
    shots = sorted(story.shots, key=lambda s: s.time_ns)
    parts = captures(tmp_path, shots[:42], shots[42:])
    two = rocekit.analyze(*(parts[::-1] if turned else parts))
    assert relation(two) == "consecutive"
    alone = story.analyze(tmp_path)
    facts = [[(t.first_psn, t.status, t.retransmitted_packets) for t in a.transfers] for a in (two, alone)]
    assert facts[0] == facts[1]
    assert two.capture.copies == 0
    assert [c.packets for c in two.connections] == [len(shots)]
    assert two.capture.paths is not None
    assert two.capture.paths.every == []
    text = str(two)
    assert "one after the other, taken as one stream in the order of time: a.pcapng, b.pcapng\n" in text
    assert "clock of" not in text


def test_three_rotated_files(tmp_path: Path) -> None:
    shots = sorted(traffic(30).shots, key=lambda s: s.time_ns)
    parts = captures(tmp_path, shots[40:], shots[:20], shots[20:40])
    three = rocekit.analyze(*parts)
    assert relation(three) == "consecutive"
    assert "in the order of time: b.pcapng, c.pcapng, a.pcapng\n" in str(three)
    assert [t.status for t in three.transfers] == ["acked"] * 30


def test_cnps_that_all_look_alike_do_not_join_rotated_files(tmp_path: Path) -> None:
    story = Story(ip_ids=False)
    for p in range(40):
        story.a("RC_SEND_ONLY", p, 64).wait(us=20).b("ACK", p).b("CNP", 0).wait(us=50)
    shots = sorted(story.shots, key=lambda s: s.time_ns)
    two = rocekit.analyze(*captures(tmp_path, shots[:60], shots[60:]))
    assert relation(two) == "consecutive"
    assert two.connections[0].cnps == 40


def test_different_traffic_is_not_the_same(tmp_path: Path) -> None:
    other = traffic(a="10.0.0.7", b="10.0.0.8")
    paths = captures(tmp_path, traffic().shots, other.shots)
    two = rocekit.analyze(*paths)
    assert relation(two) == "different"
    assert "not the same traffic: no packet is in both a.pcapng and b.pcapng\n" in str(two)
    assert "clock of" not in str(two)
    assert "not the same traffic: no packet is in both" in report_of(paths)


def test_other_connections_of_the_same_hosts_at_the_same_time_are_not_the_same(tmp_path: Path) -> None:
    story, other = traffic(), traffic(first=7_000)
    two = rocekit.analyze(*captures(tmp_path, story.shots, other.shots))
    assert relation(two) == "different"


def test_captures_of_one_direction_each(tmp_path: Path) -> None:
    shots = traffic().shots
    there, back = ([s for s in shots if source(s.data) == host] for host in (A, B))
    two = rocekit.analyze(*captures(tmp_path, there, back))
    assert relation(two) == "directions"
    assert "no packet is in both a.pcapng and b.pcapng; clocks taken as they are" in str(two)
    assert "not the same traffic" not in str(two)
    assert [t.status for t in two.transfers] == ["acked"] * 20


def test_a_capture_without_roce(tmp_path: Path) -> None:
    two = rocekit.analyze(*captures(tmp_path, traffic().shots, []))
    assert relation(two) == "empty"
    assert "no RoCE packet in b.pcapng\n" in str(two)


@pytest.mark.parametrize("ahead_ns", [-7 * HOUR, 3 * HOUR + 5, 400 * 24 * HOUR])
@pytest.mark.parametrize("ids", [True, False])
def test_clocks_that_differ_by_hours(tmp_path: Path, ahead_ns: int, ids: bool) -> None:
    """One capture seems to end long before the other starts: it is the same traffic all the same."""
    story = traffic(ids=ids)
    two = rocekit.analyze(*captures(tmp_path, *both_ends(story, ahead_ns=ahead_ns)))
    assert relation(two) == "same"
    assert abs(two.capture.alignments[1].offset_ns - ahead_ns) <= 2 * US
    assert two.capture.paths is not None
    assert [(p.packets, p.missing, p.outside) for p in two.capture.paths.every] == [(20, 0, 0)] * 2


@pytest.mark.parametrize("ppm", [-300, -20, 20, 300])
def test_clocks_that_run_unequally_fast(tmp_path: Path, ppm: int) -> None:
    """After 100 s, 20 ppm are 2 ms: a hundred times the way. The causes stay before the effects."""
    story = Story()
    for p in range(200):
        story.a("RC_SEND_ONLY", p, 64).wait(us=10).b("ACK", p).wait(ms=500)
    at_a, at_b = both_ends(story, flight_ns=20 * US, ahead_ns=5 * S)
    drifted = [Shot(s.data, s.time_ns + (s.time_ns - START_NS) * ppm // 1_000_000) for s in at_b]
    two = rocekit.analyze(*captures(tmp_path, at_a, drifted))
    alignment = two.capture.alignments[1]
    assert alignment.drift * 1e6 == pytest.approx(ppm, abs=0.5)
    assert two.to_dict()["capture"]["clocks"][1]["drift_ppm"] == pytest.approx(ppm, abs=0.5)
    assert [t.status for t in two.transfers] == ["acked"] * 200
    assert two.capture.sightings is not None
    for way in two.capture.sightings.one_way:
        assert abs(way.took.min_ns - 20 * US) <= 20 * US
        assert way.took.max_ns <= 41 * US
    assert two.capture.paths is not None
    assert [(p.packets, p.missing) for p in two.capture.paths.every] == [(200, 0)] * 2
    assert "gaining" in str(two)


def test_rotated_files_of_one_point_and_a_whole_one_of_another(tmp_path: Path) -> None:
    """Each of the rotated files goes with its part of the other; what it cannot have is not missing there."""
    story = traffic(40)
    at_a, at_b = both_ends(story)
    two = rocekit.analyze(*captures(tmp_path, at_a[:40], at_a[40:], at_b))
    assert relation(two) == "same"
    assert two.capture.copies == len(story.shots)
    assert two.capture.paths is not None
    assert sum(p.missing for p in two.capture.paths.every) == 0


def test_three_points_say_between_which_two(tmp_path: Path) -> None:
    story = traffic(30)
    a, b = (story.ends[e].ip for e in "ab")
    lost = [s for i, s in enumerate(story.shots) if i in (11, 25)]
    at = [seen_at(story.shots, {a: k * 5 * US, b: (2 - k) * 5 * US}) for k in range(3)]
    gone = {s.data for s in lost}
    at[0] = [s for s in at[0] if s.data not in gone]
    three = rocekit.analyze(*captures(tmp_path, at[2], at[0], at[1]))
    paths = three.capture.paths
    assert paths is not None
    found = {(p.src, p.first, p.second): p.missing for p in paths.every}
    assert found == {(A, 1, 2): 0, (A, 2, 0): 0, (B, 0, 2): 0, (B, 2, 1): 2}
