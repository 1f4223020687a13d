"""A tracker that lets connections go: those that stay are told of as if it had kept all."""

from __future__ import annotations

import gc
import io
from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from pathlib import Path
from typing import Any

import pytest
from capture_bytes import Frame, pcap
from encapsulated import ethernet, ipv4, udp, vxlan
from places import PCAPS
from talk import START_NS, Talk

from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.live.letting_go import let_go
from rocekit.track.connections import Connection
from rocekit.track.eviction import crowd, end_idle
from rocekit.track.lobby import Lobby
from rocekit.track.requests import Requests
from rocekit.track.tracker import Tracker
from rocekit.track.transfers import ACKED, UNACKNOWLEDGED, Transfer
from rocekit.wire.build import build_frame

CAPTURES = sorted(PCAPS.glob("*.pcap"))


def flood(count: int, since: int = 0, opcode: str = "RC_SEND_ONLY", gap_ns: int = 1_000) -> list[Frame]:
    """Packets of ever other addresses to ever other QPNs."""
    more: dict[str, Any] = {"src_qpn": 7} if opcode.startswith("UD") else {}
    return [
        Frame(
            build_frame(
                opcode,
                src=f"10.7.{n >> 8 & 255}.{n & 255}",
                dst="10.8.0.1",
                dest_qpn=0x1000 + n,
                psn=n,
                **more,
            ),
            START_NS + n * gap_ns,
        )
        for n in range(since, since + count)
    ]


def feed(tracker: Tracker, decoder: Decoder, frames: Sequence[Frame]) -> None:
    with open_capture(io.BytesIO(pcap(frames, unit="ns"))) as capture:
        for part in capture:
            tracker.feed(decoder.decode(part))


def tracked(
    frames: Sequence[Frame] | Path, batch: int, most: int | None, keep: int = 10_000
) -> tuple[Tracker, list[Transfer], list[Connection]]:
    """A tracker that lets connections go after each batch in which there are more than ``most``."""
    ended: list[Transfer] = []
    gone: list[Connection] = []
    decoder, tracker = Decoder(), Tracker(on_end=ended.append, plain=keep)
    source = frames if isinstance(frames, Path) else io.BytesIO(pcap(frames, unit="ns"))
    with open_capture(source, batch_frames=batch) as capture:
        for part in capture:
            tracker.feed(decoder.decode(part))
            if most is not None and crowd(tracker, decoder.numbered) > most:
                left = end_idle(tracker, most)
                let_go(tracker, decoder, left)
                gone += left
    tracker.finish()
    return tracker, ended, gone


def facts(transfers: Iterable[Transfer]) -> list[tuple[Any, ...]]:
    """What a transfer is, but for the numbers of connections."""
    return sorted(
        (
            t.first_frame, t.last_frame, t.operation, t.bytes, t.packets, t.status, t.acked_ns or 0,
            t.retransmitted_packets, t.naks, t.rnr_naks, t.timeouts, str(t.connection.ips),
            str(t.connection.qpns),
        )
        for t in transfers
    )  # fmt: skip


@pytest.mark.parametrize("path", CAPTURES[::4], ids=lambda path: path.name)
def test_transfers_are_the_same_if_all_is_renumbered_after_each_batch_and_nothing_let_go(path: Path) -> None:
    """As often as possible, with room for all: what goes on goes on."""
    _, whole, _ = tracked(path, 20, None)
    ended: list[Transfer] = []
    decoder, tracker = Decoder(), Tracker(on_end=ended.append, plain=10_000)
    with open_capture(path, batch_frames=20) as capture:
        for part in capture:
            tracker.feed(decoder.decode(part))
            if all(
                flow.connection is not None for flow in tracker._flows.values()
            ):  # none waits for its pair
                let_go(tracker, decoder, ())
    tracker.finish()
    assert facts(ended) == facts(whole)


