"""Packets without IPv4 identifications that are sent again, and of which the first capture misses some.

Each equals the one that was sent before, like a copy; but a copy comes at once. A packet that only the second
capture has passed the first one between its neighbours, not as late as the second one saw it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from capture_bytes import Frame, pcap
from talk import MS, TIMEOUT, US, Talk, named

import rocekit

A_SENDS = bytes([10, 9, 0, 1])
TRANSIT_NS = 500 * US


def gone_back() -> Talk:
    """Messages of eight packets; of one the responder misses the first, and all eight come again."""
    t = Talk()
    t.common = {"identification": 0}
    t.connect()
    for begin in range(0, 160, 8):
        t.write(begin, 8)
        t.wait(2 * MS)
        if begin == 80:
            t.nak(80)
            t.wait(2 * MS)
            t.write(80, 8)
            t.wait(2 * MS)
        t.ack(begin + 7)
        t.wait(2 * MS)
    return t


def of_two(
    folder: Path, t: Talk, missed: int, lost: Collection[int] = (), sooner_ns: int = 0
) -> rocekit.Analysis:
    """The analysis of captures at A and B, half a millisecond apart; the first one lacks a frame.

    Args:
        lost: frames that do not come to B; sooner_ns: by how much the missed one takes less time to B.
    """
    paths = []
    for name, at_b in (("va", False), ("vb", True)):
        frames = []
        for number, frame in enumerate(t.frames, 1):
            of_a = frame.data[26:30] == A_SENDS
            if not (number in lost if at_b else number == missed):
                shift_ns = TRANSIT_NS - sooner_ns * (number == missed) if of_a == at_b else 0
                frames.append(Frame(frame.data, frame.time_ns + shift_ns, frame.wirelen))
        paths.append(folder / f"{name}.pcap")
        paths[-1].write_bytes(pcap(sorted(frames, key=lambda f: f.time_ns), unit="ns"))
    return rocekit.analyze(*paths)


def test_a_packet_sent_again_that_the_first_capture_misses_is_not_out_of_order(tmp_path: Path) -> None:
    t = gone_back()
    repeats = [n for n, frame in enumerate(t.frames, 1) if frame.data in [f.data for f in t.frames[: n - 1]]]
    assert len(repeats) == 8
    analysis = of_two(tmp_path, t, repeats[3])
    assert named(analysis.findings) == ["loss"]
    (gone,) = [tr for tr in analysis.transfers if tr.first_psn == 80]
    assert gone.retransmitted_packets == 8
    assert len([e for e in gone.events if e.kind == "repeat"]) == 1


def test_what_stands_before_lost_packets_only_by_estimated_times_did_not_overtake_them(
    tmp_path: Path,
) -> None:
    """85 came to B behind three packets that were lost between the captures, and A's capture misses it."""
    t = Talk()
    t.connect()
    for begin in range(0, 160, 8):
        sent = t.write(begin, 8)
        t.wait(2 * MS)
        if begin == 80:
            first = sent
            t.wait(TIMEOUT)
            t.write(80, 8)
            t.wait(2 * MS)
        t.ack(begin + 7)
        t.wait(2 * MS)
    analysis = of_two(tmp_path, t, first[85], [first[psn] for psn in (82, 83, 84)], sooner_ns=2500)
    assert "reordering" not in [f.rule for f in analysis.findings]
    (lost,) = [f for f in analysis.findings if f.rule in ("loss", "tail-loss")]
    assert lost.evidence["psns"] == [82]
