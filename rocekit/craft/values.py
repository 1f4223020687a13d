"""Reading the values of a description of packets."""

from __future__ import annotations

import difflib
import ipaddress
from typing import Any, Final

from rocekit import wire
from rocekit.craft.keys import BITS, MAC_ADDRESS, TEXTS
from rocekit.wire import cm as wire_cm
from rocekit.wire.build import opcode_value

_LARGEST: Final = 1e12  # of numbers with decimals, which are times and ratios

CM_PREFIX: Final = "CM_"


class Wrong(ValueError):
    """A description that cannot be made into a packet.

    Attributes:
        place: which of the packets, from 0.
        key: the key that is wrong, None if it is the packet as a whole.
    """

    def __init__(self, message: str, place: int, key: str | None = None) -> None:
        super().__init__(message)
        self.place = place
        self.key = key


class ValueReader:
    """Reads the values of one packet's keys.

    Args:
        place: which packet, from 0.

    Every method raises :class:`Wrong` for a value that its key does not take.
    """

    def __init__(self, place: int) -> None:
        self.place = place

    def cm_message(self, op: Any) -> str:
        """The CM message that an ``op`` names; empty if it names an opcode."""
        if not isinstance(op, str) or not op.upper().startswith(CM_PREFIX):
            return ""
        name = op.upper().removeprefix(CM_PREFIX)
        if name not in wire_cm.CM_MESSAGES:
            names = ", ".join(CM_PREFIX + m for m in wire_cm.CM_MESSAGES)
            raise Wrong(f"no CM message is called {op}; there is {names}", self.place, "op")
        return name

    def opcode(self, op: Any) -> int:
        """An opcode by name or number."""
        try:
            return opcode_value(op if isinstance(op, int) else str(op).upper())
        except ValueError as error:
            raise Wrong(f"{error}{near(str(op))}", self.place, "op") from None

    def network(self, key: str, value: Any) -> Any:
        """The value of a key of :data:`rocekit.craft.keys.NETWORK`."""
        if key in ("src", "dst"):
            try:
                return str(ipaddress.ip_address(str(value)))
            except ValueError:
                raise Wrong(f"{key} is an IP address, not {value!r}", self.place, key) from None
        if key in TEXTS:
            if not MAC_ADDRESS.fullmatch(str(value)):
                raise Wrong(f"{key} is a MAC address, not {value!r}", self.place, key)
            return str(value)
        if key == "vlan" and value is None:
            return None
        if key == "vlan" and isinstance(value, list):
            return tuple(self.limited(key, tag) for tag in value)
        return self.limited(key, value)

    def limited(self, key: str, value: Any) -> int:
        """A number that fits into the key's bits."""
        number = self.whole(key, value)
        if number >> BITS[key]:
            raise Wrong(f"{key} takes values under {1 << BITS[key]:,}, got {number}", self.place, key)
        if key == "roce_version" and number not in (1, 2):
            raise Wrong(f"roce_version is 1 or 2, not {number}", self.place, key)
        return number

    def whole(self, key: str, value: Any, least: int = 0) -> int:
        """A whole number, in any notation of Python's."""
        if isinstance(value, str):
            try:
                value = int(value, 0)
            except ValueError:
                pass
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise Wrong(f"{key} is a whole number from {least} on, not {value!r}", self.place, key)
        if value >= 1 << 64:
            raise Wrong(f"{key} is a whole number of at most 64 bits", self.place, key)
        return value

    def number(self, key: str, value: Any) -> float:
        """A number that is not negative."""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = -1.0
        if not 0 <= number < _LARGEST:  # nor what is no number
            raise Wrong(f"{key} is a number from 0 on, below 10^12, not {value!r}", self.place, key)
        return number

    def octets(self, key: str, value: Any) -> bytes:
        """Bytes: ``text:…``, ``hex:…``, or how many."""
        if isinstance(value, str) and value.startswith("text:"):
            return value.removeprefix("text:").encode()
        if isinstance(value, str) and value.startswith("hex:"):
            try:
                return bytes.fromhex(value.removeprefix("hex:"))
            except ValueError:
                raise Wrong(f"{key}: no bytes in hexadecimal: {value!r}", self.place, key) from None
        try:
            size = self.whole(key, value)
        except Wrong:
            size = -1
        if not 0 <= size <= 0xFFFF:
            raise Wrong(
                f"{key} is so many bytes (to 65535), text:… or hex:…, not {value!r}", self.place, key
            ) from None
        return pattern(size)


def pattern(size: int) -> bytes:
    """Bytes that count up, so that each offset is recognised."""
    return (bytes(range(256)) * (size // 256 + 1))[:size]


def near(name: str) -> str:
    """Opcodes whose names are like this one, as the end of a message."""
    found = difflib.get_close_matches(name.upper(), wire.OPCODE_NAMES, n=3)
    return f"; do you mean {', '.join(found)}?" if found else "; such as RC_SEND_ONLY"
