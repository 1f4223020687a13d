"""The RoCE v2 packets of a pcap, by ``struct`` alone: the truth bench does not share rocekit's readers."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

_PORT: Final = (4791).to_bytes(2)
PSN_MASK: Final = 0xFFFFFF
#: Opcodes of RC (IBA Vol. 1, table 38).
READ_REQUEST, ACK, ATOMIC_ACK, CMP_SWAP, FETCH_ADD = 0x0C, 0x11, 0x12, 0x13, 0x14
READ_RESPONSES: Final = range(0x0D, 0x11)
RESPONSES: Final = range(0x0D, 0x13)
#: Those with an AETH right behind the BTH: READ responses but MIDDLE, ACK, atomic ACK.
WITH_AETH: Final = frozenset({0x0D, 0x0F, 0x10, ACK, ATOMIC_ACK})
UD_FIRST: Final = 0x60
UD_END: Final = 0x80
CNP: Final = 0x81
NAK_SEQUENCE: Final = 0x60
_MAGIC: Final = {b"\x4d\x3c\xb2\xa1": ("<", 1), b"\xd4\xc3\xb2\xa1": ("<", 1000)}
_ETHERNET: Final = 14
#: The bytes of an IP header, by its version; an IPv4 header has no options here.
HEADER_BYTES: Final = {4: 20, 6: 40}
_UDP: Final = 17
#: AckReq, in the byte before the PSN (IBA Vol. 1, 9.2.1).
_ACK_REQ: Final = 0x80
#: "Congestion experienced", the last bits of the traffic class (RFC 3168).
_CE: Final = 3


def after(psn: int, other: int) -> int:
    """How far a PSN is behind another one, around the end of 24 bits."""
    return ((psn - other + (1 << 23)) & PSN_MASK) - (1 << 23)


@dataclass(eq=False, slots=True)
class Packet:
    """A packet as one capture has it.

    Attributes:
        frame: its number in the file, from 1.
        asks: whether it asks for an ACK.
        syndrome: of its AETH; -1 without one.
        identification: IPv4's; over IPv6 the number that the lab gave each packet sent (``truth_marks``).
        length: of the IP packet, without its IP header.
        headers: Ethernet's payload as far as it stays the same on the way: a mark is taken out.
        marked: whether it is marked "congestion experienced".
    """

    frame: int
    time_ns: int
    src: str
    dst: str
    opcode: int
    dest_qpn: int
    psn: int
    identification: int
    length: int
    headers: bytes = field(repr=False)
    syndrome: int = -1
    dma_length: int = 0
    asks: bool = False
    marked: bool = False

    @property
    def is_response(self) -> bool:
        return self.opcode in RESPONSES

    @property
    def is_datagram(self) -> bool:
        """A datagram of UD, which a connection's requests and responses are not."""
        return UD_FIRST <= self.opcode < UD_END

    @property
    def is_cnp(self) -> bool:
        return self.opcode == CNP

    @property
    def is_read_response(self) -> bool:
        return self.opcode in READ_RESPONSES

    @property
    def is_ack(self) -> bool:
        """An acknowledgement, alone or with data, and no NAK."""
        return 0 <= self.syndrome < 0x20

    @property
    def is_rnr(self) -> bool:
        return 0x20 <= self.syndrome < 0x40

    @property
    def is_fatal_nak(self) -> bool:
        """A NAK after which the QP does nothing more: invalid request, remote access or operational error."""
        return NAK_SEQUENCE < self.syndrome < 0x80

    @property
    def is_sequence_nak(self) -> bool:
        return self.syndrome == NAK_SEQUENCE


def bth_at(data: bytes | bytearray) -> int | None:
    """Where a frame's BTH begins; None if it is no RoCE v2 frame."""
    kind, first = bytes(data[12:14]), data[_ETHERNET] if len(data) > _ETHERNET else 0
    if kind == b"\x08\x00" and first == 0x45:
        version, protocol = 4, _ETHERNET + 9
    elif kind == b"\x86\xdd" and first >> 4 == 6:
        version, protocol = 6, _ETHERNET + 6
    else:
        return None
    at = _ETHERNET + HEADER_BYTES[version]
    if len(data) < at + 20 or data[protocol] != _UDP or data[at + 2 : at + 4] != _PORT:
        return None
    return at + 8


