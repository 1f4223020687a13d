"""Captures built byte by byte from the formats' specifications, without the code under test."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

PCAP_MAGIC = {"us": 0xA1B2C3D4, "ns": 0xA1B23C4D}


@dataclass(frozen=True)
class Frame:
    """One frame: its captured bytes, when, and how long it was on the wire."""

    data: bytes
    time_ns: int = 1_700_000_000_123_456_789
    wirelen: int | None = None

    @property
    def on_wire(self) -> int:
        return len(self.data) if self.wirelen is None else self.wirelen


def pcap_header(order: str = "<", unit: str = "us", linktype: int = 1, snaplen: int = 65535) -> bytes:
    return struct.pack(order + "IHHiIII", PCAP_MAGIC[unit], 2, 4, 0, 0, snaplen, linktype)


def pcap_record(frame: Frame, order: str = "<", unit: str = "us") -> bytes:
    second, rest = divmod(frame.time_ns, 10**9)
    head = struct.pack(
        order + "IIII", second, rest if unit == "ns" else rest // 1000, len(frame.data), frame.on_wire
    )
    return head + frame.data


def pcap(
    frames: Sequence[Frame], order: str = "<", unit: str = "us", linktype: int = 1, snaplen: int = 65535
) -> bytes:
    records = (pcap_record(frame, order, unit) for frame in frames)
    return pcap_header(order, unit, linktype, snaplen) + b"".join(records)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    total = len(body) + 12
    return struct.pack(order + "II", kind, total) + body + struct.pack(order + "I", total)


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def section(order: str = "<", length: int = -1) -> bytes:
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, length), order)


def interface(
    linktype: int = 1,
    order: str = "<",
    *,
    snaplen: int = 0,
    tsresol: int | None = None,
    tsoffset: int | None = None,
    name: str | None = None,
) -> bytes:
    options = b""
    if name is not None:
        options += option(2, name.encode(), order)
    if tsresol is not None:
        options += option(9, bytes([tsresol]), order)
    if tsoffset is not None:
        options += option(14, struct.pack(order + "q", tsoffset), order)
    if options:
        options += option(0, b"", order)
    return block(1, struct.pack(order + "HHI", linktype, 0, snaplen) + options, order)


def enhanced(
    data: bytes,
    stamp: int = 1_700_000_000_123_456,
    order: str = "<",
    *,
    on: int = 0,
    wirelen: int | None = None,
    options: bytes = b"",
    caplen: int | None = None,
) -> bytes:
    caplen = len(data) if caplen is None else caplen
    body = struct.pack(
        order + "IIIII",
        on,
        stamp >> 32,
        stamp & 0xFFFFFFFF,
        caplen,
        len(data) if wirelen is None else wirelen,
    )
    return block(6, body + data + bytes(-len(data) % 4) + options, order)


def simple(data: bytes, order: str = "<", *, wirelen: int | None = None) -> bytes:
    return block(3, struct.pack(order + "I", len(data) if wirelen is None else wirelen) + data, order)


def obsolete(data: bytes, stamp: int, order: str = "<", *, on: int = 0, options: bytes = b"") -> bytes:
    body = struct.pack(order + "HHIIII", on, 0xFFFF, stamp >> 32, stamp & 0xFFFFFFFF, len(data), len(data))
    return block(2, body + data + bytes(-len(data) % 4) + options, order)


def statistics(
    order: str = "<", *, on: int = 0, received: int = 0, if_drop: int = 0, os_drop: int = 0
) -> bytes:
    options = b"".join(
        option(code, struct.pack(order + "Q", value), order)
        for code, value in ((4, received), (5, if_drop), (7, os_drop))
    )
    return block(5, struct.pack(order + "III", on, 0, 0) + options + option(0, b"", order), order)
