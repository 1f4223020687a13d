"""Frames put together by hand, from the layouts in ``wire`` and the RFCs, for tests of what reads them."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rocekit.files.frames import LINKTYPE_ETHERNET, FrameBatch
from rocekit.wire import BTH, GRH, OPCODES
from rocekit.wire.icrc import icrc_bytes

MACS = bytes.fromhex("020000000002020000000001")


def transport(opcode: int, payload: bytes = b"", **fields: int) -> bytes:
    """BTH, the headers that the opcode asks for, payload and pad."""
    headers = OPCODES[opcode].headers if opcode in OPCODES else ()
    fields.setdefault("padcount", -len(payload) % 4)
    fields.setdefault("pkey", 0xFFFF)
    parts = [BTH.pack(opcode=opcode, **{k: v for k, v in fields.items() if k in BTH.by_name})]
    parts += [h.pack(**{k: v for k, v in fields.items() if k in h.by_name}) for h in headers]
    return b"".join(parts) + payload + bytes(fields["padcount"])


def checksum(header: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@dataclass(frozen=True)
class Net:
    """What stands in front of the BTH.

    ``options`` are IPv4 options or IPv6 extension headers, ``first_extension`` the latter's first next-header
    number.
    """

    version: int = 4
    src: str = "10.9.0.1"
    dst: str = "10.9.0.2"
    sport: int = 49152
    tclass: int = 0
    hop_limit: int = 64
    flow_label: int = 0
    options: bytes = b""
    first_extension: int = 17
    ip_id: int = 7
    flags: int = 0x4000

    def wrap(self, body: bytes, *, icrc: bytes | None = None) -> bytes:
        """The IP packet with ``body`` (BTH to pad) inside and its ICRC, or another, at the end."""
        udp = struct.pack(">HHHH", self.sport, 4791, 8 + len(body) + 4, 0)
        ip = self.ip(len(udp) + len(body) + 4)
        return ip + udp + body + (icrc_bytes(ip + udp + body, len(ip)) if icrc is None else icrc)

    def ip(self, inside: int) -> bytes:
        src, dst = ipaddress.ip_address(self.src).packed, ipaddress.ip_address(self.dst).packed
        if self.version == 4:
            length = 20 + len(self.options)
            words = (0x40 | length // 4, self.tclass, length + inside, self.ip_id, self.flags)
            head = struct.pack(">BBHHHBB", *words, self.hop_limit, 17)
            total = checksum(head + bytes(2) + src + dst + self.options)
            return head + total.to_bytes(2, "big") + src + dst + self.options
        first = 6 << 28 | self.tclass << 20 | self.flow_label
        length = len(self.options) + inside
        head = struct.pack(">IHBB", first, length, self.first_extension, self.hop_limit)
        return head + src + dst + self.options


def roce_v1(
    body: bytes, *, src: str = "fe80::1", dst: str = "fe80::2", tclass: int = 0, hop_limit: int = 1
) -> bytes:
    """A RoCE v1 packet from the GRH on."""
    grh = GRH.pack(
        ipver=6,
        tclass=tclass,
        pay_len=len(body) + 4,
        next_hdr=0x1B,
        hop_limit=hop_limit,
        sgid=ipaddress.IPv6Address(src).packed,
        dgid=ipaddress.IPv6Address(dst).packed,
    )
    return grh + body + icrc_bytes(grh + body, len(grh), udp=False)


def ethernet(packet: bytes, ethertype: int | None = None, *tags: tuple[int, int]) -> bytes:
    """An Ethernet frame; each tag is (EtherType, TCI), the outer one first."""
    if ethertype is None:
        ethertype = 0x0800 if packet[0] >> 4 == 4 else 0x86DD
    return MACS + b"".join(struct.pack(">HH", *tag) for tag in tags) + struct.pack(">H", ethertype) + packet


def batch_of(
    frames: Sequence[bytes],
    *,
    wirelen: Sequence[int] | None = None,
    linktype: int | Sequence[int] = LINKTYPE_ETHERNET,
) -> FrameBatch:
    """Frames as a reader hands them on: a record header's bytes before each, none behind the last."""
    gap = b"\xa5" * 16
    buffer = bytearray(b"".join(gap + frame for frame in frames))
    caplen = np.array([len(frame) for frame in frames], np.int64)
    ends = np.cumsum(caplen + len(gap))
    n = len(frames)
    kinds = [linktype] * n if isinstance(linktype, int) else linktype
    return FrameBatch(
        file=0,
        buffer=np.frombuffer(buffer, np.uint8),
        offset=ends - caplen,
        caplen=caplen,
        wirelen=caplen if wirelen is None else np.array(wirelen, np.int64),
        time_ns=np.arange(n, dtype=np.int64) * 1000 + 1_700_000_000_000_000_000,
        number=np.arange(1, n + 1, dtype=np.int64),
        linktype=np.array(kinds, np.uint16),
    )
