"""One capture that has packets twice is used as two capture points, or without the copies."""

from __future__ import annotations

import ipaddress
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from capture_bytes import Frame
from click.testing import CliRunner
from doubled_capture import frames_of, in_vlan, other_macs, routed, same, ttl_only, twice, write
from encapsulated import BY_NAME, around, ethernet, ipv4, udp, vxlan
from forked import forked
from places import PCAPS

import rocekit
from rocekit.cli import rocekit as cli
from rocekit.edit.redact import Redactor
from rocekit.edit.slice import Choice, cut
from rocekit.explanation.packets import packet_stories
from rocekit.files.reader import open_capture
from rocekit.files.spool import Spool
from rocekit.points.paths import Path as Path_
from rocekit.points.twice import may_be_doubled
from rocekit.report.annotate import annotate
from rocekit.soft.testbed.replay import random_run
from rocekit.wire.build import build_frame

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


@pytest.mark.parametrize("one_way", [False, True])
def test_a_requester_that_goes_back_again_and_again_is_no_second_interface(
    tmp_path: Path, one_way: bool
) -> None:
    """Over IPv6 nothing tells a packet sent again from a copy; but responses are not there twice."""
    result, capture = random_run(1574, tmp_path, faults=[])
    assert result.packets == 39  # RNR NAKs, and after each of them all outstanding requests again
    if one_way:
        frames = [f for f in frames_of(capture) if f.data[22:38] == ipaddress.ip_address("fd00:9::1").packed]
        capture = write(frames, tmp_path / "one-way.pcap")
    analysis = rocekit.analyze(capture, journals=[])
    assert analysis.capture.doubled is None
    assert "twice" not in str(analysis)
    assert sum(t.retransmitted_packets for t in analysis.transfers) == 23


def test_single_copies_make_no_two_points() -> None:
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


def at_places(path: Path, *changes: Callable[[bytes], bytes]) -> list[Frame]:
    """Each frame of a capture at its own place, and 5 µs later at each further one."""
    found = []
    for frame in frames_of(path):
        data = frame.data
        found.append(frame)
        for n, change in enumerate(changes, 1):
            data = change(data)
            found.append(Frame(data, frame.time_ns + n * 5_000, frame.on_wire + len(data) - len(frame.data)))
    return sorted(found, key=lambda frame: frame.time_ns)


@pytest.mark.parametrize("name", ["ping-write-loss-behind", "rping-clean", "ib_write_bw-4qp-loss"])
def test_of_three_places_the_outermost_are_used(tmp_path: Path, name: str) -> None:
    path = write(at_places(PCAPS / f"{name}.pcap", routed, ttl_only), tmp_path / "x.pcap")
    analysis, source = rocekit.analyze(path), rocekit.analyze(PCAPS / f"{name}.pcap", journals=[])
    assert analysis.capture.doubled is not None
    of_each = source.capture.counts.roce_packets
    line = analysis.capture.doubled.line()
    assert line.startswith(
        "Every packet is in the capture twice: before and behind a router (TTL 64 and 62)."
    )
    assert line.endswith(f" {of_each:,} copies at places between these left out.")
    assert told(analysis) == told(source)
    assert {f.rule for f in analysis.findings} == {f.rule for f in source.findings}
    assert [(p.missing, p.doubled) for p in paths(analysis) if p.src in (A, B)] == [(0, 0)] * 2
    assert analysis.capture.sightings is not None
    assert all(way.took.median_ns == 10_000 for way in analysis.capture.sightings.one_way)


def test_three_copies_that_nothing_tells_apart_are_one_packet(tmp_path: Path) -> None:
    path = write(at_places(LOSS, same, same), tmp_path / "x.pcap")
    analysis, source = rocekit.analyze(path), rocekit.analyze(LOSS, journals=[])
    assert analysis.capture.doubled is not None
    assert analysis.capture.doubled.line() == (
        "Every packet is in the capture 3 times, and nothing tells the copies apart (same TTL, VLAN and MAC "
        "addresses): probably captured at 3 interfaces. All but the first are left out."
    )
    assert told(analysis) == told(source)
    assert not [f for f in analysis.findings if f.rule == "duplicate"]


@pytest.mark.parametrize("how", ["router", "MAC addresses", "VLAN"])
@pytest.mark.parametrize("name", ["ping-write-loss-behind", "ib_write_bw-4qp-loss"])
def test_standard_input_is_used_as_two_points_too(tmp_path: Path, name: str, how: str) -> None:
    path = write(twice(PCAPS / f"{name}.pcap", CHANGES[how][0]), tmp_path / "x.pcap")
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        said = forked("analyze", "-", stdin=cat.stdout.fileno()).printed
    of_file = str(rocekit.analyze(path))
    assert "Used as two capture points: standard input (nearer to" in said
    assert "sent it once" not in said
    assert "each was sent once" not in said
    kinds = ("  warning", "  info", "  error")
    found = [line for line in said.splitlines() if line.startswith(kinds)]
    assert found
    of_file = of_file.replace("x.pcap (", "standard input (")
    assert found == [line for line in of_file.splitlines() if line.startswith(kinds)]


