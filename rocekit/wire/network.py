"""Ethernet, IP and UDP around RoCE's transport: types, sizes, DSCP and ECN, addresses as text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Final

ETHERTYPE_IPV4: Final = 0x0800
ETHERTYPE_ARP: Final = 0x0806
ETHERTYPE_IPV6: Final = 0x86DD
ETHERTYPE_MAC_CONTROL: Final = 0x8808  # IEEE 802.3 annex 31A: PAUSE and, since 802.1Qbb, PFC
DOT1Q, DOT1AD = 0x8100, 0x88A8  # the tags of 802.1Q and 802.1ad
VLAN_ETHERTYPES: Final = (DOT1Q, DOT1AD, 0x9100)  # the last one was in use before 802.1ad

IPV4_BYTES: Final = 20  # without options
IPV6_BYTES: Final = 40  # without extension headers
UDP_BYTES: Final = 8
# IANA: IPv4's protocol, IPv6's next header
ICMPV4: Final = 1
UDP_PROTOCOL: Final = 17
ICMPV6: Final = 58

MAPPED: Final = 0xFFFF  # RFC 4291, 2.5.5.2: ::ffff:a.b.c.d, as IPv4 stands in a GID
MAPPED_PREFIX: Final = bytes(10) + MAPPED.to_bytes(2, "big")

#: The traffic class (IPv4: TOS) has the DSCP in its upper bits (RFC 2474), ECN in its lower ones (RFC 3168).
DSCP_BITS: Final = 6
ECN_BITS: Final = 2
ECN_MASK: Final = (1 << ECN_BITS) - 1
ECN_CAPABLE: Final = 2  # ECT(0)
ECN_CE: Final = 3  # congestion experienced


#: What stands between the dots of an IPv4 address.
OCTETS: Final = tuple(map(str, range(256)))


def address_text(high: int, low: int) -> str:
    """An address as people write it, from its two 64-bit halves; an IPv4-mapped one (a GID) in dots."""
    if not high and low >> 32 == MAPPED:
        a, b, c, d = low >> 24 & 0xFF, low >> 16 & 0xFF, low >> 8 & 0xFF, low & 0xFF
        return f"{OCTETS[a]}.{OCTETS[b]}.{OCTETS[c]}.{OCTETS[d]}"
    # Both are imported where a capture has such an address: an IPv4 one needs neither.
    if high:  # the C library is 20 times as fast, and writes the same unless this half is zero (RFC 5952, 5)
        return ipv6_text()((high << 64 | low).to_bytes(16, "big"))
    from ipaddress import IPv6Address

    return str(IPv6Address(low))


@cache
def ipv6_text() -> Callable[[bytes], str]:
    """What writes an IPv6 address whose upper half is not zero."""
    from socket import AF_INET6, inet_ntop

    return partial(inet_ntop, AF_INET6)


def internet_sum(data: bytes) -> int:
    """The ones' complement sum of 16-bit words: a number of base 2^16 modulo 2^16 − 1, never 0 for data."""
    number = int.from_bytes(data + b"\0" if len(data) & 1 else data, "big")
    return number % 0xFFFF or (0xFFFF if number else 0)


def internet_checksum(data: bytes) -> int:
    """The checksum of ``data``, in which the checksum field is zero or left out."""
    return 0xFFFF - internet_sum(data)