def test_a_connection_in_use_is_kept_whole_through_a_flood() -> None:
    talk = Talk()
    for n in range(40):
        talk.send(10 * n, 2)
        talk.packet("RC_ACKNOWLEDGE", 10 * n + 1, by="b", syndrome=0x1F, msn=n + 1)
        talk.wait(100_000)
    alone = tracked(talk.frames, 50, None)[1]
    frames = sorted([*talk.frames, *flood(4_000)], key=lambda frame: frame.time_ns)
    tracker, ended, gone = tracked(frames, 50, 200)
    mine = [t for t in ended if t.connection.ips == ["10.9.0.1", "10.9.0.2"]]
    assert [(t.first_psn, t.status, t.bytes) for t in mine] == [
        (t.first_psn, t.status, t.bytes) for t in alone
    ]
    assert len({id(t.connection) for t in mine}) == 1
    assert len(gone) > 3_000
    assert len(tracker.connections) <= 250
    assert [c.id for c in tracker.connections] == list(range(len(tracker.connections)))


def test_tunnels_of_a_flood_are_forgotten_and_the_one_in_use_goes_on() -> None:
    talk = Talk()
    for n in range(60):
        talk.send(10 * n, 2)
        talk.packet("RC_ACKNOWLEDGE", 10 * n + 1, by="b", syndrome=0x1F, msn=n + 1)
        talk.wait(100_000)

    def tunnelled(frame: Frame, vni: int, time_ns: int) -> Frame:
        return Frame(ethernet(ipv4(17, udp(4789, vxlan(vni, frame.data)))), time_ns)

    mine = [tunnelled(frame, 7, frame.time_ns) for frame in talk.frames]
    alone = tracked(mine, 30, None)[1]
    others = [tunnelled(frame, 100 + n, frame.time_ns) for n, frame in enumerate(flood(4_000))]
    frames = sorted([*mine, *others], key=lambda frame: frame.time_ns)
    ended: list[Transfer] = []
    decoder, tracker = Decoder(), Tracker(on_end=ended.append, plain=10_000)
    most = 0
    with open_capture(io.BytesIO(pcap(frames, unit="ns")), batch_frames=30) as capture:
        for part in capture:
            tracker.feed(decoder.decode(part))
            most = max(most, len(decoder._wrappings.every), len(decoder._wrappings._scopes))
            if crowd(tracker, decoder.numbered) > 200:
                let_go(tracker, decoder, end_idle(tracker, 100))
    assert most < 400  # a hundred stay, and two hundred make it a crowd
    tenant = [t for t in ended if t.connection.packets > 8]
    assert len({id(t.connection) for t in tenant}) == 1
    assert [(t.first_psn, t.status) for t in tenant] == [(t.first_psn, t.status) for t in alone]


def test_after_flows_are_numbered_anew_another_vlan_takes_no_flow_over() -> None:
    """The same addresses and QPNs without a VLAN and in one, as a mirror of two networks shows them."""
    talk = Talk()
    for n in range(10):
        talk.send(10 * n, 2)
        talk.packet("RC_ACKNOWLEDGE", 10 * n + 1, by="b", syndrome=0x1F, msn=n + 1)
    tagged = Talk()
    tagged.common, tagged.now = {"vlan": 7}, talk.now
    for n in range(10):
        tagged.send(0x80_0000 + 10 * n, 2)
        tagged.packet("RC_ACKNOWLEDGE", 0x80_0000 + 10 * n + 1, by="b", syndrome=0x1F, msn=n + 1)
    decoder, tracker = Decoder(), Tracker()
    for frames in (talk.frames, tagged.frames):
        feed(tracker, decoder, frames)
        let_go(tracker, decoder, ())
        let_go(tracker, decoder, ())
    told = [(c.encapsulation.vlans, c.packets, len(c.jumps)) for c in tracker.connections]
    assert told == [((), 30, 0), ((7,), 30, 0)]


