"""ICMP (RFC 792, 1191, 1812) and ICMPv6 (RFC 4443) errors: their types and codes in words."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

TOO_BIG: Final = "packet too big"
PORT_UNREACHABLE: Final = "port unreachable"
#: Words of several codes, by what they mean for the quoted packet.
PROHIBITED: Final = frozenset(
    {
        "network administratively prohibited",
        "host administratively prohibited",
        "communication administratively prohibited",
        "source address failed ingress or egress policy",
    }
)
EXPIRED: Final = frozenset({"TTL exceeded", "hop limit exceeded"})

#: By IP version: (type, code) to words. A code of None stands for all codes of a type.
ERRORS: Final = MappingProxyType(
    {
        4: MappingProxyType(
            {
                (3, 0): "network unreachable",
                (3, 1): "host unreachable",
                (3, 2): "protocol unreachable",
                (3, 3): PORT_UNREACHABLE,
                (3, 4): TOO_BIG,
                (3, 5): "source route failed",
                (3, 6): "destination network unknown",
                (3, 7): "destination host unknown",
                (3, 8): "source host isolated",
                (3, 9): "network administratively prohibited",
                (3, 10): "host administratively prohibited",
                (3, 11): "network unreachable for this type of service",
                (3, 12): "host unreachable for this type of service",
                (3, 13): "communication administratively prohibited",
                (3, 14): "host precedence violation",
                (3, 15): "precedence cutoff in effect",
                (11, 0): "TTL exceeded",
                (11, 1): "fragment reassembly time exceeded",
                (12, None): "parameter problem",
            }
        ),
        6: MappingProxyType(
            {
                (1, 0): "no route to destination",
                (1, 1): "communication administratively prohibited",
                (1, 2): "beyond scope of source address",
                (1, 3): "address unreachable",
                (1, 4): PORT_UNREACHABLE,
                (1, 5): "source address failed ingress or egress policy",
                (1, 6): "reject route to destination",
                (2, None): TOO_BIG,
                (3, 0): "hop limit exceeded",
                (3, 1): "fragment reassembly time exceeded",
                (4, None): "parameter problem",
            }
        ),
    }
)

ERROR_TYPES: Final = MappingProxyType({4: (3, 11, 12), 6: (1, 2, 3, 4)})
NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT = 135, 136  # RFC 4861


def error_words(version: int, kind: int, code: int) -> str:
    """An ICMP error in words."""
    known = ERRORS[version]
    return known.get((kind, code)) or known.get((kind, None)) or f"type {kind} code {code}"
