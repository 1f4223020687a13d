"""What waits for its other half keeps little of its batches, and is tracked as if it kept all."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from capture_bytes import Frame, pcap
from encapsulated import ethernet, ipv4, udp, vxlan
from places import PCAPS
from talk import START_NS

import rocekit
from rocekit import feeding
from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.packets.rows import Rows
from rocekit.track.pairs.address_numbers import AddressNumbers
from rocekit.track.tracker import Tracker
from rocekit.wire.build import build_frame


def flood(count: int) -> list[Frame]:
    """Packets of ever other addresses to ever other QPs, which wait for ever."""
    return [
        Frame(
            build_frame(
                "RC_SEND_ONLY", src=f"10.7.{n >> 8}.{n & 255}", dst="10.8.0.1", dest_qpn=2 + n, psn=n
            ),
            START_NS + 1000 * n,
        )
        for n in range(count)
    ]


def test_a_flood_in_small_batches_keeps_few_of_them(tmp_path: Path) -> None:
    """An interface gives a packet at a time; each batch has columns of its own, many times the packet."""
    capture = tmp_path / "x.pcap"
    capture.write_bytes(pcap(flood(640), unit="ns"))
    tracker, decoder = Tracker(), Decoder()
    before = sum(isinstance(one, Rows) for one in gc.get_objects())
    with open_capture(capture, batch_frames=1) as reader:
        for batch in reader:
            tracker.feed(decoder.decode(batch))
    assert tracker._chains.waiters == tracker._chains.held == 640
    assert len({id(rows) for f in tracker._flows.values() for _, _, rows, _, _ in f.held}) <= 640 // 64 + 64
    assert sum(isinstance(one, Rows) for one in gc.get_objects()) - before <= 640 // 64 + 65
    tracker.finish()
    assert tracker._chains.waiters == tracker._chains.held == 0
    assert [t.first_frame for t in tracker.transfers] == list(range(1, 641))


@pytest.mark.parametrize("name", ["mesh-loss.pcap", "ping-read-loss.pcap", "rping-clean.pcap"])
@pytest.mark.parametrize("batch", [1, 3])
def test_small_batches_give_what_large_ones_give(
    monkeypatch: pytest.MonkeyPatch, name: str, batch: int
) -> None:
    def analysed() -> str:
        return json.dumps(rocekit.analyze(PCAPS / name).to_dict())

    whole = analysed()

    def small(*source: Any, **options: Any) -> Any:
        return open_capture(*source, batch_frames=batch, **options)

    monkeypatch.setattr(feeding, "open_capture", small)
    assert analysed() == whole


def test_as_many_scopes_as_packets_are_not_searched(tmp_path: Path) -> None:
    """Between two ends each virtual network has a connection of its own; none was known before."""
    frames = []
    for n in range(300):
        inner = build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=0x12, psn=n)
        outer = ethernet(ipv4(17, udp(4789, vxlan(n + 1, inner))))
        frames.append(Frame(outer, START_NS + 1000 * n))
    capture = tmp_path / "x.pcap"
    capture.write_bytes(pcap(frames, unit="ns"))
    analysis = rocekit.analyze(capture, split=False)
    assert len(analysis.connections) == 300
    tracker, decoder = Tracker(), Decoder()
    with open_capture(capture) as reader:
        for batch in reader:
            tracker.feed(decoder.decode(batch))
    tracker._know_all()
    assert {len(scopes) for scopes in tracker._scopes.values()} == {300}
    assert tracker._awaited == {}


def test_the_first_of_equal_addresses_counts_and_later_ones_are_found() -> None:
    numbers, addresses = AddressNumbers(), ["a", "b", "a"]
    assert [numbers.of(addresses, text) for text in ("a", "b", "c", None)] == [0, 1, -1, -1]
    addresses.append("c")
    assert numbers.of(addresses, "c") == 3
