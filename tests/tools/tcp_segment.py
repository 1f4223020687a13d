"""A TCP segment beside the RoCE packets of a capture."""

from __future__ import annotations

import struct


def tcp_frame(text: bytes, *, wrong: bool = False) -> bytes:
    """A TCP segment from 10.1.16.62 to 10.1.16.61."""
    ends = bytes((10, 1, 16, 62)) + bytes((10, 1, 16, 61))
    head = (
        struct.pack(">HHIIBBHHH", 40000, 18515, 7, 9, 0x80, 0x18, 500, 0, 0) + b"\1\1\x08\x0a" + b"TIMESTMP"
    )
    segment = bytearray(head + text)
    segment[16:18] = (_sum16(ends + struct.pack(">HH", 6, len(segment)) + segment) ^ wrong).to_bytes(2, "big")
    ip = bytearray(struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(segment), 5, 0x4000, 64, 6, 0) + ends)
    ip[10:12] = _sum16(bytes(ip)).to_bytes(2, "big")
    return b"\x9a\x01\x02\x03\x04\x05\x9a\x01\x02\x03\x04\x06\x08\x00" + bytes(ip) + bytes(segment)


def _sum16(data: bytes) -> int:
    data += b"\0" * (len(data) & 1)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total
