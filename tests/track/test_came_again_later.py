"""Packets that come again long after the first time are of a QP that has its number and PSNs again."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from capture_bytes import Frame
from doubled_capture import frames_of, write
from places import PCAPS

import rocekit

SECOND_NS = 1_000_000_000
UNRELIABLE = ("uc-clean", "ud-clean", "ib_send_bw-uc-clean", "ib_send_bw-ud-clean")


def without_identification(frame: bytes) -> bytes:
    """A frame as a host sends it that sets DF and no identification; its ICRC is as before."""
    if frame[12:14] != b"\x08\x00":
        return frame
    header = frame[14:18] + bytes(2) + frame[20:24] + bytes(2) + frame[26:34]
    total = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return frame[:14] + header[:10] + struct.pack(">H", ~total & 0xFFFF) + header[12:] + frame[34:]


def again(path: Path, name: str, later_ns: int, *, identified: bool = True) -> rocekit.Analysis:
    """What is said of a capture whose packets come once more, so much behind its end."""
    frames = frames_of(PCAPS / f"{name}.pcap")
    if not identified:
        frames = [Frame(without_identification(f.data), f.time_ns, f.wirelen) for f in frames]
    took = frames[-1].time_ns - frames[0].time_ns
    more = [Frame(frame.data, frame.time_ns + took + later_ns, frame.wirelen) for frame in frames]
    return rocekit.analyze(write(frames + more, path), journals=[])


@pytest.mark.parametrize("identified", [True, False])
@pytest.mark.parametrize("name", UNRELIABLE)
def test_messages_of_a_qp_that_begins_again_are_messages(tmp_path: Path, name: str, identified: bool) -> None:
    once = rocekit.analyze(PCAPS / f"{name}.pcap", journals=[])
    twice = again(tmp_path / "x.pcap", name, 10 * SECOND_NS, identified=identified)
    assert [t.bytes for t in twice.transfers] == 2 * [t.bytes for t in once.transfers]
    assert [t.status for t in twice.transfers] == 2 * [t.status for t in once.transfers]
    assert not any(c.duplicates for c in twice.connections)
    assert {f.rule for f in twice.findings} <= {f.rule for f in once.findings} | {"icrc-bad"}


@pytest.mark.parametrize("identified", [True, False])
@pytest.mark.parametrize("later_ns", [300_000_000, 10 * SECOND_NS])
@pytest.mark.parametrize("name", [*UNRELIABLE, "ib_read_bw-clean", "ib_send_bw-clean", "ib_write_bw-clean"])
def test_no_mirror_made_them(tmp_path: Path, name: str, later_ns: int, identified: bool) -> None:
    analysis = again(tmp_path / "x.pcap", name, later_ns, identified=identified)
    titles = [f.title for f in analysis.findings]
    assert not any("two places" in title or "probably sent again" in title for title in titles)
    if later_ns > SECOND_NS:
        assert not any(f.rule == "duplicate" for f in analysis.findings)


@pytest.mark.parametrize("name", UNRELIABLE)
def test_copies_that_come_soon_are_copies(tmp_path: Path, name: str) -> None:
    frames = frames_of(PCAPS / f"{name}.pcap")
    more = [Frame(frame.data, frame.time_ns + 5_000_000, frame.wirelen) for frame in frames]
    path = write(sorted(frames + more, key=lambda f: f.time_ns), tmp_path / "x.pcap")
    analysis = rocekit.analyze(path, journals=[])
    once = rocekit.analyze(PCAPS / f"{name}.pcap", journals=[])
    assert len(analysis.transfers) == len(once.transfers)
    assert sum(c.duplicates for c in analysis.connections) == sum(t.packets for t in once.transfers)
