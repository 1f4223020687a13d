# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The walk over what stands around a packet, from the link on: tags, tunnels, labels.

What headers there are is in ``wire.encapsulations``; its rows become tables of numbers here. Beside the place
of the next IP header, the walk finds what tells packets apart: ``chain`` has all that is named of the layers,
``scope`` what makes traffic other traffic (VLAN, VNI, key, outer addresses in either order). Both are mixed
64-bit numbers, 0 where there is nothing.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.dissecting.columns import table
from rocekit.packets.flow_numbers import MIXER
from rocekit.wire import encapsulations
from rocekit.wire.encapsulations import KINDS, LAYERS, LINKS

#: Layers that are read of one frame, at most.
MOST_LAYERS: Final = 32

_MOST: Final = MOST_LAYERS
_MIXER: Final = MIXER
_WORD: Final = 0xFFFF_FFFF_FFFF_FFFF
_SHIFT: Final = 29
_ETHERNET: Final = KINDS["ethernet"]
_IPV4: Final = KINDS["ipv4"]
_IPV6: Final = KINDS["ipv6"]
_GRH: Final = KINDS["grh"]
_ROUTING: Final = KINDS["routing"]
_VLAN: Final = KINDS["vlan"]
_GRE: Final = KINDS["gre"]
_BELOW_MPLS: Final = KINDS["below-mpls"]
_CONTROL_WORD: Final = KINDS["control-word"]
_CHECKSUM: Final = encapsulations.GRE_CHECKSUM
_KEY: Final = encapsulations.GRE_KEY
_LEAST_VSID: Final = encapsulations.NVGRE_LEAST_VSID
_SID_PREFIX: Final = encapsulations.SID_PREFIX
_SEGMENT_ROUTING: Final = encapsulations.SEGMENT_ROUTING


def _column(name: str) -> Any:
    """An attribute of all rows of ``LAYERS``."""
    return table([getattr(layer, name) for layer in LAYERS])


def _kinds_by_number() -> bytearray:
    """The kinds of next layers by their numbers, of all rows one after the other."""
    found = bytearray(sum(layer.space for layer in LAYERS))  # most are 0: no memory is taken for them
    begin = 0
    for layer in LAYERS:
        if KINDS[layer.then]:
            found[begin : begin + layer.space] = bytes([KINDS[layer.then]]) * layer.space
        for number, kind in (layer.numbers or {}).items():
            found[begin + number] = KINDS[kind]
        begin += layer.space
    return found


_NEXT: Final = _kinds_by_number()
_FIRST: Final = [0, *accumulate(layer.space for layer in LAYERS)]


def _growths() -> NDArray[np.int64]:
    """By row and the value of its byte, how much longer it is."""
    found = np.zeros((len(LAYERS), 256), np.int64)
    for row, layer in enumerate(LAYERS):
        if layer.grows is not None:
            found[row] = [layer.grows(value) for value in range(256)]
    return found.reshape(-1)


_GROWS: Final = _growths()


def _mixed(value: int, more: int) -> int:
    value = (value ^ more) * _MIXER & _WORD
    return value ^ value >> _SHIFT