def addresses(data: bytes | bytearray) -> tuple[str, str]:
    """The source and the destination of an IP frame, as Python writes them."""
    if data[_ETHERNET] >> 4 == 4:
        return str(IPv4Address(bytes(data[26:30]))), str(IPv4Address(bytes(data[30:34])))
    return str(IPv6Address(bytes(data[22:38]))), str(IPv6Address(bytes(data[38:54])))


def _unmarked(data: bytes) -> bytes:
    """An IP packet with ECT(0) for CE, if its checksum says that this was a router's doing (RFC 3168)."""
    if data[0] >> 4 == 6:  # without a checksum: a corrupted bit of IPv6's is taken for a mark
        marked = data[1] >> 4 & _CE == _CE
        return data[:1] + bytes((data[1] & ~0x10,)) + data[2:] if marked else data
    if data[1] & _CE != _CE or _checksum(data[:20]):
        return data
    header = bytearray(data[:20])
    header[1] &= ~1
    header[10:12] = b"\0\0"
    header[10:12] = _checksum(bytes(header)).to_bytes(2)
    return bytes(header) + data[20:]


def _checksum(header: bytes) -> int:
    """The Internet checksum of an IPv4 header; 0 if the header has it already, and it is right."""
    total = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _packet(frame: int, time_ns: int, data: bytes, number: int) -> Packet | None:
    """None for what is not RoCE v2, or belongs to the connection manager.

    Args:
        number: that the lab gave it, over IPv6.
    """
    bth = bth_at(data)
    if bth is None or len(data) < bth + 12:
        return None
    opcode, word, psn_word = data[bth], *struct.unpack_from(">II", data, bth + 4)
    if word & 0xFFFFFF == 1 or (opcode >= UD_END and opcode != CNP):
        return None
    traffic_class = data[15] if data[_ETHERNET] >> 4 == 4 else data[15] >> 4
    if data[_ETHERNET] >> 4 == 6:
        data = data[:16] + number.to_bytes(2) + data[18:]
    packet = Packet(
        frame,
        time_ns,
        *addresses(data),
        opcode,
        word & 0xFFFFFF,
        psn_word & PSN_MASK,
        number or struct.unpack_from(">H", data, 18)[0],
        struct.unpack_from(">H", data, bth - 4)[0],
        _unmarked(data[_ETHERNET:]),
        marked=traffic_class & _CE == _CE,
        asks=bool(data[bth + 8] & _ACK_REQ),
    )
    behind = bth + 12
    if opcode in WITH_AETH and len(data) >= behind + 4:
        packet.syndrome = data[behind]
    if opcode == READ_REQUEST and len(data) >= behind + 16:
        packet.dma_length = struct.unpack_from(">I", data, behind + 12)[0]
    return packet


def frames(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """The number, time and bytes of each frame of a classic pcap of Ethernet frames."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        import gzip

        data = gzip.decompress(data)
    order, unit = _MAGIC[data[:4]]
    at, number = 24, 0
    record = struct.Struct(f"{order}IIII")
    while at + 16 <= len(data):
        seconds, fraction, captured, _ = record.unpack_from(data, at)
        number += 1
        yield number, seconds * 10**9 + fraction * unit, data[at + 16 : at + 16 + captured]
        at += 16 + captured


def read(path: Path, numbers: Sequence[int] = ()) -> list[Packet]:
    """The RoCE packets of a pcap, in the file's order.

    Args:
        numbers: of each frame, the one that the lab gave it (over IPv6).
    """
    given = numbers or itertools.repeat(0)
    found = (_packet(*frame, number) for frame, number in zip(frames(path), given, strict=False))
    return [packet for packet in found if packet is not None]
