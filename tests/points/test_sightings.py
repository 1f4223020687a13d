"""Several captures of one wire: where on the way a packet was lost, and how long the way takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from click.testing import CliRunner
from story import Shot, Story
from two_points import seen_at, source

import rocekit
from rocekit import cli
from rocekit.analysis import Analysis
from rocekit.capture import open_capture
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.findings import Finding
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import Post, Program, QpSetup
from rocekit.soft.wires.faults import Fault

US, MS = 1_000, 1_000_000
FLIGHT_NS = 50 * US
A, B = "10.9.0.1", "10.9.0.2"
PROGRAM = Program(
    (QpSetup(path_mtu=1024, a_psn=0xFFFFF0, timeout=10),),
    tuple(Post(opcode="RDMA_WRITE", length=4096, at_ns=n * 400 * US) for n in range(8)),
)
READS = Program(
    (QpSetup(path_mtu=1024, a_psn=0, timeout=10),),
    tuple(Post(opcode="RDMA_READ", length=4096, at_ns=n * 400 * US) for n in range(8)),
)


def shots(path: Path) -> list[Shot]:
    with open_capture(path) as reader:
        return [
            Shot(frame, int(time))
            for batch in reader
            for frame, time in zip(batch.frames(), batch.time_ns, strict=True)
        ]


def write(path: Path, frames: list[Shot]) -> Path:
    with PcapngWriter(path) as writer:
        for shot in sorted(frames, key=lambda s: s.time_ns):
            writer.write(shot.data, shot.time_ns)
    return path


def two_points(
    folder: Path, fault: Fault, program: Program = PROGRAM, *, ahead_ns: int = 0, v6: bool = False
) -> tuple[Path, Path]:
    """One run, which is the same every time, captured at A and at B, whose clock is ahead; the fault is in
    between.
    """
    if v6:
        program = Program(program.connections, program.posts, program.receives, 6)
    paths = folder / "a.pcapng", folder / "b.pcapng"
    for path, tap in zip(paths, ("soft_a", "soft_b"), strict=True):
        run(program, (fault,), 1, capture=path, tap=tap, delay_ns=FLIGHT_NS)
    write(paths[1], [Shot(s.data, s.time_ns + ahead_ns) for s in shots(paths[1])])
    return paths


def further(folder: Path, name: str, near: Path, ns: int, host: str = A) -> Path:
    """What a point shows that lies ``ns`` further from ``host``, with nothing lost on the way there."""
    moved = [Shot(s.data, s.time_ns + (ns if source(s.data) == host else -ns)) for s in shots(near)]
    return write(folder / name, moved)


def only(analysis: Analysis, rule: str) -> Finding:
    above = [f for f in analysis.findings if f.severity != "info"]
    assert [f.rule for f in above] == [rule], [str(f) for f in above]
    json.dumps(above[0].to_dict(several=True))
    return above[0]


def lost(number: int, of: str = "request") -> Fault:
    return Fault("drop", 1, number, 1, of)


class TestTwoPoints:
    @pytest.mark.parametrize("ahead_ms", [0, -3, 70])
    @pytest.mark.parametrize("v6", [False, True])
    def test_a_loss_between_them(self, tmp_path: Path, ahead_ms: int, v6: bool) -> None:
        """Over IPv6 nothing in the repeat tells it from what it repeats: only times do."""
        paths = two_points(tmp_path, lost(6), ahead_ns=ahead_ms * MS, v6=v6)
        found = only(rocekit.analyze(*paths), "loss")
        (place,) = found.evidence["places"]
        assert (place["lost"], place["files"], place["psn"]) == ("between", [0, 1], 0xFFFFF5)
        ((frame,),) = found.to_dict(several=True)["evidence"]["places"][0]["frames"]
        assert frame.startswith("0:")
        assert found.title.endswith("; lost between a.pcapng and b.pcapng")
        assert "between a.pcapng and b.pcapng" in found.advice

    def test_the_files_may_stand_in_any_order(self, tmp_path: Path) -> None:
        a, b = two_points(tmp_path, lost(6))
        found = only(rocekit.analyze(b, a), "loss")
        assert found.evidence["places"][0]["files"] == [1, 0]
        assert found.title.endswith("; lost between a.pcapng and b.pcapng")

    def test_the_last_packet_of_a_message(self, tmp_path: Path) -> None:
        program = Program(PROGRAM.connections, PROGRAM.posts[:3])
        found = only(rocekit.analyze(*two_points(tmp_path, lost(12), program)), "tail-loss")
        assert found.evidence["places"][0]["lost"] == "between"
        assert found.evidence["or_acknowledgement_lost"] == 0

    def test_an_acknowledgement(self, tmp_path: Path) -> None:
        program = Program(PROGRAM.connections, PROGRAM.posts[:3])
        found = only(rocekit.analyze(*two_points(tmp_path, lost(12, "ack"), program)), "ack-loss")
        assert found.evidence["places"][0]["lost"] == "between"
        assert found.title.endswith("; lost between b.pcapng and a.pcapng")

    def test_a_response(self, tmp_path: Path) -> None:
        found = only(rocekit.analyze(*two_points(tmp_path, lost(6, "response"), READS)), "implied-nak")
        assert found.title.endswith("; lost between b.pcapng and a.pcapng")

    def test_a_bit_error(self, tmp_path: Path) -> None:
        fault = Fault("bit-error", 1, 6)
        found = only(rocekit.analyze(*two_points(tmp_path, fault)), "icrc-bad")
        assert found.title.endswith("; corrupted between a.pcapng and b.pcapng")


class TestWhereItIsLost:
    def test_beyond_both(self, tmp_path: Path) -> None:
        a, _ = two_points(tmp_path, lost(6))
        middle = further(tmp_path, "middle.pcapng", a, 20 * US)
        found = only(rocekit.analyze(a, middle), "loss")
        assert found.evidence["places"][0]["lost"] == "beyond"
        assert found.title.endswith("; lost beyond middle.pcapng")

    def test_before_both(self, tmp_path: Path) -> None:
        _, b = two_points(tmp_path, lost(6))
        middle = further(tmp_path, "middle.pcapng", b, 20 * US, host=B)
        found = only(rocekit.analyze(b, middle), "loss")
        assert found.evidence["places"][0]["lost"] == "before"
        assert found.title.endswith(f"; lost between {A} and middle.pcapng")

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
    def test_of_three_points_the_two_around_it(self, tmp_path: Path, order: tuple[int, ...]) -> None:
        a, b = two_points(tmp_path, lost(6))
        points = (a, further(tmp_path, "middle.pcapng", a, 20 * US), b)
        found = only(rocekit.analyze(*(points[i] for i in order)), "loss")
        assert found.title.endswith("; lost between middle.pcapng and b.pcapng")

    def test_a_lone_message_that_the_second_point_did_not_see_was_the_one_that_was_lost(
        self, tmp_path: Path
    ) -> None:
        """From A's capture alone nobody can tell the message from its acknowledgement."""
        story = Story(
            "a RC_SEND_ONLY 4 8\n b ACK 4\n a RC_SEND_ONLY 5 64\n +70ms\n a RC_SEND_ONLY 5 64\n b ACK 5"
        )
        a, b = story.ends["a"].ip, story.ends["b"].ip
        at_a = seen_at(story.shots, {a: 0, b: 5 * US})
        at_b = seen_at([s for i, s in enumerate(story.shots) if i != 2], {a: 5 * US, b: 0})
        alone = only(rocekit.analyze(write(tmp_path / "a.pcapng", at_a)), "tail-loss")
        assert alone.evidence["or_acknowledgement_lost"] == 1
        both = rocekit.analyze(tmp_path / "a.pcapng", write(tmp_path / "b.pcapng", at_b))
        found = only(both, "tail-loss")
        assert found.evidence["or_acknowledgement_lost"] == 0
        assert "or its response" not in found.title

    def test_what_one_of_them_merely_missed_was_not_lost(self, tmp_path: Path) -> None:
        a, b = two_points(tmp_path, Fault("ecn", 1, 6))
        frames = shots(b)
        write(b, frames[:5] + frames[7:])
        assert [f for f in rocekit.analyze(a, b).findings if f.severity != "info"] == []

    def test_a_capture_cut_by_its_snaplen_beside_a_whole_one(self, tmp_path: Path) -> None:
        a, b = two_points(tmp_path, lost(6))
        cut = tmp_path / "cut.pcap"
        cut.write_bytes(pcap([Frame(s.data[:96], s.time_ns, len(s.data)) for s in shots(b)], unit="ns"))
        assert only(rocekit.analyze(a, cut), "loss").title.endswith("; lost between a.pcapng and cut.pcap")

    def test_one_capture_places_nothing(self, tmp_path: Path) -> None:
        a, _ = two_points(tmp_path, lost(6))
        assert "places" not in only(rocekit.analyze(a), "loss").evidence


