"""Captures that have packets twice: what a mirror of two ports makes of the captures of two taps."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from capture_bytes import Frame, pcap

from rocekit.files.reader import open_capture

Change = Callable[[bytes], bytes]

_IPV4: Final = b"\x08\x00"


def frames_of(path: Path) -> list[Frame]:
    """The frames of a capture."""
    with open_capture(path) as capture:
        return [
            Frame(frame, time_ns, wirelen)
            for batch in capture
            for time_ns, frame, wirelen in zip(
                batch.time_ns.tolist(), batch.frames(), batch.wirelen.tolist(), strict=True
            )
        ]


def routed(frame: bytes) -> bytes:
    """A frame behind a router: its TTL is one less, its MAC addresses are others."""
    if frame[12:14] != _IPV4:
        return frame
    data = bytearray(frame)
    data[:12] = bytes.fromhex("020000000a01020000000a02")
    data[22] -= 1
    data[24:26] = bytes(2)
    total = sum(struct.unpack(">10H", data[14:34]))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    data[24:26] = struct.pack(">H", ~total & 0xFFFF)
    return bytes(data)


def ttl_only(frame: bytes) -> bytes:
    """A frame with a TTL of one less and the same MAC addresses, as behind a tunnel's end."""
    return frame[:12] + routed(frame)[12:]


def other_macs(frame: bytes) -> bytes:
    return bytes.fromhex("020000000b01020000000b02") + frame[12:]


def in_vlan(number: int) -> Change:
    return lambda frame: frame[:12] + struct.pack(">HH", 0x8100, number) + frame[12:]


def same(frame: bytes) -> bytes:
    return frame


def of_two_taps(near_a: Path, near_b: Path, sender: bytes, change: Change) -> list[Frame]:
    """One capture out of those of two taps, with ``change`` at the second place of each packet.

    Args:
        sender: the IPv4 address of the host that the first tap is near to.
    """
    found = []
    for path, is_near in ((near_a, True), (near_b, False)):
        for frame in frames_of(path):
            is_first = (frame.data[26:30] == sender) == is_near
            found.append(frame if is_first else _changed(frame, change))
    return sorted(found, key=lambda frame: frame.time_ns)


def twice(path: Path, change: Change, later_ns: int = 5_000) -> list[Frame]:
    """Each frame of a capture, and a copy of it that is changed."""
    found = []
    for frame in frames_of(path):
        copy = _changed(frame, change)
        found += [frame, Frame(copy.data, frame.time_ns + later_ns, copy.wirelen)]
    return sorted(found, key=lambda frame: frame.time_ns)


def write(frames: list[Frame], path: Path) -> Path:
    path.write_bytes(pcap(frames, unit="ns"))
    return path


def _changed(frame: Frame, change: Change) -> Frame:
    data = change(frame.data)
    return Frame(data, frame.time_ns, frame.on_wire + len(data) - len(frame.data))
