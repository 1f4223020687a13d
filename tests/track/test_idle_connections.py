"""What a connection costs that had one exchange and waits for the next: much of it is made when needed."""

from __future__ import annotations

import gc
import io
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from capture_bytes import Frame, pcap
from talk import START_NS

from rocekit.capture import open_capture
from rocekit.craft.generate import OPERATIONS, Traffic, generate
from rocekit.decode import Decoder
from rocekit.packets.rows import COMPILED
from rocekit.track import assembly, lobby, transfers
from rocekit.track.pairs import waiting
from rocekit.track.rest.resting import rest
from rocekit.track.tracker import Tracker
from rocekit.wire.build import build_frame

FEW, MANY = 200, 1_500
#: Frames that are read at once: their columns are no part of a connection.
BATCH = 120
#: Bytes, of which the packets' columns are a part. A tracker that made all of it at once took 6,900.
MOST_BYTES = 4_500
#: The same at rest, as a live view keeps it.
MOST_AT_REST = 2_048


def exchanges(count: int) -> list[Frame]:
    """Connections with one SEND and its ACK each."""
    draw = random.Random(16)
    frames: list[Frame] = []
    for n in range(count):
        there, back, psn = f"10.1.{n % 40}.1", f"10.2.{n % 40}.2", draw.getrandbits(24)
        for frame in (
            build_frame("RC_SEND_ONLY", src=there, dst=back, dest_qpn=0x100 + n, psn=psn, payload=b"x" * 64),
            build_frame("RC_ACKNOWLEDGE", src=back, dst=there, dest_qpn=0x8000 + n, psn=psn, msn=1),
        ):
            frames.append(Frame(frame, START_NS + len(frames) * 2_000))
    return frames


def two_ways(count: int) -> list[Frame]:
    """Connections with a SEND of two packets and its ACK each way."""
    draw = random.Random(17)
    frames: list[Frame] = []
    for n in range(count):
        a: dict[str, Any] = {"src": f"10.1.{n % 40}.1", "dst": f"10.2.{n % 40}.2", "dest_qpn": 0x100 + n}
        b: dict[str, Any] = {"src": a["dst"], "dst": a["src"], "dest_qpn": 0x8000 + n}
        for to, back in ((a, b), (b, a)):
            psn = draw.getrandbits(23)
            for frame in (
                build_frame("RC_SEND_FIRST", psn=psn, payload=b"x" * 1024, **to),
                build_frame("RC_SEND_LAST", psn=psn + 1, payload=b"x" * 64, **to),
                build_frame("RC_ACKNOWLEDGE", psn=psn + 1, msn=1, **back),
            ):
                frames.append(Frame(frame, START_NS + len(frames) * 2_000))
    return frames


def bytes_each(frames: list[Frame], connections: int, *, rests: bool) -> float:
    """What a connection more takes."""
    decoder, tracker = Decoder(), Tracker(plain=0)
    taken: dict[int, int] = {}
    with open_capture(io.BytesIO(pcap(frames, unit="ns")), batch_frames=BATCH) as capture:
        tracemalloc.start()
        try:
            for part in capture:
                tracker.feed(decoder.decode(part))
                tracker.forget()
                if rests:
                    rest(tracker, 1 << 62)
                gc.collect()
                taken[len(tracker.connections)] = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert len(tracker.connections) == connections
    few = min(known for known in taken if known >= FEW)
    return (taken[connections] - taken[few]) / (connections - few)


@pytest.mark.skipif(not COMPILED, reason="objects of plain Python are larger")
def test_a_connection_of_one_exchange_takes_little_memory() -> None:
    assert bytes_each(exchanges(MANY), MANY, rests=False) < MOST_BYTES


@pytest.mark.skipif(not COMPILED, reason="objects of plain Python are larger")
@pytest.mark.parametrize("made", [exchanges, two_ways])
def test_a_connection_at_rest_takes_little(made: Callable[[int], list[Frame]]) -> None:
    assert bytes_each(made(MANY), MANY, rests=True) < MOST_AT_REST


def test_what_all_idle_sides_share_stays_empty(tmp_path: Path) -> None:
    """One list or dict stands for all that were never needed; what is put into it would be everybody's."""
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=4000, operations=OPERATIONS, sizes=(0, 100, 9000), loss=0.05, pairs=8))
    decoder, tracker = Decoder(), Tracker()
    with open_capture(path) as capture:
        for part in capture:
            tracker.feed(decoder.decode(part))
    tracker.finish()
    assert any(connection.retransmitted_packets for connection in tracker.connections)
    shared = (
        *(assembly._NONE_AHEAD, assembly._NO_PSNS, waiting.NONE_HELD, waiting.NO_VOTES, lobby._EMPTY),
        transfers.NO_EVENTS,
    )
    assert not any(shared)
