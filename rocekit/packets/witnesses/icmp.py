"""ICMP errors that quote a packet to UDP port 4791, and the messages of ND, from the bytes of frames.

An ICMP error contains the start of the packet that it is about: at least 8 bytes behind its IP header (RFC
792), usually more. They have the UDP ports; 8 bytes more have the destination QPN, 12 the PSN.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.wire import ROCE_UDP_PORT
from rocekit.wire.icmp import (
    ERROR_TYPES,
    NEIGHBOUR_ADVERTISEMENT,
    NEIGHBOUR_SOLICITATION,
    TOO_BIG,
    error_words,
)
from rocekit.wire.network import IPV4_BYTES, IPV6_BYTES, UDP_BYTES, UDP_PROTOCOL

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_ICMP_BYTES: Final = 8
#: Where a BTH has them.
_QPN_END, _PSN_END = 8, 12
#: Bytes of an ICMP error that are read: its headers, and the quoted ones with IPv4 options.
_READ: Final = 60 + _ICMP_BYTES + 60 + UDP_BYTES + _PSN_END


class Quote(NamedTuple):
    """The packet that an ICMP error quotes.

    Attributes:
        length: of the whole packet with its IP header, as that says.
        sport: UDP source port.
        opcode, dest_qpn, psn: of its BTH; None if the quote ends before.
    """

    src: str
    dst: str
    length: int
    sport: int
    opcode: int | None
    dest_qpn: int | None
    psn: int | None


class IcmpError(NamedTuple):
    """An ICMP or ICMPv6 error about a packet to UDP port 4791.

    Attributes:
        frame: frame reference.
        source: who sent it.
        kind: in words (``wire.icmp``).
        mtu: of the next link, from "packet too big"; None if it does not say one.
        quote: the packet that it is about.
    """

    frame: int
    time_ns: int
    source: str
    kind: str
    mtu: int | None
    quote: Quote


class NeighbourMessage(NamedTuple):
    """An ARP or ND message.

    Attributes:
        sender: its IP address; None if it has none yet (an ARP probe, or duplicate address detection).
        target: the address asked for or announced.
        request: whether it asks.
        receiver: whom it answers; None if it is for everybody.
    """

    protocol: str
    sender: str | None
    target: str
    request: bool
    receiver: str | None


def find_icmp_errors(
    buffer: Bytes, rows: Ints, layer: Ints, limit: Ints, version: int
) -> Iterator[tuple[int, tuple[str, str, int | None, Quote]]]:
    """(index of the frame, (source, kind, MTU, quote)) of each error; ``rows`` have ICMP of an IP version."""
    at = layer[rows] + (IPV6_BYTES if version == 6 else (buffer[layer[rows]] & 0xF).astype(np.int64) * 4)
    whole = at + _ICMP_BYTES < limit[rows]
    rows, at = rows[whole], at[whole]
    errors = np.isin(buffer[at], ERROR_TYPES[version])
    for index, start in zip(rows[errors].tolist(), at[errors].tolist(), strict=True):
        begin, end = int(layer[index]), int(limit[index])
        outer = buffer[begin : begin + IPV6_BYTES].tobytes()
        data = buffer[start : min(end, start + _READ)].tobytes()
        quote = None if version == 4 and _is_later_fragment(outer) else _quote(data[_ICMP_BYTES:], version)
        if quote is not None:
            kind = error_words(version, data[0], data[1])
            yield index, (_addresses(outer, version)[0], kind, _mtu(data, kind, version), quote)


def _mtu(data: bytes, kind: str, version: int) -> int | None:
    """The next link's MTU (RFC 1191, RFC 4443); old routers send 0."""
    if kind != TOO_BIG:
        return None
    return int.from_bytes(data[4:8] if version == 6 else data[6:8], "big") or None


def _addresses(header: bytes, version: int) -> tuple[str, str]:
    if version == 4:
        return str(IPv4Address(header[12:16])), str(IPv4Address(header[16:20]))
    return str(IPv6Address(header[8:24])), str(IPv6Address(header[24:40]))


def _is_later_fragment(ipv4: bytes) -> bool:
    return int.from_bytes(ipv4[6:8], "big") & 0x1FFF != 0


def _quote(data: bytes, version: int) -> Quote | None:
    """The quoted packet; None if it is not one to UDP port 4791, or is cut before its port."""
    if not data or data[0] >> 4 != version:
        return None
    if version == 4:
        size, protocol, length = (data[0] & 0xF) * 4, data[9:10], int.from_bytes(data[2:4], "big")
        if size < IPV4_BYTES or _is_later_fragment(data):
            return None
    else:
        size, protocol, length = IPV6_BYTES, data[6:7], IPV6_BYTES + int.from_bytes(data[4:6], "big")
    udp, bth = data[size:], data[size + UDP_BYTES :]
    if protocol != bytes([UDP_PROTOCOL]) or int.from_bytes(udp[2:4], "big") != ROCE_UDP_PORT:
        return None
    has_qpn, has_psn = len(bth) >= _QPN_END, len(bth) >= _PSN_END
    return Quote(
        *_addresses(data, version),
        length,
        int.from_bytes(udp[:2], "big"),
        bth[0] if has_qpn else None,
        int.from_bytes(bth[5:8], "big") if has_qpn else None,
        int.from_bytes(bth[9:12], "big") if has_psn else None,
    )


def find_neighbour_messages(
    buffer: Bytes, rows: Ints, layer: Ints, limit: Ints
) -> Iterator[tuple[int, NeighbourMessage]]:
    """(index of the frame, message) of each ND solicitation and advertisement; ``rows`` have ICMPv6."""
    at = layer[rows] + IPV6_BYTES
    whole = at + _ICMP_BYTES + 16 <= limit[rows]
    rows, at = rows[whole], at[whole]
    wanted = np.isin(buffer[at], (NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT))
    for index, start in zip(rows[wanted].tolist(), at[wanted].tolist(), strict=True):
        begin = int(layer[index])
        src, dst = _addresses(buffer[begin : begin + IPV6_BYTES].tobytes(), 6)
        target = str(IPv6Address(buffer[start + _ICMP_BYTES : start + _ICMP_BYTES + 16].tobytes()))
        request = int(buffer[start]) == NEIGHBOUR_SOLICITATION
        receiver = None if request or dst.startswith("ff") else dst
        # An advertisement announces its target, whichever of its addresses the host sends it from.
        sender = target if not request else None if src == "::" else src
        yield index, NeighbourMessage("ND", sender, target, request, receiver)
