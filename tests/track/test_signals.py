"""Ctrl-C is heard within the loops over all connections and holes, which are compiled."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest
from capture_bytes import Frame, pcap

from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.machine import signals
from rocekit.packets import Packets
from rocekit.track import assembly, kept, pairing, tracker
from rocekit.track.tracker import Tracker
from rocekit.wire.build import build_frame

MANY = 3 * signals.OFTEN


def hosts() -> Iterator[bytes]:
    """Each packet is of another host."""
    for n in range(MANY):
        yield build_frame("RC_SEND_ONLY", src=f"10.1.{n >> 8}.{n & 255}", dst="10.0.0.2", dest_qpn=5, psn=n)


def qps() -> Iterator[bytes]:
    """Each packet goes to another QP of one host."""
    for n in range(MANY):
        yield build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=5 + n, psn=7)


def holes() -> Iterator[bytes]:
    """Every second PSN of a connection is not there."""
    for n in range(MANY):
        yield build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=5, psn=2 * n)


def batches(frames: Callable[[], Iterator[bytes]]) -> list[Packets]:
    """The packets, decoded."""
    with open_capture(io.BytesIO(pcap([Frame(frame, n) for n, frame in enumerate(frames())]))) as reader:
        decoder = Decoder()
        return [decoder.decode(batch) for batch in reader]


def run(packets: list[Packets], made: Tracker) -> None:
    for batch in packets:
        made.feed(batch)
    made.finish()


@pytest.mark.parametrize(
    ("frames", "module"),
    [(hosts, pairing), (hosts, tracker), (hosts, kept), (qps, pairing), (holes, assembly)],
)
def test_each_loop_takes_signals(
    frames: Callable[[], Iterator[bytes]], module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[None] = []
    monkeypatch.setattr(module, "take_signals", lambda: taken.append(None))
    run(batches(frames), Tracker(plain=8 if module is kept else None))
    assert len(taken) >= MANY // signals.OFTEN - 1
