"""Parsing and building datagrams: the only module of the engine that knows their layout.

A datagram here is an IP packet, from the IP header to the ICRC; the wires add Ethernet headers. Layouts come
from ``rocekit.wire``, the bytes of transport headers from ``rocekit.wire.build``.
"""

from __future__ import annotations

import ipaddress
import struct
from functools import lru_cache
from typing import Final, NamedTuple

from rocekit.wire import BTH, ICRC_BYTES, ONLY, OPCODES, ROCE_UDP_PORT, TRANSPORTS, Opcode, icrc
from rocekit.wire.build import DONT_FRAGMENT

GRH_AREA_BYTES: Final = 40  # 11.4.2.1: before every UD message in the receive buffer
ECN_CAPABLE, ECN_CE = 2, 3  # RFC 3168: ECT(0), congestion experienced
ECN_MASK: Final = 3
_UDP: Final = 17
_UDP_BYTES: Final = 8
_ECN_BYTE: Final = 1
_TRANSPORT_SHIFT: Final = 5
_WORD_BYTES: Final = 4


#: The operation of an opcode that the specification leaves without a meaning.
RESERVED: Final = "RESERVED"


class Datagram(NamedTuple):
    """An IP packet to send, with its addresses as text; ``qpn`` is the QP that sends it."""

    source: str
    destination: str
    data: bytes
    qpn: int


class Packet:
    """A received packet: the fields of the BTH and the extended headers, under their names in ``wire``.

    Fields that the packet does not have are 0.
    """

    op: Opcode
    source: str
    destination: str
    ecn: int
    udp_sport: int
    payload: bytes
    network: bytes  # the IP header, for UD's GRH area
    opcode = solicited = migreq = padcount = version = pkey = fecn = becn = dest_qpn = ackreq = psn = 0
    remote_va = rkey = dma_length = swap_add = compare = syndrome = msn = original = 0
    immediate = invalidate_rkey = qkey = src_qpn = selectivity = placement_type = 0


class Unusable(Exception):
    """A datagram that is dropped before it reaches a QP; the argument is the counter."""


@lru_cache(maxsize=512)
def _fields(opcode: int) -> tuple[Opcode, int, tuple[tuple[str, int, int], ...]] | None:
    """The opcode, the bytes of its headers, and (name, shift, mask) of each field in them as one number.

    A reserved opcode of a transport has only a BTH; its queue pair decides what becomes of it (9.7.4.1).
    """
    transport = TRANSPORTS.get(opcode >> _TRANSPORT_SHIFT, "CNP")
    op = OPCODES.get(opcode)
    if op is None and transport == "CNP":
        return None
    if op is None:
        op = Opcode(opcode, f"{transport}_{RESERVED}", transport, RESERVED, ONLY, (), payload=True)
    places = []
    end = op.headers_length * 8
    start = 0
    for header in (BTH, *op.headers):
        for f in header.fields:
            if not f.reserved:
                places.append((f.name, end - start - f.offset - f.bits, (1 << f.bits) - 1))
        start += header.length * 8
    return op, op.headers_length, tuple(places)


@lru_cache(maxsize=4096)
def address_text(packed: bytes) -> str:
    """An IP address's four or sixteen bytes as text."""
    return str(ipaddress.ip_address(packed))


def parse(data: bytes) -> Packet:
    """Parse a datagram.

    Raises:
        Unusable: the datagram is dropped (9.6.1: silently, if it is malformed or its ICRC is wrong).
    """
    if len(data) < 20:
        raise Unusable("drop_not_roce")
    version = data[0] >> 4
    if version == 4:
        start = (data[0] & 15) * 4
        total = data[2] << 8 | data[3]
        tclass = data[1]
        # A fragment does not contain a whole packet; RoCE never fragments (A17.3.1.1.5).
        roce = data[9] == _UDP and not (data[6] & 0x3F or data[7]) and start >= 20
        source, destination = data[12:16], data[16:20]
    elif version == 6 and len(data) >= 40:
        start = 40
        total = 40 + (data[4] << 8 | data[5])
        tclass = (data[0] & 15) << 4 | data[1] >> 4
        roce = data[6] == _UDP
        source, destination = data[8:24], data[24:40]
    else:
        raise Unusable("drop_not_roce")
    transport = start + _UDP_BYTES
    if not roce or len(data) < transport or (data[start + 2] << 8 | data[start + 3]) != ROCE_UDP_PORT:
        raise Unusable("drop_not_roce")
    end = total - ICRC_BYTES
    if total > len(data) or end < transport + BTH.length:
        raise Unusable("drop_malformed")
    if icrc.icrc_bytes(memoryview(data)[:end], start) != data[end:total]:
        raise Unusable("drop_icrc")
    known = _fields(data[transport])
    if known is None:
        raise Unusable("drop_malformed")
    op, length, places = known
    first = transport + length
    if first > end:
        raise Unusable("drop_malformed")
    packet = Packet()
    packet.op = op
    whole = int.from_bytes(data[transport:first], "big")
    values = packet.__dict__
    for name, shift, mask in places:
        values[name] = whole >> shift & mask
    last = end - packet.padcount
    # 9.2: the pad makes the payload a whole number of words.
    if last < first or packet.version or (end - first) % _WORD_BYTES:
        raise Unusable("drop_malformed")
    packet.payload = data[first:last]
    packet.source = address_text(source)
    packet.destination = address_text(destination)
    packet.ecn = tclass & 3
    packet.udp_sport = data[start] << 8 | data[start + 1]
    packet.network = data[:start]
    return packet


