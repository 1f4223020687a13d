"""A RoCE v2 peer that shares no code with rocekit: packets by struct, ICRC by zlib.

The layouts are those of IBA Vol. 1 (7.8.1, chapter 9) and of its RoCE v2 annex (A17).
"""

from __future__ import annotations

import socket
import struct
import zlib
from typing import NamedTuple

# Operation codes: the low five bits (9.2.1).
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM = range(6)
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = range(6, 12)
READ_REQUEST, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY = range(12, 17)
ACKNOWLEDGE, ATOMIC_ACK, CMP_SWAP, FETCH_ADD = range(17, 21)
SEND_LAST_INV, SEND_ONLY_INV = 0x16, 0x17
FLUSH, ATOMIC_WRITE = 0x1C, 0x1D
#: What the specification leaves without a meaning for RC (0x15 is RESYNC, of RD only).
RESERVED = (0x15, 0x18, 0x19, 0x1A, 0x1B, 0x1E, 0x1F)
RC, UC, UD = 0x00, 0x20, 0x60  # the high three bits
CNP = 0x81

ACK_UNLIMITED = 0x1F
NAK_PSN, NAK_INVALID, NAK_ACCESS, NAK_OPERATION = 0x60, 0x61, 0x62, 0x63
RNR = 0x20


def reth(va: int, rkey: int, length: int) -> bytes:
    return struct.pack("!QII", va, rkey, length)


def atomic(va: int, rkey: int, swap_add: int, compare: int = 0) -> bytes:
    return struct.pack("!QIQQ", va, rkey, swap_add, compare)


def aeth(syndrome: int, msn: int = 0) -> bytes:
    return struct.pack("!I", syndrome << 24 | msn)


def deth(qkey: int, source_qpn: int) -> bytes:
    return struct.pack("!II", qkey, source_qpn)


def word(value: int) -> bytes:
    """ImmDt or IETH."""
    return struct.pack("!I", value)


def _checksum(header: bytes) -> int:
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _icrc(ip: bytes, udp: bytes, rest: bytes) -> bytes:
    """7.8.1, A17.3.4: eight bytes of ones for the LRH, ones for what may change on the way."""
    if ip[0] >> 4 == 4:
        masked = ip[:1] + b"\xff" + ip[2:8] + b"\xff" + ip[9:10] + b"\xff\xff" + ip[12:]
    else:
        masked = bytes([ip[0] | 0x0F]) + b"\xff\xff\xff" + ip[4:7] + b"\xff" + ip[8:]
    covered = b"\xff" * 8 + masked + udp[:6] + b"\xff\xff" + rest[:4] + b"\xff" + rest[5:]
    return struct.pack("<I", zlib.crc32(covered))


def packet(
    opcode: int,
    psn: int,
    qpn: int,
    headers: bytes = b"",
    payload: bytes = b"",
    *,
    source: str = "10.9.0.1",
    target: str = "10.9.0.2",
    ackreq: bool = False,
    solicited: bool = False,
    pad: int | None = None,
    padding: bytes | None = None,
    version: int = 0,
    pkey: int = 0xFFFF,
    becn: bool = False,
    ecn: int = 2,
    port: int = 4791,
    ttl: int = 64,
    spoil: int = 0,
) -> bytes:
    """A packet from the IP header to the ICRC; ``pad`` is what the BTH says, ``padding`` what follows."""
    fill = -len(payload) % 4
    said = fill if pad is None else pad
    bth = struct.pack(
        "!BBHII",
        opcode,
        solicited << 7 | 1 << 6 | said << 4 | version,
        pkey,
        becn << 30 | qpn,
        ackreq << 31 | psn & 0xFFFFFF,
    )
    rest = bth + headers + payload + (bytes(fill) if padding is None else padding)
    size = 8 + len(rest) + 4
    udp = struct.pack("!HHHH", 0xC123, port, size, 0)
    if ":" in source:
        ip = struct.pack("!IHBB", 6 << 28 | ecn << 20, size, 17, ttl)
        ip += socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, target)
    else:
        ends = socket.inet_aton(source) + socket.inet_aton(target)
        first = struct.pack("!BBHHHBB", 0x45, ecn, 20 + size, 1, 0x4000, ttl, 17)
        ip = first + struct.pack("!H", _checksum(first + bytes(2) + ends)) + ends
    crc = bytes(a ^ spoil for a in _icrc(ip, udp, rest))
    return ip + udp + rest + crc


