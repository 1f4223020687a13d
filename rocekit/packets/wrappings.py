"""The numbers of wrappings and scopes, and the text of what is around a packet (see ``wrapping``)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from ipaddress import ip_address
from threading import Lock
from typing import Any, Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.flow_numbers import PairNumbers, numbers_of_keys
from rocekit.packets.rows import column
from rocekit.packets.walk import Walk
from rocekit.packets.wrapping import PLAIN, MadeWrappings, Parts, Wrapping
from rocekit.wire.encapsulations import (
    GRE_CHECKSUM,
    GRE_KEY,
    KINDS,
    LAYERS,
    NVGRE_LEAST_VSID,
    SEGMENT_ROUTING,
)

Ints = NDArray[np.int64]
Trail = Sequence[tuple[int, int]]
"""Layers of a frame: their kinds and places."""


#: What follows the last label is told by a few bytes of the packet (see ``Walk``).
LOOK_AHEAD: Final = 16


class Fronts(NamedTuple):
    """The bytes of frames up to their packets and some of these.

    Attributes:
        begins, ends: where those of each frame are in ``data``; starts: where its packet starts in the frame.
    """

    data: bytes
    begins: Ints
    ends: Ints
    starts: Ints
    linktypes: Ints


_IPV4, _IPV6, _ROUTING = KINDS["ipv4"], KINDS["ipv6"], KINDS["routing"]
_VLAN, _GRE, _ETHERNET = KINDS["vlan"], KINDS["gre"], KINDS["ethernet"]
_ADDRESSES: Final = {_IPV4: (12, 4), _IPV6: (8, 16)}
_NETWORK: Final = (_IPV4, _IPV6)


class WrappingTable(MadeWrappings, Sequence[Wrapping]):
    """The wrappings of a capture as a sequence."""

    def __init__(self) -> None:
        self._made: list[Wrapping | None] = [PLAIN]
        self._scopes = np.zeros(1, np.int64)
        self._scope_of = column(self._scopes)
        self._firsts: list[int] = []
        self._fronts: list[Fronts] = []
        self._walk = Walk()
        self._alone = Lock()  # batches may be decoded while others ask for what is around packets

    def __len__(self) -> int:
        return len(self._scopes)

    @overload
    def __getitem__(self, number: int) -> Wrapping: ...
    @overload
    def __getitem__(self, number: slice) -> list[Wrapping]: ...
    def __getitem__(self, number: int | slice) -> Wrapping | list[Wrapping]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        return self.at(number)

    def scopes(self, numbers: Ints) -> Ints:
        """The scope of each."""
        return self._scopes[numbers]

    def add(self, scopes: Ints, fronts: Fronts) -> None:
        """Add wrappings with these scopes, in order of their numbers."""
        self._firsts.append(len(self))
        self._fronts.append(fronts)
        self._scopes = np.append(self._scopes, scopes)
        self._scope_of = column(self._scopes)
        self._made += [None] * len(scopes)

    def read(self, number: int) -> Parts:
        """What is around the packets of a wrapping."""
        at = bisect_right(self._firsts, number) - 1
        fronts, n = self._fronts[at], number - self._firsts[at]
        frame = fronts.data[int(fronts.begins[n]) : int(fronts.ends[n])]
        with self._alone:
            trail = self._walk.trail(frame, int(fronts.linktypes[n]), int(fronts.starts[n]))
        return _parts(frame, trail)


class Wrappings:
    """The wrappings of a capture.

    Attributes:
        every: by number; 0 is ``PLAIN``.
    """

    def __init__(self) -> None:
        self._scopes: dict[int, int] = {0: 0}
        self._scopes_known = 1
        self._begin()

    def _begin(self) -> None:
        self.every = WrappingTable()  # packets of before have the table of before
        self._pairs = PairNumbers()
        self._pairs.of(np.zeros(1, np.uint64), np.zeros(1, np.uint64))

    def keep(self, scopes: Collection[int]) -> None:
        """Forget all wrappings, and all scopes but these, which keep their numbers; between two batches."""
        self._scopes = {key: number for key, number in self._scopes.items() if not number or number in scopes}
        self._begin()

    def of(self, chain: Any, scope: Any, fronts: Callable[[Ints], Fronts]) -> tuple[Ints, Ints]:
        """Each packet's wrapping and scope, by number.

        Args:
            chain, scope: columns of the walk.
            fronts: those of some packets, by their places in these columns.
        """
        if (chain == chain[0]).all() and (scope == scope[0]).all():
            one, own = self._each(chain[:1], scope[:1], fronts)
            return np.repeat(one, len(chain)), np.repeat(own, len(chain))
        return self._each(chain, scope, fronts)

    def _each(self, chain: Any, scope: Any, fronts: Callable[[Ints], Fronts]) -> tuple[Ints, Ints]:
        found: Ints = self._pairs.of(chain, scope)
        before, known = len(self.every), self._scopes
        if self._pairs.count > before:
            # New numbers go up by one: a row has one for the first time if none before is as high.
            highest = np.maximum.accumulate(np.append(before - 1, found))
            rows = np.flatnonzero(highest[1:] > highest[:-1])
            scopes = np.empty(len(rows), np.int64)
            self._scopes_known = numbers_of_keys(scope[rows], known, self._scopes_known, scopes)
            self.every.add(scopes, fronts(rows))
        return found, self.every.scopes(found)


def _parts(frame: bytes, trail: Trail) -> Parts:
    """What is around a packet, behind the layers in ``trail``."""
    layers: list[str] = []
    vlans: list[int] = []
    outer: list[str] = []
    following = [kind for kind, _ in trail[1:]] + [_IPV4]
    for (kind, at), then in zip(trail, following, strict=True):
        layer = LAYERS[kind]
        if kind in _NETWORK:
            source, destination = addresses_at(frame, kind, at)
            outer += (source, destination)
            layers.append(f"IPv{4 if kind == _IPV4 else 6} {source} → {destination}")
            if then in _NETWORK:
                layers.append("IP-in-IP")
        elif kind == _ROUTING and frame[at + 2] == SEGMENT_ROUTING:
            layers.append("SRv6")
        elif kind == _GRE:
            layers.append(_gre(frame, at, then))
        elif layer.text:
            value = int.from_bytes(frame[at + layer.value_at : at + layer.value_at + 4], "big")
            value = value >> layer.value_shift & layer.value_mask
            layers.append(layer.text.format(value))
            if kind == _VLAN:
                vlans.append(value)
            elif layer.mirror:
                vlans.clear()
    return tuple(layers), tuple(vlans), tuple(outer)


def addresses_at(frame: bytes, kind: int, at: int) -> tuple[str, str]:
    """Source and destination of an IP header, as text."""
    first, size = _ADDRESSES[kind]
    place = at + first
    return str(ip_address(frame[place : place + size])), str(
        ip_address(frame[place + size : place + 2 * size])
    )


def _gre(frame: bytes, at: int, then: int) -> str:
    if not frame[at] & GRE_KEY:
        return "GRE"
    place = at + (8 if frame[at] & GRE_CHECKSUM else 4)
    key = int.from_bytes(frame[place : place + 4], "big")
    if then == _ETHERNET and key >> 8 >= NVGRE_LEAST_VSID:
        return f"NVGRE VSID {key >> 8}"
    return f"GRE key {key}"