def grh_area(network: bytes) -> bytes:
    """The 40 bytes before a UD message: an IPv6 header, or zeros and the IPv4 header (A17.4.5.2)."""
    return network[:GRH_AREA_BYTES].rjust(GRH_AREA_BYTES, b"\0")


class Route:
    """Makes datagrams from one address to another; their IP and UDP headers differ in a few fields only.

    Args:
        qpn: the QP that sends them.
        tclass: the DSCP and ECN bits.

    Raises:
        ValueError: addresses of different IP versions, or no addresses at all.
    """

    __slots__ = (
        "_ends",
        "_heads",
        "_hop_limit",
        "_identification",
        "_tclass",
        "_version",
        "destination",
        "qpn",
        "source",
        "udp_sport",
    )

    def __init__(
        self,
        source: str,
        destination: str,
        *,
        qpn: int,
        udp_sport: int,
        tclass: int = 0,
        hop_limit: int = 64,
    ) -> None:
        self.qpn = qpn
        a, b = ipaddress.ip_address(source), ipaddress.ip_address(destination)
        if a.version != b.version:
            raise ValueError(f"{source} and {destination} are not of one IP version")
        self.source, self.destination = str(a), str(b)
        self._version = a.version
        self._ends = a.packed + b.packed
        self.udp_sport = udp_sport
        self._tclass = tclass
        self._hop_limit = hop_limit
        self._identification = 0
        self._heads: dict[int, tuple[bytes, int, bytes, bytes]] = {}

    def _head(self, length: int) -> tuple[bytes, int, bytes, bytes]:
        """The IP and UDP headers in pieces, between which IPv4 has identification and checksum.

        Of IPv6, the first piece is all.
        """
        size = _UDP_BYTES + length + ICRC_BYTES
        udp = struct.pack("!HHHH", self.udp_sport, ROCE_UDP_PORT, size, 0)
        if self._version == 6:
            ip = struct.pack("!IHBB", 6 << 28 | self._tclass << 20, size, _UDP, self._hop_limit)
            return ip + self._ends + udp, 0, b"", b""
        first = struct.pack("!BBH", 0x45, self._tclass, 20 + size)
        second = struct.pack("!HBB", DONT_FRAGMENT, self._hop_limit, _UDP)
        return first, sum(struct.unpack("!8H", first + second + self._ends)), second, self._ends + udp

    def datagram(self, transport: bytes) -> Datagram:
        """The datagram around transport headers, payload and pad."""
        head = self._heads.get(len(transport))
        if head is None:
            head = self._heads[len(transport)] = self._head(len(transport))
        if self._version == 6:
            covered = head[0] + transport
            length = 40
        else:
            # Each packet has its own, as with rxe: a packet sent again differs from one duplicated by the
            # network.
            self._identification = self._identification % 0xFFFF + 1
            total = head[1] + self._identification
            total = (total & 0xFFFF) + (total >> 16)
            total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
            numbers = self._identification.to_bytes(2, "big"), total.to_bytes(2, "big")
            covered = head[0] + numbers[0] + head[2] + numbers[1] + head[3] + transport
            length = 20
        return Datagram(self.source, self.destination, covered + icrc.icrc_bytes(covered, length), self.qpn)


def mark_ce(data: bytes) -> bytes:
    """The datagram with CE set in its IP header, as by a congested switch; the ICRC does not cover it."""
    return with_tclass(data, _tclass(data) | ECN_CE)


def with_tclass(data: bytes, tclass: int) -> bytes:
    """The datagram with another traffic class: DSCP and ECN; the ICRC does not cover it."""
    changed = bytearray(data)
    if changed[0] >> 4 == 6:
        changed[0] = changed[0] & 0xF0 | tclass >> 4
        changed[1] = changed[1] & 0x0F | (tclass & 0x0F) << 4
        return bytes(changed)
    before = changed[0] << 8 | changed[_ECN_BYTE]
    changed[_ECN_BYTE] = tclass
    after = changed[0] << 8 | tclass
    # RFC 1624: the checksum is adjusted by the difference.
    total = (~(changed[10] << 8 | changed[11]) & 0xFFFF) + (~before & 0xFFFF) + after
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    changed[10:12] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(changed)


def _tclass(data: bytes) -> int:
    return data[_ECN_BYTE] if data[0] >> 4 == 4 else (data[0] & 15) << 4 | data[1] >> 4
