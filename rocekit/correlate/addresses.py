"""Comparing addresses and QPNs, some of which are unknown."""

from __future__ import annotations


def gid_ip(gid: str | None) -> str | None:
    """A GID as an address in text. An IPv4-mapped one becomes IPv4, as packets carry it (A17.4.1.1)."""
    if gid is None:
        return None
    import ipaddress

    try:
        address = ipaddress.IPv6Address(gid)
    except ValueError:
        return None
    return str(address.ipv4_mapped or address)


def may_be(a: object, b: object) -> bool:
    """Whether two values can be the same: they are equal, or one of them is unknown."""
    return a is None or b is None or a == b
