"""The invariant CRC, the last four bytes of a RoCE packet (IBA Vol. 1, 7.8.1, A16.3, A17.3).

It covers the packet from the network header to the end of the pad, with ones for every field that may change
on the way: the IP header's traffic class (DSCP and ECN), hop limit, flow label and checksum, the UDP
checksum, and the byte of the BTH with FECN and BECN. Eight bytes of ones precede it, in place of the local
routing header, which RoCE does not have. The polynomial is Ethernet's; the least significant byte is sent
first.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from rocekit.wire.headers import BTH
from rocekit.wire.network import UDP_BYTES

Buffer = bytes | bytearray | memoryview

crc32: Callable[..., int]
try:  # SIMD, several times faster than zlib's
    from isal import isal_zlib

    crc32 = isal_zlib.crc32
except ImportError:
    crc32 = zlib.crc32

#: The CRC of the eight bytes of ones.
SEED: Final = zlib.crc32(b"\xff" * 8)

IPV4_VARIANT: Final = (1, 8, 10, 11)  # TOS, TTL, header checksum
#: IPv6 and GRH: traffic class, flow label and hop limit; of byte 0 the low four bits, the version stays.
IPV6_VARIANT: Final = (1, 2, 3, 7)
UDP_VARIANT: Final = (6, 7)  # checksum
BTH_VARIANT: Final = (4,)  # FECN, BECN and six reserved bits
_BTH_BYTES: Final = BTH.length


def masked_header(ip_and_transport: Buffer, ip_length: int, *, udp: bool) -> bytes:
    """The network header, UDP header and BTH with their variant bytes set to ones.

    Args:
        ip_and_transport: bytes from the IPv4, IPv6 or GRH header on.
        ip_length: bytes before UDP (RoCE v2) or the BTH (RoCE v1), IPv4 options and IPv6 extensions included.
        udp: whether a UDP header follows (RoCE v2).
    """
    end = ip_length + (UDP_BYTES if udp else 0) + _BTH_BYTES
    head = bytearray(ip_and_transport[:end])
    if head[0] >> 4 == 4:
        for i in IPV4_VARIANT:
            head[i] = 0xFF
    else:
        head[0] |= 0x0F
        for i in IPV6_VARIANT:
            head[i] = 0xFF
    if udp:
        for i in UDP_VARIANT:
            head[ip_length + i] = 0xFF
    bth = end - _BTH_BYTES
    for i in BTH_VARIANT:
        head[bth + i] = 0xFF
    return bytes(head)


def icrc(ip_and_transport: Buffer, ip_length: int, *, udp: bool = True) -> int:
    """The ICRC of a packet, as the number whose little-endian bytes go on the wire.

    Args:
        ip_and_transport: from the network header to the last pad byte, without the ICRC itself.
        ip_length: bytes before UDP (RoCE v2) or the BTH (RoCE v1).
        udp: False for RoCE v1.

    Raises:
        ValueError: the bytes end before the BTH does.
    """
    end = ip_length + (UDP_BYTES if udp else 0) + _BTH_BYTES
    if len(ip_and_transport) < end:
        raise ValueError(f"an ICRC covers at least {end} bytes here, got {len(ip_and_transport)}")
    head = masked_header(ip_and_transport, ip_length, udp=udp)
    return crc32(memoryview(ip_and_transport)[end:], crc32(head, SEED))


def icrc_bytes(ip_and_transport: Buffer, ip_length: int, *, udp: bool = True) -> bytes:
    """The four bytes of the ICRC as they are sent."""
    return icrc(ip_and_transport, ip_length, udp=udp).to_bytes(4, "little")
