"""Where a side's QP and memory are, in the words in which perftest tells it over TCP.

:mod:`rocekit.track.handshake` finds the same words in captures.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from rocekit.errors import ScenarioError
from rocekit.wire.build import gid

#: Bytes of the text, zeros behind it included.
PLACE_BYTES: Final = 108
_BEGIN: Final = re.compile(rb"[0-9a-f]{4}:[0-9a-f]{3}")  # LID and outstanding READs


@dataclass(frozen=True, slots=True)
class Place:
    """Where a side's QP and memory are."""

    qpn: int
    psn: int
    rkey: int
    address: int
    ip: str


def write_place(place: Place, reads: int) -> bytes:
    """A side's place in perftest's words."""
    words = ":".join(f"{byte:02x}" for byte in gid(place.ip))
    text = (
        f"0000:{reads:04x}:{place.qpn:06x}:{place.psn:06x}:{place.rkey:08x}:{place.address:016x}:"
        f"{words}:{0:08x}:"
    )
    return text.encode().ljust(PLACE_BYTES, b"\0")


def begins_place(said: bytes) -> bool:
    """Whether these first bytes, 8 or more, are of a place; numbers may have any bytes, colons too."""
    return _BEGIN.match(said) is not None


def read_place(said: bytes) -> Place:
    """The place that the other side told.

    Raises:
        ScenarioError: those are no such words.
    """
    try:
        parts = said.rstrip(b"\0").decode().rstrip(":").split(":")
        address = ipaddress.IPv6Address(bytes.fromhex("".join(parts[6:22])))
        return Place(
            int(parts[2], 16),
            int(parts[3], 16),
            int(parts[4], 16),
            int(parts[5], 16),
            str(address.ipv4_mapped or address),
        )
    except (ValueError, IndexError):
        raise ScenarioError(f"no place of a QP: {said!r}") from None
