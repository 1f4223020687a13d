"""What `rocekit top` is told: the counters are those of `analyze`, the rates add up, and nothing grows."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from places import PCAPS
from talk import START_NS, Talk

import rocekit
from rocekit.capture import open_capture
from rocekit.craft.generate import Traffic, generate
from rocekit.flows.observer import Observer
from rocekit.live.watch import JUDGED_AT_ONCE, KEPT, Line, Snapshot, Watch
from rocekit.wire.build import build_frame

CAPTURES = sorted(PCAPS.glob("*.pcap*"))


def watched(path: Path, batch_frames: int = 40, elapsed_s: float = 1.0) -> tuple[Watch, list[Snapshot]]:
    watch, snapshots = Watch(), []
    with open_capture(path, batch_frames=batch_frames) as capture:
        for batch in capture:
            watch.feed(batch)
            snapshots.append(watch.snapshot(elapsed_s))
    return watch, snapshots


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_the_counters_are_those_of_analyze(path: Path) -> None:
    """But for what only the end of a capture tells: what lay still open then."""
    _, snapshots = watched(path)
    told = {line.id: line for line in snapshots[-1].lines}
    for connection in rocekit.analyze(path).connections:
        if connection.id not in told:  # known only when the capture has ended
            continue
        line = told[connection.id]
        assert line.naks == connection.naks
        assert line.rnr_naks == connection.rnr_naks
        assert line.repeated == connection.retransmitted_packets
        assert line.cnps == connection.cnps


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_rates_add_up_to_what_was_carried(path: Path) -> None:
    _, snapshots = watched(path, elapsed_s=0.5)
    analysis = rocekit.analyze(path)
    assert sum(s.packets_per_s * 0.5 for s in snapshots) == pytest.approx(len(analysis.packets))
    # The two halves of a UC connection are known to be one from the journal only, or at the end:
    # together they carry what it does.
    halves = {line.id for line in snapshots[-1].lines if line.transport == "UC"}
    packets = sum(line.packets_per_s * 0.5 for s in snapshots for line in s.lines if line.id in halves)
    assert packets == sum(c.packets for c in analysis.connections if c.transport == "UC")
    for number in {line.id for line in snapshots[-1].lines if line.transport != "UC"}:
        carried = [line for s in snapshots for line in s.lines if line.id == number]
        assert sum(line.packets_per_s * 0.5 for line in carried) == analysis.connections[number].packets


def test_payload_is_that_of_the_flows() -> None:
    path = next(path for path in CAPTURES if path.name == "ping-write-loss.pcapng")
    _, snapshots = watched(path)
    observer = Observer()
    observer.feed(rocekit.analyze(path).packets)
    expected = sum(flow.payload for flow in observer.flows.values())
    assert sum(s.bits_per_s for s in snapshots) == 8 * expected


def test_findings_are_those_of_the_connection() -> None:
    path = next(path for path in CAPTURES if path.name == "ping-write-loss-behind.pcap")
    watch, snapshots = watched(path)
    assert snapshots[-1].lines[0].rules == ("loss", "tail-loss")
    assert snapshots[-1].lines[0].severity == "warning"
    assert {finding.rule for finding in watch.findings(0)} == {"loss", "tail-loss"}
    assert any("NAK PSN sequence error" in words for _, words in watch.recent_events(0))


def test_history_is_the_opened_connection_s() -> None:
    path = next(path for path in CAPTURES if path.name == "ping-write-loss-behind.pcap")
    watch = Watch()
    with open_capture(path, batch_frames=40) as capture:
        for number, batch in enumerate(capture):
            watch.feed(batch)
            watch.snapshot(1.0)
            if number == 1:
                watch.open(0)
    assert {line.id for line in watch.history} == {0}
    watch.open(None)
    assert not watch.history


def test_what_is_kept_does_not_grow_with_the_troubles() -> None:
    path = next(path for path in CAPTURES if path.name == "ib_send_bw-rnr.pcap")
    watch, _ = watched(path)
    kept = watch._past[0]
    assert kept.troubled is not None
    assert kept.events is not None
    assert 0 < len(kept.troubled) <= KEPT
    assert 0 < len(kept.events) <= KEPT
    assert watch._tracker.transfers == []
    shortlist = watch._tracker._kept
    assert shortlist is not None
    assert not shortlist._kept


def test_of_many_in_trouble_all_are_judged_in_turn(tmp_path: Path) -> None:
    """Those that were judged go to the end, even where they are in trouble all the time."""
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=40_000, pairs=3 * JUDGED_AT_ONCE, loss=0.02, seed=3))
    watch, judged = Watch(), set()
    with open_capture(path, batch_frames=4_000) as capture:
        for batch in capture:
            watch.feed(batch)
            judged |= {line.id for line in watch.snapshot(1.0).lines if "loss" in line.rules}
    troubled = {f.connection.id for f in rocekit.analyze(path).findings if f.rule == "loss" and f.connection}
    assert len(troubled) > 2 * JUDGED_AT_ONCE
    assert len(judged) > 2 * JUDGED_AT_ONCE


def test_of_more_connections_those_in_use_stay_with_their_counts(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(sorted([*steady().frames, *flood(3_000)], key=lambda f: f.time_ns), unit="ns"))
    watch = Watch(max_connections=200)
    lines: dict[str, Line] = {}
    most = 0
    with open_capture(path, batch_frames=60) as capture:
        for batch in capture:
            watch.feed(batch)
            snapshot = watch.snapshot(1.0)
            most = max(most, len(snapshot.lines))
            assert min((line.bits_per_s for line in snapshot.lines), default=0) >= 0
            lines |= {line.a: line for line in snapshot.lines}
    assert snapshot.evicted > 2_000
    assert most <= 260
    assert lines["10.9.0.1 QP 0x11"].transfers == 60
    assert len(watch._past) <= 260


def steady() -> Talk:
    """One connection in use all the time."""
    talk = Talk()
    for n in range(60):
        talk.send(10 * n, 2)
        talk.packet("RC_ACKNOWLEDGE", 10 * n + 1, by="b", syndrome=0x1F, msn=n + 1)
        talk.wait(50_000)
    return talk


def flood(count: int) -> list[Frame]:
    """Packets from ever other addresses to ever other QPNs."""
    how = {"dst": "10.8.0.1", "payload": bytes(8)}
    return [
        Frame(
            build_frame("RC_SEND_ONLY", src=f"10.7.{n >> 8}.{n & 255}", dest_qpn=0x1000 + n, psn=n, **how),  # type: ignore[arg-type]
            START_NS + n * 1_000,
        )
        for n in range(count)
    ]
