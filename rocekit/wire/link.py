"""What stands around RoCE's transport: EtherTypes, addresses, what can be wrong; bytes at many places."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ETHERTYPE_IPV4: Final = 0x0800
ETHERTYPE_IPV6: Final = 0x86DD
ETHERTYPE_MAC_CONTROL: Final = 0x8808  # IEEE 802.3 annex 31A: PAUSE and, since 802.1Qbb, PFC
VLAN_ETHERTYPES: Final = (0x8100, 0x88A8, 0x9100)  # 802.1Q, 802.1ad, and what came before 802.1ad

UDP_BYTES: Final = 8
MAPPED: Final = 0xFFFF  # RFC 4291, 2.5.5.2: ::ffff:a.b.c.d, as IPv4 stands in a GID

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

#: What can be wrong with a packet, by the code in the column ``malformed``; 0 is a sound one.
MALFORMED: Final = MappingProxyType(
    {
        1: "headers cut",
        2: "shorter than its headers",
        3: "IP length out of bounds",
        4: "UDP length disagrees with the IP length",
        5: "pad count exceeds the payload",
        6: "unknown opcode",
        7: "payload behind an opcode that carries none",
        8: "IPv4 header checksum wrong",
        9: "unknown transport version",
        10: "GRH version is not 6",
    }
)
CUT, SHORT, IP_LENGTH, UDP_LENGTH, PAD, UNKNOWN_OPCODE, PAYLOAD, CHECKSUM, VERSION, GRH_VERSION = MALFORMED


def gather(buffer: Bytes, at: Ints, width: int) -> Bytes:
    """``width`` bytes from each place in ``at``: an array (len(at), width), zero behind the buffer's end.

    One item of ``width`` bytes at any place: NumPy then copies whole rows, many times faster than byte by
    byte.
    """
    if not len(at):
        return np.zeros((0, width), np.uint8)
    last = len(buffer) - width
    if last >= 0 and int(at.max()) <= last:
        return _windows(buffer, width)[at].view(np.uint8).reshape(len(at), width)
    inside = at <= last
    rows = np.zeros((len(at), width), np.uint8)
    if inside.any():
        rows[inside] = gather(buffer, at[inside], width)
    for i in np.flatnonzero(~inside):  # a frame or two at the very end of the buffer
        rest = buffer[int(at[i]) :]
        rows[i, : len(rest)] = rest[:width]
    return rows


def scatter(buffer: Bytes, at: Ints, rows: Bytes) -> None:
    """Write ``rows`` (as from :func:`gather`) back to their places, which must lie inside the buffer."""
    width = rows.shape[1]
    _windows(buffer, width)[at] = np.ascontiguousarray(rows).view(f"V{width}")[:, 0]


def _windows(buffer: Bytes, width: int) -> NDArray[Any]:
    """The buffer as overlapping items of ``width`` bytes, one beginning at each byte."""
    return np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))


def address_text(high: int, low: int) -> str:
    """An address as people write it, from its two 64-bit halves; an IPv4-mapped one (a GID) in dots."""
    if not high and low >> 32 == MAPPED:
        return str(IPv4Address(low & 0xFFFF_FFFF))
    return str(IPv6Address(high << 64 | low))