class TestTheWay:
    @pytest.mark.parametrize("ahead_ms", [0, 70])
    def test_one_way_delays(self, tmp_path: Path, ahead_ms: int) -> None:
        """Serialization at 10 Gb/s and the flight: a packet is stamped as it leaves and as it arrives."""
        paths = two_points(tmp_path, Fault("ecn", 1, 6), ahead_ns=ahead_ms * MS)
        analysis = rocekit.analyze(*paths)
        assert analysis.capture.sightings is not None
        there, back = sorted(analysis.capture.sightings.one_way, key=lambda w: w.src)
        assert (there.src, there.dst, there.first, there.second) == (A, B, 0, 1)
        assert (back.src, back.dst, back.first, back.second) == (B, A, 1, 0)
        assert there.took.count == 32
        for way in (there, back):
            assert way.bound_ns is not None
            assert abs(way.took.median_ns - FLIGHT_NS - US) <= way.bound_ns
        assert there.took.median_ns + back.took.median_ns == pytest.approx(2 * FLIGHT_NS, abs=2 * US)
        document = analysis.to_dict()["capture"]
        assert document["one_way"][0]["files"] in ([0, 1], [1, 0])
        assert document["clocks"][1]["common"] == analysis.capture.copies
        assert f"{A} → {B}: " in str(analysis)
        assert analysis.statistics().one_way == analysis.capture.sightings.one_way
        ran = CliRunner().invoke(cli.rocekit, ["stats", *map(str, paths)])
        assert f"{A} → {B} (file 0 to 1) ± " in ran.output
        ran = CliRunner().invoke(cli.rocekit, ["stats", *map(str, paths), "--format", "json"])
        assert [w["count"] for w in json.loads(ran.output)["one_way"]] == [
            there.took.count,
            back.took.count,
        ]

    def test_a_slow_packet_shows_in_the_tail(self, tmp_path: Path) -> None:
        paths = two_points(tmp_path, Fault("delay", 1, 8, delay_us=300))
        analysis = rocekit.analyze(*paths)
        assert analysis.capture.sightings is not None
        (there,) = [w for w in analysis.capture.sightings.one_way if w.src == A]
        assert there.took.max_ns >= 300 * US
        assert there.took.median_ns < 2 * FLIGHT_NS

    def test_points_at_one_place_have_no_order_and_no_way_between(self, tmp_path: Path) -> None:
        a, _ = two_points(tmp_path, lost(6))
        again = write(tmp_path / "again.pcapng", shots(a))
        analysis = rocekit.analyze(a, again)
        assert analysis.capture.sightings is not None
        assert analysis.capture.sightings.one_way == []
        assert "places" not in only(analysis, "loss").evidence

    def test_where_each_was_taken(self, tmp_path: Path) -> None:
        posts = tuple(
            Post(side=side, opcode="RDMA_WRITE", length=64, at_ns=n * 300 * US + 90 * US * (side == "b"))
            for n in range(8)
            for side in "ab"
        )
        paths = two_points(tmp_path, lost(3), Program(PROGRAM.connections, posts))
        taken = [v.host for vs in rocekit.analyze(*paths).vantages().of_files().values() for v in vs]
        assert taken == [A, B]


def test_the_allreduce_of_three_hosts_has_a_way_for_each_two(others: Path) -> None:
    analysis = rocekit.analyze(*(others / f"nccl_ring_node{n}.pcap" for n in range(3)))
    assert analysis.capture.sightings is not None
    ways = {(w.src, w.dst): w for w in analysis.capture.sightings.one_way}
    hosts = ("172.30.0.25", "172.30.0.11", "172.30.0.12")
    assert set(ways) == {(a, b) for a in hosts for b in hosts if a != b}
    for (src, dst), way in ways.items():
        assert (hosts[way.first], hosts[way.second]) == (src, dst)
