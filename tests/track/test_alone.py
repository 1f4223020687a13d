"""Connections of one packet, which are tracked at a capture's end, are what they are at any other time."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest
from capture_bytes import Frame, pcap

from rocekit import wire
from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.track.pairs.waiting import Flow
from rocekit.track.tracker import Tracker
from rocekit.wire.build import build_frame

_OPCODES = sorted(o.name for o in wire.OPCODES.values() if o.transport in ("RC", "XRC", "UC"))
_WITHOUT_DATA = {
    "ACKNOWLEDGE",
    "ATOMIC_ACKNOWLEDGE",
    "COMPARE_SWAP",
    "FETCH_ADD",
    "FLUSH",
    "RDMA_READ_REQUEST",
}


def tracked(frames: list[bytes], *, at_once: bool) -> dict[str, Any]:
    """What becomes of them; ``at_once``: flows are let go before the capture has ended."""
    tracker = Tracker()
    with open_capture(io.BytesIO(pcap([Frame(frame, n) for n, frame in enumerate(frames)]))) as reader:
        decoder = Decoder()
        for batch in reader:
            tracker.feed(decoder.decode(batch))
        if at_once:
            for key in tracker._lobbies:
                tracker._let_all_go(key, 0)
    tracker.finish()
    return {
        "connections": [
            (c.to_dict(), c.first_ns, c.last_ns, [p and (p.started, p.begin, p.high) for p in c.progress])
            for c in tracker.connections
        ],
        "transfers": [t.to_dict() for t in tracker.transfers],
    }


def frame(opcode: str, n: int) -> bytes:
    """One packet of a flow of its own."""
    fields = {"src": f"10.0.1.{n}", "dst": "10.0.0.2", "dest_qpn": 0x20 + n, "psn": 0xFFFFF0 + n & 0xFFFFFF}
    has_data = opcode.partition("_")[2] not in _WITHOUT_DATA
    return build_frame(opcode, payload=bytes(16) if has_data else b"", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("opcode", _OPCODES)
def test_one_packet_of_each_kind(opcode: str) -> None:
    frames = [frame(opcode, 1)]
    found = tracked(frames, at_once=False)
    assert found["connections"]
    assert found == tracked(frames, at_once=True)


def test_many_after_one_another() -> None:
    """Nothing of one connection is left in the state machine when the next one begins."""
    frames = [frame(opcode, n) for n, opcode in enumerate(_OPCODES)]
    found = tracked(frames, at_once=False)
    assert len(found["connections"]) == len(_OPCODES)
    expected = tracked(frames, at_once=True)
    assert found["connections"] == expected["connections"]
    assert found["transfers"] == expected["transfers"]


def talks(seed: int) -> list[bytes]:
    """Packets between few hosts: most of them have one flow, some more, and some of those have responses."""
    rng = random.Random(seed)
    hosts = [f"10.0.3.{n}" for n in range(8)]
    frames = []
    for _ in range(rng.randrange(4, 40)):
        src, dst = rng.sample(hosts, 2)
        opcode = rng.choice(("RC_SEND_ONLY", "RC_RDMA_WRITE_FIRST", "RC_RDMA_READ_REQUEST", "RC_ACKNOWLEDGE"))
        fields: dict[str, Any] = {"src": src, "dst": dst, "dest_qpn": rng.choice((17, 18)), "psn": 7}
        has_data = opcode.partition("_")[2] not in _WITHOUT_DATA
        frames.append(build_frame(opcode, payload=bytes(256) if has_data else b"", **fields))
        if rng.random() < 0.3:
            fields |= {"src": dst, "dst": src}
            frames.append(build_frame("RC_ACKNOWLEDGE", payload=b"", msn=1, **fields))
    return frames


def told(frames: list[bytes], *, lobbies: bool) -> dict[str, Any]:
    """What becomes of them; ``lobbies``: each flow gets one at its first packet."""
    tracker = Tracker()
    with open_capture(
        io.BytesIO(pcap([Frame(frame, n) for n, frame in enumerate(frames)])), batch_frames=1
    ) as reader:
        decoder = Decoder()
        for batch in reader:
            tracker.feed(decoder.decode(batch))
            if lobbies:
                tracker._know_all()
            for found in [*tracker._lobbies.values()]:
                if lobbies and isinstance(found, Flow):
                    tracker._lobby(found)
    tracker.finish()
    assert tracker._chains.waiters == tracker._chains.held == 0
    return {
        "connections": [(c.to_dict(), c.first_ns, c.last_ns) for c in tracker.connections],
        "transfers": [t.to_dict() for t in tracker.transfers],
    }


def test_a_flow_that_is_alone_between_its_hosts_has_no_lobby_until_it_needs_one() -> None:
    paired = 0
    for seed in range(60):
        frames = talks(seed)
        found = told(frames, lobbies=False)
        assert found == told(frames, lobbies=True)
        paired += sum(c["paired_by"] is not None for c, _, _ in found["connections"])
    assert paired > 100


def test_a_flood_of_addresses_has_no_lobbies() -> None:
    tracker = Tracker()
    with open_capture(io.BytesIO(pcap([Frame(frame("RC_SEND_ONLY", n), n) for n in range(200)]))) as reader:
        decoder = Decoder()
        for batch in reader:
            tracker.feed(decoder.decode(batch))
    assert len(tracker._lobbies) == tracker._lone.count == 200
    assert not tracker._flows
    tracker.finish()
    assert len(tracker.connections) == len(tracker.transfers) == 200
