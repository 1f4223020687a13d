"""What is around a packet in a frame: changing addresses in it, and making its checksums right again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rocekit.packets.walk import Walk
from rocekit.wire.encapsulations import GRE_CHECKSUM, KINDS, SEGMENT_ROUTING
from rocekit.wire.network import IPV4_BYTES, IPV6_BYTES, UDP_PROTOCOL, internet_checksum

_IPV4, _IPV6, _ROUTING = KINDS["ipv4"], KINDS["ipv6"], KINDS["routing"]
_UDP, _GRE, _ETHERNET = KINDS["udp"], KINDS["gre"], KINDS["ethernet"]
_ADDRESSES: Final = {_IPV4: (12, 4), _IPV6: (8, 16)}
_SEGMENT_BYTES: Final = 16
_MACS_BYTES: Final = 12
_NO_OPERATION: Final = 1
#: Of other layers: where the bytes begin that may tell something, up to the next layer; they become zero.
_BLANK: Final = {
    KINDS[kind]: first
    for kind, first in (
        *(("options", 2), ("authentication", 4), ("geneve", 8), ("nsh", 8), ("ppi", 8), ("sll", 6)),
        *(("erf-more", 1), ("erf-ip-more", 1)),
    )
}
_KEPT_OF_SLL: Final = 2  # the EtherType, the last thing in it


@dataclass(frozen=True, slots=True)
class Outer:
    """The layers of a frame before the IP header or GRH of its packet.

    Attributes:
        layers: kind (see ``wire.encapsulations``) and place of each, the outermost first.
        start: where the packet's IP header or GRH is.
    """

    layers: tuple[tuple[int, int], ...]
    start: int

    @classmethod
    def of(cls, frame: bytes, linktype: int, start: int) -> Outer:
        """Those of a frame."""
        return cls(tuple(Walk().trail(frame, linktype, start)), start)

    @property
    def link_end(self) -> int:
        """Where the first IP header, or whatever a foreign link carries, begins."""
        places = [at for kind, at in self.layers if kind in _ADDRESSES]
        return min([*places, self.start])

    @property
    def ethernet(self) -> int | None:
        """Where the first Ethernet header is, if nothing but a capture's own header is before it."""
        places = [at for kind, at in self.layers if kind == _ETHERNET and at < self.link_end]
        return min(places, default=None)

    def destination(self, frame: bytes) -> bytes | None:
        """The outermost destination address; None if the packet's own IP header is the outermost."""
        for kind, at in self.layers:
            if kind in _ADDRESSES:
                first, size = _ADDRESSES[kind]
                return frame[at + first + size : at + first + 2 * size]
        return None

    def change_addresses(self, data: bytearray, change: Callable[[bytes], bytes]) -> None:
        """Change the addresses of the outer IP headers, and those of segment routing."""
        for place, size in self._address_places(data):
            data[place : place + size] = change(bytes(data[place : place + size]))

    def change_macs(self, data: bytearray, change: Callable[[bytes], bytes]) -> None:
        """Change the addresses of all Ethernet headers but one at the very beginning."""
        for kind, at in self.layers:
            if kind == _ETHERNET and at:
                for place in (at, at + 6):
                    data[place : place + 6] = change(bytes(data[place : place + 6]))

    def blank(self, data: bytearray) -> None:
        """Remove options and other bytes that may tell something."""
        ends = [at for _, at in self.layers[1:]] + [self.start]
        for (kind, at), end in zip(self.layers, ends, strict=True):
            first = at + _BLANK.get(kind, end - at)
            if kind == KINDS["sll"]:
                end -= _KEPT_OF_SLL
            if kind == _ROUTING:
                first = at + 8 + _SEGMENT_BYTES * self._segments(data, at)
            data[first:end] = bytes(max(end - first, 0))
            if kind == _IPV4:
                data[at + IPV4_BYTES : end] = bytes([_NO_OPERATION]) * (end - at - IPV4_BYTES)

    def _address_places(self, data: bytearray) -> list[tuple[int, int]]:
        """Where addresses are, and their bytes."""
        found = []
        for kind, at in self.layers:
            if kind in _ADDRESSES:
                first, size = _ADDRESSES[kind]
                found += [(at + first, size), (at + first + size, size)]
            elif kind == _ROUTING:
                first = at + 8
                found += [
                    (first + _SEGMENT_BYTES * i, _SEGMENT_BYTES) for i in range(self._segments(data, at))
                ]
        return found

    @staticmethod
    def _segments(data: bytearray, at: int) -> int:
        """The addresses in a routing header of IPv6; 0 if it has another type than segment routing."""
        room = data[at + 1] // 2
        return min(data[at + 4] + 1, room) if data[at + 2] == SEGMENT_ROUTING else 0


class OuterChecksums:
    """The bits by which the outer checksums are wrong, so that they stay wrong by the same bits.

    Args:
        data: the frame before it is changed.
    """

    def __init__(self, data: bytearray, outer: Outer) -> None:
        self._outer = outer
        self._wrong: dict[int, int] = {}
        for place, span, pseudo in self._sums(data):
            sent = int.from_bytes(data[place : place + 2], "big")
            if sent:
                self._wrong[place] = _sum(data, place, span, pseudo) ^ sent

    def restore(self, data: bytearray) -> None:
        """Write the checksums of the changed frame, the innermost first; one that was 0 stays so."""
        for place, span, pseudo in reversed(self._sums(data)):
            if place in self._wrong:
                value = _sum(data, place, span, pseudo) ^ self._wrong[place]
                data[place : place + 2] = (value or 0xFFFF).to_bytes(2, "big")

    def _sums(self, data: bytearray) -> list[tuple[int, tuple[int, int], bytes]]:
        """Each checksum's place, the bytes that it covers, and its pseudo header, the outermost first.

        Those over bytes that are not in the capture are left out.
        """
        found: list[tuple[int, tuple[int, int], bytes]] = []
        layers: Sequence[tuple[int, int]] = self._outer.layers
        addresses, end = b"", len(data)
        for kind, at in layers:
            if kind == _IPV4:
                found.append((at + 10, (at, at + (data[at] & 15) * 4), b""))
                end = at + int.from_bytes(data[at + 2 : at + 4], "big")
                addresses = bytes(data[at + 12 : at + 20])
            elif kind == _IPV6:
                end = at + IPV6_BYTES + int.from_bytes(data[at + 4 : at + 6], "big")
                addresses = bytes(data[at + 8 : at + 40])
            elif kind == _ROUTING and data[at + 2] == SEGMENT_ROUTING:
                # The pseudo header has the last destination (RFC 8200, 8.1), which is the first segment.
                addresses = addresses[:_SEGMENT_BYTES] + bytes(data[at + 8 : at + 8 + _SEGMENT_BYTES])
            elif kind == _UDP:
                length = int.from_bytes(data[at + 4 : at + 6], "big")
                pseudo = addresses + length.to_bytes(4, "big") + UDP_PROTOCOL.to_bytes(4, "big")
                if at + length <= len(data):
                    found.append((at + 6, (at, at + length), pseudo))
            elif kind == _GRE and data[at] & GRE_CHECKSUM and end <= len(data):
                found.append((at + 4, (at, end), b""))
        return found


def _sum(data: bytearray, place: int, span: tuple[int, int], pseudo: bytes) -> int:
    """The checksum at a place over some bytes and a pseudo header."""
    first, end = span
    covered = bytes(data[first:place]) + b"\0\0" + bytes(data[place + 2 : end])
    return internet_checksum(pseudo + covered) or 0xFFFF