@pytest.mark.parametrize("opcode", ["RC_SEND_ONLY", "UD_SEND_ONLY", "RC_ACKNOWLEDGE", "UC_SEND_ONLY"])
def test_a_flood_leaves_nothing_behind(opcode: str) -> None:
    tracker, _, gone = tracked(flood(3_000, opcode=opcode), 100, 200)
    assert len(gone) >= 2_000
    tables: list[Sized] = [tracker.connections, tracker._sides, tracker._flows, tracker._by_number]
    tables += [tracker._lobbies, tracker._scopes, tracker._turnarounds, tracker._datagrams._ends]
    assert max(map(len, tables)) <= 1_500


def troubled(kind: str, count: int) -> list[Frame]:
    """Packets to ever other QPNs of one host: each alone, sent again, after a gap, or refused."""
    frames = []
    for n in range(count):
        psn = 7 * n
        to: dict[str, Any] = {"src": "10.7.0.1", "dst": "10.8.0.1"}
        back: dict[str, Any] = {"src": "10.8.0.1", "dst": "10.7.0.1"}
        first = build_frame("RC_SEND_ONLY", **to, dest_qpn=0x1000 + n, psn=psn)
        frames.append(first)
        if kind == "again":
            frames.append(first)
        elif kind == "gap":
            frames.append(build_frame("RC_SEND_ONLY", **to, dest_qpn=0x1000 + n, psn=psn + 5))
        elif kind != "alone":
            syndrome = {"acked": 0x1F, "refused": 0x60, "not ready": 0x2A}[kind]
            frames.append(
                build_frame("RC_ACKNOWLEDGE", **back, dest_qpn=0x90000 + n, psn=psn, syndrome=syndrome, msn=1)
            )
    return [Frame(data, START_NS + k * 1_000) for k, data in enumerate(frames)]


@pytest.mark.parametrize("kind", ["alone", "again", "gap", "acked", "refused", "not ready"])
def test_what_was_let_go_is_gone_without_a_search_for_garbage(kind: str) -> None:
    """Searches come so seldom that a flood filled more than 1 GB before one, whatever the limit was."""
    decoder, tracker = Decoder(), Tracker(plain=0)
    frames = io.BytesIO(pcap(troubled(kind, 2_000), unit="ns"))
    gc.collect()
    gc.disable()
    try:
        with open_capture(frames, batch_frames=100) as capture:
            for part in capture:
                tracker.feed(decoder.decode(part))
                if crowd(tracker, decoder.numbered) > 200:
                    let_go(tracker, decoder, end_idle(tracker, 200))
        left = Counter(type(one).__name__ for one in gc.get_objects())
    finally:
        gc.enable()
    assert len(tracker.connections) <= 300
    for name in ("Connection", "Flow", "Progress", "Ledger", "Requests", "Troubles", "Pass", "Event"):
        assert left[name] <= 1_000, name


def test_every_transfer_of_a_flood_is_reported_once() -> None:
    ended = tracked(flood(2_000), 100, 200)[1]
    assert len(ended) == len({t.id for t in ended}) == 2_000


def test_the_longest_idle_go_first() -> None:
    frames = []
    for n in range(30):
        talk = Talk(a=f"10.1.0.{n}", b=f"10.2.0.{n}")
        talk.now = START_NS + n * 1_000_000
        talk.send(5, 4)
        talk.packet("RC_ACKNOWLEDGE", 8, by="b", syndrome=0x1F, msn=1)
        frames += talk.frames
    _, _, gone = tracked(frames, 50, 10)
    assert [c.ips[0] for c in gone][:10] == [f"10.1.0.{n}" for n in range(10)]


