"""The replacements of a redacted capture: one mapping for its packets, its CM messages and its journal.

Keys and memory addresses are replaced as the recorder does (:mod:`rocekit.journal.redaction`). Here are the
other values of a capture: MAC and IP addresses, GIDs, GUIDs, host names, private data, immediate data,
operands of atomics. Equal values have equal replacements everywhere, so the analysis finds the same.

IP addresses become those reserved for tests and documents (RFC 2544, RFC 3849, RFC 5771), numbered in the
order of the capture, which is easier to read in a ticket than random ones. QPNs, PSNs, ports, P_Keys of the
default partition, VLANs and times stay: the analysis needs them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from rocekit.journal.redaction import Redaction
from rocekit.wire.cm import GSI_QKEY
from rocekit.wire.encapsulations import SID_PREFIX, is_segment
from rocekit.wire.network import MAPPED, address_text

_FIRST_IPV4: Final = IPv4Address("198.18.0.0")  # RFC 2544: benchmarks, 131,072 addresses
_FIRST_IPV6: Final = IPv6Address("2001:db8::")  # RFC 3849: documents
_FIRST_IPV4_GROUP: Final = IPv4Address("233.252.0.0")  # RFC 5771: documents
_LINK_LOCAL: Final = IPv6Address("fe80::")
_MAPPED: Final = MAPPED << 32
_BROADCAST: Final = b"\xff" * 6
#: IEEE 802.1D's reserved groups, the destination of PAUSE and similar frames.
_RESERVED_GROUP: Final = b"\x01\x80\xc2\0\0"
_DEFAULT_PKEYS: Final = frozenset({0, 0x7FFF, 0xFFFF})  # 10.9.1: the default partition


class Redactor(Redaction):
    """The replacements of one capture and its journals.

    Args:
        secret: the key of random replacements; None: a new one.
        taken: IP addresses of the originals, which are never replacements.
    """

    def __init__(self, secret: bytes | None = None, taken: Iterable[str] = ()) -> None:
        super().__init__(secret)
        self._taken = set(taken)
        self._next: dict[int, int] = {}
        self.ips: dict[str, str] = {}
        self.hosts: dict[str, str] = {}

    # ------------------------------------------------------------------ addresses

    def ip(self, text: str) -> str:
        """An IP address's replacement; any other text becomes ``::``."""
        found = self.ips.get(text)
        if found is None:
            try:
                address = ip_address(text)
            except ValueError:
                return "::"
            if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
                found = self.ip(str(address.ipv4_mapped))
            elif str(address) != text:
                found = self.ip(str(address))
            else:
                found = self._new_ip(address)
            self.ips[text] = found
        return found

    def _new_ip(self, address: IPv4Address | IPv6Address) -> str:
        """The next free address of the same kind; loopback, broadcast and unspecified addresses stay."""
        if address.is_unspecified or address.is_loopback or address == IPv4Address("255.255.255.255"):
            return str(address)
        step = 1
        if isinstance(address, IPv4Address):
            first = int(_FIRST_IPV4_GROUP if address.is_multicast else _FIRST_IPV4)
        elif address.is_multicast:
            first = int.from_bytes(address.packed[:2] + bytes(14), "big")
        elif is_segment(int(address)):
            first, step = SID_PREFIX << 112, 1 << 32  # it stays one
        else:
            first = int(_LINK_LOCAL if address.is_link_local else _FIRST_IPV6)
        while True:
            number = self._next[first] = self._next.get(first, 0) + 1
            new = str(type(address)(first + number * step))
            if new not in self._taken:
                return new

    def gid(self, gid: bytes) -> bytes:
        """The replacement of a GID, or of an IPv6 address, of 16 bytes; an IPv4-mapped one stays mapped."""
        text = address_text(int.from_bytes(gid[:8], "big"), int.from_bytes(gid[8:], "big"))
        return self.ip_bytes(text)

    def ip_bytes(self, text: str) -> bytes:
        """The replacement of an IP address as the 16 bytes of a GID."""
        new = ip_address(self.ip(text))
        number = int(new) | _MAPPED if isinstance(new, IPv4Address) else int(new)
        return number.to_bytes(16, "big")

    def mac(self, mac: int) -> int:
        """The replacement of a MAC address; broadcast, reserved groups and zero stay."""
        raw = mac.to_bytes(6, "big")
        if not mac or raw == _BROADCAST or raw[:5] == _RESERVED_GROUP:
            return mac
        number = self._hash(b"mac", mac, 6) & 0xFCFF_FFFF_FFFF
        group = mac & 1 << 40
        return number | 1 << 41 | group  # locally administered

    def guid(self, guid: int) -> int:
        """The replacement of a GUID; zero stays."""
        return self._hash(b"guid", guid, 8) or 1 if guid else 0

    def host(self, name: str) -> str:
        """The replacement of a host's name."""
        return self.hosts.setdefault(name, f"host{len(self.hosts) + 1}")

    # ------------------------------------------------------------------ keys and data

    def qkey(self, qkey: int) -> int:
        """A Q_Key's replacement; the well-known one of QP1 stays."""
        return qkey if qkey == GSI_QKEY else self.key(qkey)

    def pkey(self, pkey: int) -> int:
        """A P_Key's replacement: the default partition's stay, as does full membership (the highest bit)."""
        if pkey in _DEFAULT_PKEYS:
            return pkey
        number = self._hash(b"pkey", pkey & 0x7FFF, 2) & 0x7FFF
        return (number if number not in (0, 0x7FFF) else 1) | pkey & 0x8000

    def value(self, value: int) -> int:
        """The replacement of 64 bits of a program's data, such as an atomic's operand; zero stays."""
        return self._hash(b"value", value, 8) or 1 if value else 0

    def name(self, number: int) -> int:
        """The replacement of a wr_id or another name: pointers move like addresses, numbers stay."""
        return self.address(number) if number >> 32 else number

    def data(self, data: bytes) -> bytes:
        """As many random bytes: equal data stays equal, zeros at its end stay zeros."""
        own = data.rstrip(b"\0")
        if not own:
            return data
        stream = hashlib.shake_256(self._secret + own).digest(len(own))
        return (stream[:-1] + bytes([stream[-1] or 1])).ljust(len(data), b"\0")