def test_a_stream_that_has_packets_once_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spools: list[Spool] = []

    def spool_for(path: object) -> Spool:
        spools.append(Spool())
        return spools[0]

    monkeypatch.setattr("rocekit.analysis.spool_for", spool_for)
    monkeypatch.setattr("rocekit.feeding._SOON", 10)
    rocekit.analyze(LOSS, journals=[])
    assert not spools[0].whole


COPIES = {"two points": (routed,), "three places": (routed, ttl_only), "nothing apart": (same,)}


@pytest.mark.parametrize("kind", COPIES)
def test_functions_that_read_the_capture_again_work(tmp_path: Path, kind: str) -> None:
    changes = COPIES[kind]
    path = write(at_places(LOSS, *changes), tmp_path / "x.pcap")
    analysis, source = rocekit.analyze(path), rocekit.analyze(LOSS, journals=[])
    frames = len(frames_of(path))
    every = Choice((), (), (), None, None)
    done = cut(analysis, [tmp_path / "every.pcapng"], every, headers_only=True)
    assert done.slices[0].frames == frames
    redacted = cut(analysis, [tmp_path / "redacted.pcapng"], every, redactor=Redactor())
    assert redacted.slices[0].frames == frames
    for name in ("every", "redacted"):
        assert told(rocekit.analyze(tmp_path / f"{name}.pcapng")) == told(source)
    one = cut(analysis, [tmp_path / "one.pcapng"], Choice((), (3,), (), None, None))
    of_source = cut(source, [tmp_path / "source.pcapng"], Choice((), (3,), (), None, None))
    assert one.slices[0].frames == of_source.slices[0].frames * (1 if kind == "nothing apart" else 2)
    annotated = annotate(analysis, tmp_path / "annotated.pcapng")[0]
    assert (annotated.frames, annotated.left_out) == (frames, 0)
    with open_capture(tmp_path / "annotated.pcapng") as reader:
        list(reader)
        comments = [" ".join(words) for words in reader.comments.values()]
    assert len(comments) == frames
    assert not any("sent it once" in words or "sent once" in words for words in comments)
    others = sum("not analyzed" in words for words in comments)
    assert others == (0 if kind == "two points" else frames // (len(changes) + 1))
    points = 1 if kind == "nothing apart" else 2
    assert len(analysis.packets) == points * len(packet_stories(analysis))
    assert len(packet_stories(analysis)) == len(packet_stories(source))
    for transfer, truth in zip(analysis.transfers, source.transfers, strict=True):
        ours, theirs = (a.explain(t.id) for a, t in ((analysis, transfer), (source, truth)))
        assert [step.what for step in ours.steps] == [step.what for step in theirs.steps]
    tables = rocekit.tables(analysis)
    assert len(tables["transfers"]) == len(source.transfers)


@pytest.mark.parametrize("command", ["annotate", "slice", "export", "report"])
def test_commands_take_a_capture_that_has_packets_twice(tmp_path: Path, command: str) -> None:
    path, out = PCAPS / "field" / "mirror-doubles.pcap", tmp_path / "out.pcapng"
    arguments = {
        "annotate": [str(path), str(out)],
        "slice": ["--connection", "0", str(path), str(out)],
        "export": [str(path), "--to", "csv", "-o", str(tmp_path / "tables")],
        "report": [str(path), "-o", str(tmp_path / "out.html")],
    }[command]
    result = CliRunner().invoke(cli, [command, *arguments])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("how", ["router", "MAC addresses"])
@pytest.mark.parametrize("name", ["ping-write-loss-behind", "rping-clean"])
def test_without_a_file_to_split_they_came_from_two_places(tmp_path: Path, name: str, how: str) -> None:
    path = write(twice(PCAPS / f"{name}.pcap", CHANGES[how][0]), tmp_path / "x.pcap")
    analysis = rocekit.analyze(path, split=False)
    assert not any(
        "sent once" in finding.title or "sent it once" in finding.title for finding in analysis.findings
    )
    found = [f for f in analysis.findings if f.rule == "duplicate"]
    assert len(found) == 1
    assert "probably captured at two places" in found[0].title
    assert "rocekit trace -w" in found[0].advice


def test_the_same_packets_in_many_virtual_networks_are_no_copies(tmp_path: Path) -> None:
    """Each network has hosts of its own: something tells these packets apart."""
    frames = [
        Frame(ethernet(ipv4(17, udp(4789, vxlan(number, frame.data)))), frame.time_ns + 1_000 * number)
        for frame in frames_of(PCAPS / "rping-clean.pcap")[:60]
        for number in range(1, 13)
    ]
    analysis = rocekit.analyze(write(frames, tmp_path / "x.pcap"), journals=[])
    assert analysis.capture.doubled is None
    assert {c.encapsulation.layers[-1] for c in analysis.connections} == {
        f"VXLAN VNI {n}" for n in range(1, 13)
    }


def test_one_request_again_and_again_is_no_second_interface(tmp_path: Path) -> None:
    """A requester that waits for a receive sends one packet every 0.65 ms; nothing tells these apart."""
    frame = build_frame("RC_SEND_ONLY", src=A, dst=B, dest_qpn=7, psn=5, payload=bytes(64), ackreq=1)
    frames = [Frame(frame, n * 650_000) for n in range(30)]
    analysis = rocekit.analyze(write(frames, tmp_path / "x.pcap"))
    assert analysis.capture.doubled is None
    assert [t.retransmitted_packets for t in analysis.transfers] == [29]


def test_copies_at_ever_other_places_are_told_as_such(tmp_path: Path) -> None:
    """Frames of many links between two hosts, each seen at both ends of a link, make no two places."""

    def over_link(number: int) -> Callable[[bytes], bytes]:
        return lambda frame: bytes([2, 0, 0, 0, number, 1, 2, 0, 0, 0, number, 2]) + frame[12:]

    rng, frames = random.Random(3), []
    for frame in frames_of(PCAPS / "rping-clean.pcap"):
        for n, number in enumerate(rng.sample(range(40), 2)):
            frames.append(Frame(over_link(number)(frame.data), frame.time_ns + 1_000 * n))
    analysis = rocekit.analyze(write(frames, tmp_path / "x.pcap"), journals=[])
    assert analysis.capture.doubled is not None
    assert analysis.capture.doubled.line().startswith(
        "Every packet is in the capture twice, with TTLs, outer headers or MAC addresses that vary: probably"
    )
    assert told(analysis) == told(rocekit.analyze(PCAPS / "rping-clean.pcap", journals=[]))


@pytest.mark.parametrize("copies", [1, 2])
def test_a_direction_of_few_acks_is_doubled_too(tmp_path: Path, copies: int) -> None:
    """Fifty packets and three ACKs, each at two or three interfaces."""
    frames = []
    for n in range(50):
        data = build_frame(
            "RC_SEND_ONLY", src=A, dst=B, dest_qpn=7, psn=n, payload=bytes(64), ackreq=n % 20 == 9
        )
        frames.append(Frame(data, n * 10_000))
        if n % 20 == 9:
            answer = build_frame("RC_ACKNOWLEDGE", src=B, dst=A, dest_qpn=8, psn=n, msn=n + 1, syndrome=0x1F)
            frames.append(Frame(answer, n * 10_000 + 5_000))
    every = [Frame(f.data, f.time_ns + 200 * n) for f in frames for n in range(copies + 1)]
    analysis = rocekit.analyze(write(every, tmp_path / "x.pcap"))
    assert analysis.capture.doubled is not None
    assert sum(c.packets for c in analysis.connections) == len(frames)
    assert not analysis.findings.where(rule="duplicate")


def requests(count: int, *more_ns: int, identification: int = 0) -> list[Frame]:
    """Requests, each again after some times, and none before the last of them: one is on its way."""
    return [
        Frame(
            build_frame(
                "RC_SEND_ONLY", src=A, dst=B, dest_qpn=7, psn=n, payload=bytes(64), ackreq=True,
                identification=identification and identification + n,
            ),
            n * 5_000_000 + more,
        )
        for n in range(count)
        for more in (0, *more_ns)
    ]  # fmt: skip


@pytest.mark.parametrize(("after_ns", "identification"), [(640_000, 0), (3_000, 0), (640_000, 77)])
def test_one_way_copies_are_told_from_repeats_by_time_or_identification(
    tmp_path: Path, after_ns: int, identification: int
) -> None:
    """A requester with one message on its way, refused once each (RNR NAK), sends each of them twice, too."""
    path = write(requests(20, after_ns, identification=identification), tmp_path / "x.pcap")
    is_repeat = after_ns >= 10_000 and not identification
    analysis = rocekit.analyze(path)
    assert (analysis.capture.doubled is None) is is_repeat
    assert sum(t.retransmitted_packets for t in analysis.transfers) == (20 if is_repeat else 0)


def test_requests_and_few_acks_that_come_again_later_are_repeats(tmp_path: Path) -> None:
    """The ACKs were lost behind the capture, and a short timer sent all again."""
    once = []
    for n in range(12):
        asks = n % 4 == 3
        send = build_frame("RC_SEND_ONLY", src=A, dst=B, dest_qpn=7, psn=n, payload=bytes(64), ackreq=asks)
        once.append((send, n * 1_000))
        if asks:
            ack = build_frame("RC_ACKNOWLEDGE", src=B, dst=A, dest_qpn=8, psn=n, msn=n + 1, syndrome=0x1F)
            once.append((ack, n * 1_000 + 500))
    frames = [Frame(data, at + again) for again in (0, 600_000) for data, at in once]
    assert rocekit.analyze(write(frames, tmp_path / "x.pcap")).capture.doubled is None


def test_packets_that_are_not_all_there_as_often_are_up_to_so_many_times(tmp_path: Path) -> None:
    frames = [f for n, f in enumerate(requests(30, 200, 400)) if n not in (5, 29)]
    doubled = rocekit.analyze(write(frames, tmp_path / "x.pcap")).capture.doubled
    assert doubled is not None
    assert doubled.line().startswith("Every packet is in the capture up to 3 times, and nothing tells ")