class Seen(NamedTuple):
    """A packet of the endpoint, taken apart; what it does not have is None."""

    opcode: int
    psn: int
    qpn: int
    source: str
    target: str
    solicited: bool
    pad: int
    pkey: int
    becn: bool
    ackreq: bool
    ecn: int
    syndrome: int | None
    msn: int | None
    original: int | None
    va: int | None
    rkey: int | None
    length: int | None
    qkey: int | None
    source_qpn: int | None
    immediate: int | None
    payload: bytes

    @property
    def operation(self) -> int:
        return self.opcode & 0x1F


_HAS_AETH = {READ_FIRST, READ_LAST, READ_ONLY, ACKNOWLEDGE, ATOMIC_ACK}
_HAS_RETH = {WRITE_FIRST, WRITE_ONLY, WRITE_ONLY_IMM, READ_REQUEST, FLUSH, ATOMIC_WRITE}
_HAS_WORD = {SEND_LAST_IMM, SEND_ONLY_IMM, WRITE_LAST_IMM, WRITE_ONLY_IMM, SEND_LAST_INV, SEND_ONLY_INV}


def take_apart(data: bytes) -> Seen:
    """Read a packet of the endpoint, and insist on what a receiver may: lengths, checksum, version, ICRC."""
    v4 = data[0] >> 4 == 4
    at = 20 if v4 else 40
    ip, udp, rest, crc = data[:at], data[at : at + 8], data[at + 8 : -4], data[-4:]
    family = socket.AF_INET if v4 else socket.AF_INET6
    ends = (ip[12:16], ip[16:20]) if v4 else (ip[8:24], ip[24:40])
    if v4:
        assert struct.unpack("!H", ip[2:4])[0] == len(data)
        assert _checksum(ip) == 0
        ecn = ip[1] & 3
    else:
        assert struct.unpack("!H", ip[4:6])[0] == len(data) - 40
        ecn = ip[1] >> 4 & 3
    _, port, size, _ = struct.unpack("!HHHH", udp)
    assert port == 4791
    assert size == len(data) - at
    assert _icrc(ip, udp, rest) == crc
    opcode, flags, pkey, qp, psn = struct.unpack("!BBHII", rest[:12])
    assert flags & 0x0F == 0
    low, at = opcode & 0x1F, 12
    found: dict[str, int] = {}

    def take(form: str) -> tuple[int, ...]:
        nonlocal at
        values = struct.unpack_from(form, rest, at)
        at += struct.calcsize(form)
        return values

    if opcode != CNP:
        if opcode & 0xE0 == UD:
            found["qkey"], found["source_qpn"] = take("!II")
        if low == FLUSH:
            take("!I")
        if low in _HAS_RETH:
            found["va"], found["rkey"], found["length"] = take("!QII")
        if low in (CMP_SWAP, FETCH_ADD):
            found["va"], found["rkey"], _, _ = take("!QIQQ")
        if low in _HAS_AETH:
            (value,) = take("!I")
            found["syndrome"], found["msn"] = value >> 24, value & 0xFFFFFF
        if low == ATOMIC_ACK:
            (found["original"],) = take("!Q")
        if low in _HAS_WORD:
            (found["immediate"],) = take("!I")
    pad = flags >> 4 & 3
    assert len(rest) % 4 == 0
    assert not any(rest[len(rest) - pad :] if pad else b"")
    return Seen(
        opcode,
        psn & 0xFFFFFF,
        qp & 0xFFFFFF,
        socket.inet_ntop(family, ends[0]),
        socket.inet_ntop(family, ends[1]),
        bool(flags & 0x80),
        pad,
        pkey,
        bool(qp >> 30 & 1),
        bool(psn >> 31),
        ecn,
        found.get("syndrome"),
        found.get("msn"),
        found.get("original"),
        found.get("va"),
        found.get("rkey"),
        found.get("length"),
        found.get("qkey"),
        found.get("source_qpn"),
        found.get("immediate"),
        rest[at : len(rest) - pad],
    )
