"""GIDs as addresses, without the module ipaddress: to load it takes longer than a short recording."""

from __future__ import annotations

import sys

_MAPPED = bytes(10) + b"\xff\xff"
"""How an IPv4-mapped IPv6 address begins (RFC 4291, 2.5.5.2)."""
_SYSFS_LENGTH = 39
"""Of a GID in sysfs: eight groups of four digits."""


def address_of(gid: bytes) -> str:
    """A GID as the address in packets: an IPv4-mapped one as IPv4 (A17.4.1.1)."""
    if gid.startswith(_MAPPED):
        return ".".join(map(str, gid[12:]))
    return ipv6_text(gid)


def ipv6_text(gid: bytes) -> str:
    """A GID as an IPv6 address, its longest run of zeros left out (RFC 5952, 4.2).

    As the module ipaddress of the same Python writes it, which journals are compared with.
    """
    if gid.startswith(_MAPPED) and sys.version_info >= (3, 13):
        return f"::ffff:{address_of(gid)}"
    groups = [f"{gid[k] << 8 | gid[k + 1]:x}" for k in range(0, 16, 2)]
    best = at = 0
    for start in range(8):
        length = 0
        while start + length < 8 and groups[start + length] == "0":
            length += 1
        if length > best:
            best, at = length, start
    if best < 2:
        return ":".join(groups)
    return f"{':'.join(groups[:at])}::{':'.join(groups[at + best :])}"


def gid_in_sysfs(text: str) -> bytes:
    """The GID that sysfs writes as 0000:0000:0000:0000:0000:ffff:0a09:0001; in short, it is understood, too.

    Raises:
        ValueError: it is none.
    """
    groups = text.split(":")
    if len(text) == _SYSFS_LENGTH and all(len(group) == 4 for group in groups):
        return bytes.fromhex("".join(groups))
    import ipaddress

    return ipaddress.IPv6Address(text).packed