def test_what_stays_of_a_flood_is_a_row_until_its_next_packet() -> None:
    """A flow with one request has no state machine after letting go, and goes on as if it had had one."""
    first = flood(600)
    again = [
        Frame(
            build_frame(
                "RC_SEND_ONLY", src=f"10.7.{n >> 8}.{n & 255}", dst="10.8.0.1", dest_qpn=0x1000 + n, psn=n + 1
            ),
            START_NS + (600 + n) * 1_000,
        )
        for n in range(400, 600)
    ]
    decoder, ended = Decoder(), list[Transfer]()
    tracker = Tracker(on_end=ended.append, plain=10_000)
    feed(tracker, decoder, first)
    let_go(tracker, decoder, end_idle(tracker, 200))
    assert len(tracker.connections) == 200
    assert not [side for side in tracker._sides if isinstance(side, Requests)]
    feed(tracker, decoder, again)
    tracker.finish()
    assert [c.packets for c in tracker.connections] == [2] * 200
    plain = tracked(first + again, 10_000, None)[1]
    assert Counter(f[2:11] for f in facts(ended)) == Counter(f[2:11] for f in facts(plain))


def test_the_other_half_of_what_stays_of_a_flood_is_found_later() -> None:
    """A flow alone between its hosts has no lobby after letting go, until a packet comes the other way."""
    first = flood(600)
    acks = [
        Frame(
            build_frame(
                "RC_ACKNOWLEDGE",
                src="10.8.0.1",
                dst=f"10.7.{n >> 8}.{n & 255}",
                dest_qpn=0x9000 + n,
                psn=n,
                syndrome=0x1F,
                msn=1,
            ),
            START_NS + (600 + n) * 1_000,
        )
        for n in range(400, 600)
    ]
    decoder, ended = Decoder(), list[Transfer]()
    tracker = Tracker(on_end=ended.append, plain=10_000)
    feed(tracker, decoder, first)
    let_go(tracker, decoder, end_idle(tracker, 200))
    let_go(tracker, decoder, end_idle(tracker, 200))
    assert not [found for found in tracker._lobbies.values() if isinstance(found, Lobby)]
    feed(tracker, decoder, acks)
    tracker.finish()
    assert [(c.qpns, c.paired_by, c.packets) for c in tracker.connections] == [
        ([0x9000 + n, 0x1000 + n], "psn", 2) for n in range(400, 600)
    ]
    assert Counter(t.status for t in ended) == {UNACKNOWLEDGED: 400, ACKED: 200}


@pytest.mark.parametrize(
    "opcode",
    ["RC_ACKNOWLEDGE", "RC_SEND_ONLY", "RC_SEND_FIRST", "RC_RDMA_READ_RESPONSE_ONLY", "UC_SEND_ONLY"],
)
@pytest.mark.parametrize("between", ["ever other hosts", "two hosts"])
def test_what_stays_goes_on_as_without_letting_go(opcode: str, between: str) -> None:
    """One packet of each direction before letting go, one behind it; connections that stay are the same."""

    def frames(since: int, step: int) -> list[Frame]:
        more: dict[str, Any] = {"msn": step} if "ACK" in opcode or "RESPONSE" in opcode else {}
        return [
            Frame(
                build_frame(
                    opcode,
                    src="10.7.0.1" if between == "two hosts" else f"10.7.{n >> 8}.{n & 255}",
                    dst="10.8.0.1",
                    dest_qpn=0x1000 + n,
                    psn=10 * n + step,
                    payload=b"x" * 1024 if opcode.endswith("FIRST") else b"",
                    **more,
                ),
                START_NS + (step * 600 + n) * 1_000,
            )
            for n in range(since, 600)
        ]

    def told(let: bool) -> list[tuple[Any, ...]]:
        decoder, ended = Decoder(), list[Transfer]()
        tracker = Tracker(on_end=ended.append, plain=10_000)
        for part in (frames(0, 0), frames(400, 1)):
            feed(tracker, decoder, part)
            if let:
                let_go(tracker, decoder, end_idle(tracker, 200))
        tracker.finish()
        stayed = [c for c in tracker.connections if c.packets == 2]
        assert len(stayed) == 200
        progress = [[p and (p.started, p.high, p.acked, p.msn) for p in c.progress] for c in stayed]
        return [
            *((c.to_dict() | {"id": 0}, of) for c, of in zip(stayed, progress, strict=True)),
            *facts(t for t in ended if t.connection in stayed),
        ]

    assert told(True) == told(False)
