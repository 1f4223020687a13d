"""The address of a side's QP and memory, in the text that perftest sends over TCP.

:mod:`rocekit.track.pairs.handshake` finds the same text in captures.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from rocekit.errors import ScenarioError
from rocekit.wire.build import gid

#: Bytes of the text, with the zeros at its end.
ADDRESS_BYTES: Final = 108
_BEGIN: Final = re.compile(rb"[0-9a-f]{4}:[0-9a-f]{3}")  # LID and outstanding READs


@dataclass(frozen=True, slots=True)
class QpAddress:
    """How a side's QP and memory are reached: ``psn`` is its first, ``address`` and ``rkey`` its memory's."""

    qpn: int
    psn: int
    rkey: int
    address: int
    ip: str


def write_address(address: QpAddress, reads: int) -> bytes:
    """The address of a side as perftest's text; ``reads``: READs that it takes at once."""
    words = ":".join(f"{byte:02x}" for byte in gid(address.ip))
    text = (
        f"0000:{reads:04x}:{address.qpn:06x}:{address.psn:06x}:{address.rkey:08x}:{address.address:016x}:"
        f"{words}:{0:08x}:"
    )
    return text.encode().ljust(ADDRESS_BYTES, b"\0")


def begins_address(said: bytes) -> bool:
    """Whether such a text starts with these bytes, 8 or more; numbers may have any bytes, colons too."""
    return _BEGIN.match(said) is not None


def read_address(said: bytes) -> QpAddress:
    """The address that the peer sent.

    Raises:
        ScenarioError: it is no such text.
    """
    try:
        parts = said.rstrip(b"\0").decode().rstrip(":").split(":")
        address = ipaddress.IPv6Address(bytes.fromhex("".join(parts[6:22])))
        return QpAddress(
            int(parts[2], 16),
            int(parts[3], 16),
            int(parts[4], 16),
            int(parts[5], 16),
            str(address.ipv4_mapped or address),
        )
    except (ValueError, IndexError):
        raise ScenarioError(f"no address of a QP: {said!r}") from None