class Walk:
    """Goes over the layers of one frame after the other.

    Attributes:
        kind, at: the layer reached, a number of ``encapsulations.KINDS``, and where it starts; kind 0: the
            walk is over.
        vlan, priority: of the innermost tag so far; −1 and 0 without one.
        chain, scope: see the module.
    """

    def __init__(self) -> None:
        self.kind = self.at = self.priority = self.chain = self.scope = 0
        self.vlan = -1
        self._buffer: Any = b""
        self._size = self._limit = self._depth = self._before = 0
        self._next: Any = _NEXT
        self._first, self._grows = table(_FIRST), table(_GROWS)
        self._length, self._grows_at = _column("length"), _column("grows_at")
        self._next_at, self._next_bytes = _column("next_at"), _column("next_bytes")
        self._also_at, self._also_mask = _column("also_at"), _column("also_mask")
        self._value_at, self._value_shift = _column("value_at"), _column("value_shift")
        self._value_mask = _column("value_mask")
        self._apart, self._mirror = _column("apart"), _column("mirror")
        self._named = table([bool(layer.text) for layer in LAYERS])
        kinds = np.zeros(max(LINKS) + 1, np.int64)
        for linktype, kind in LINKS.items():
            kinds[linktype] = KINDS[kind]
        self._links, self._known_links = table(kinds), len(kinds)
        self._kinds, self._places = table(np.zeros(_MOST)), table(np.zeros(_MOST))

    def read(self, buffer: Any, size: int) -> None:
        """Walk over frames in this buffer from now on."""
        self._buffer, self._size = buffer, size

    def trail(self, frame: bytes, linktype: int, start: int) -> list[tuple[int, int]]:
        """The layers of a frame before the IP header or GRH at ``start``: their kinds and places."""
        self.read(frame, len(frame))
        self.begin(0, len(frame), linktype)
        while self.network() and self.at < start:
            self.past()
        self.read(b"", 0)
        return [(self._kinds[i], self._places[i]) for i in range(self._depth) if self._places[i] < start]

    def clear(self) -> None:
        """Start a frame without any layers."""
        self.chain = self.scope = self._before = self.priority = self._depth = 0
        self.vlan = -1

    def begin(self, begin: int, limit: int, linktype: int) -> None:
        """Start at the first layer of a frame."""
        self.clear()
        self._limit = limit
        self._enter(self._links[linktype] if linktype < self._known_links else 0, begin)

    def _enter(self, kind: int, at: int) -> None:
        if self._depth >= _MOST:
            kind = 0
        self.kind, self.at = kind, at
        if kind:
            self._kinds[self._depth], self._places[self._depth] = kind, at
            self._depth += 1

    def network(self) -> bool:
        """Go on to the next IP header or GRH, unless the walk is at one. Returns whether there is one."""
        while self.kind:
            if self.kind in (_IPV4, _IPV6, _GRH):
                return True
            self.past()
        return False

    def past(self) -> None:
        """Go past the layer reached."""
        kind, at = self.kind, self.at
        grows = self._grows[kind << 8 | self._byte(at + self._grows_at[kind])]
        behind = at + self._length[kind] + grows
        if grows < 0 or behind > self._limit:
            self.kind = 0
            return
        width = self._next_bytes[kind]
        number = self._word(at + self._next_at[kind]) >> 32 - 8 * width if width else 0
        if self._also_mask[kind] and self._byte(at + self._also_at[kind]) & self._also_mask[kind]:
            number |= 1 << 8 * width
        following = self._next[self._first[kind] + number]
        if self._named[kind]:
            self._note(kind, at, following)
        elif kind == _IPV4:
            if self._word(at + 4) & 0x3FFF:  # a fragment: the rest is in others
                following = 0
            source, destination = self._word(at + 12), self._word(at + 16)
            self._between(kind, _mixed(kind, source), _mixed(kind, destination), False)
        elif kind == _IPV6:
            self._ipv6(kind, at)
        elif kind == _ROUTING and self._byte(at + 2) == _SEGMENT_ROUTING:
            self.chain = _mixed(self.chain, kind)
            self.scope = self._before
        elif kind == _BELOW_MPLS:
            following = self._below_mpls(at)
        self._enter(following, behind)

    def tag(self, word: int) -> None:
        """Take a VLAN tag: its control information in the upper half of a word."""
        self.vlan, self.priority = word >> 16 & 0xFFF, word >> 29
        value = _VLAN << 32 | self.vlan
        self.chain = _mixed(self.chain, value)
        if self.vlan:  # VLAN 0 is none: the tag is there for its priority (802.1Q, 9.6)
            self.scope = _mixed(self.scope, value)

    def _note(self, kind: int, at: int, following: int) -> None:
        """Take what is named of a layer."""
        if kind == _VLAN:
            self.tag(self._word(at))
            return
        if self._mirror[kind]:
            self.scope, self.vlan, self.priority = 0, -1, 0
        if kind == _GRE:
            value = self._key(at, following)
        else:
            value = self._word(at + self._value_at[kind]) >> self._value_shift[kind] & self._value_mask[kind]
        self.chain = _mixed(self.chain, kind << 32 | value)
        if self._apart[kind]:
            self.scope = _mixed(self.scope, kind << 32 | value)

    def _key(self, at: int, following: int) -> int:
        """The key of a GRE header, of NVGRE without its FlowID; 0 without one."""
        flags = self._byte(at)
        if not flags & _KEY:
            return 0
        key = self._word(at + (8 if flags & _CHECKSUM else 4))
        return key & ~0xFF if following == _ETHERNET and key >> 8 >= _LEAST_VSID else key

    def _ipv6(self, kind: int, at: int) -> None:
        source = _mixed(_mixed(kind, self._long(at + 8)), self._long(at + 16))
        destination = _mixed(_mixed(kind, self._long(at + 24)), self._long(at + 32))
        # As ``encapsulations.is_segment``.
        segment = self._word(at + 24) >> 16 == _SID_PREFIX or self._word(at + 36) == 0
        self._between(kind, source, destination, segment)

    def _between(self, kind: int, source: int, destination: int, segment: bool) -> None:
        """Take the addresses of an outer IP header."""
        self.chain = _mixed(_mixed(self.chain, source), destination)
        self._before = self.scope
        if not segment:
            self.scope = _mixed(self.scope, source + destination & _WORD)

    def _below_mpls(self, at: int) -> int:
        """What follows the last label: IP, Ethernet, or Ethernet behind a control word (RFC 4385, 4448).

        Nothing names it; a version of IP may be the first half of a MAC address's first byte too. The control
        word of Ethernet begins with 16 zeros.
        """
        if at >= self._limit:
            return 0
        first = self._byte(at) >> 4
        if self._word(at) >> 16 == 0 and self._is_ethernet(at + 4):
            return _CONTROL_WORD
        if self._is_ethernet(at):
            return _ETHERNET
        return _IPV4 if first == 4 else _IPV6 if first == 6 else 0

    def _is_ethernet(self, at: int) -> bool:
        """Whether an Ethernet header with a known EtherType, and what this promises, may be here."""
        if at + 15 > self._limit:
            return False
        kind = self._next[self._first[_ETHERNET] + (self._word(at + 12) >> 16)]
        if kind == 0:
            return False
        first = self._byte(at + 14 + self._grows_at[kind])
        grows: int = self._grows[kind << 8 | first]
        return grows >= 0

    def _word(self, at: int) -> int:
        """The big-endian word at a place of the buffer, with zeros for bytes behind its end."""
        word = self._byte(at) << 24 | self._byte(at + 1) << 16
        return word | self._byte(at + 2) << 8 | self._byte(at + 3)

    def _long(self, at: int) -> int:
        return self._word(at) << 32 | self._word(at + 4)

    def _byte(self, at: int) -> int:
        return self._buffer[at] if at < self._size else 0
