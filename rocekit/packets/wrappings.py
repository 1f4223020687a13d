"""The numbers of wrappings and scopes, and the text of what is around a packet (see ``wrapping``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from ipaddress import ip_address
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.flow_numbers import PairNumbers
from rocekit.packets.wrapping import PLAIN, Wrapping
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

_IPV4, _IPV6, _ROUTING = KINDS["ipv4"], KINDS["ipv6"], KINDS["routing"]
_VLAN, _GRE, _ETHERNET = KINDS["vlan"], KINDS["gre"], KINDS["ethernet"]
_ADDRESSES: Final = {_IPV4: (12, 4), _IPV6: (8, 16)}
_NETWORK: Final = (_IPV4, _IPV6)


class Wrappings:
    """The wrappings of a capture.

    Attributes:
        every: by number; 0 is ``PLAIN``.
    """

    def __init__(self) -> None:
        self.every: list[Wrapping] = [PLAIN]
        self._scopes: dict[int, int] = {0: 0}
        self._scopes_known = 1
        self._begin()

    def _begin(self) -> None:
        self._pairs = PairNumbers()
        self._pairs.of(np.zeros(1, np.uint64), np.zeros(1, np.uint64))
        self._scope_of = np.zeros(1, np.int64)

    def keep(self, scopes: Collection[int]) -> None:
        """Forget all wrappings, and all scopes but these, which keep their numbers; between two batches."""
        self.every = [PLAIN]  # packets of before have the list of before
        self._scopes = {key: number for key, number in self._scopes.items() if not number or number in scopes}
        self._begin()

    def of(self, chain: Any, scope: Any, trail_of: Callable[[int], tuple[bytes, Trail]]) -> tuple[Ints, Ints]:
        """Each packet's wrapping and scope, by number.

        Args:
            chain, scope: columns of the walk.
            trail_of: gives the frame of a packet and its layers.
        """
        if (chain == chain[0]).all() and (scope == scope[0]).all():
            one, own = self._each(chain[:1], scope[:1], trail_of)
            return np.repeat(one, len(chain)), np.repeat(own, len(chain))
        return self._each(chain, scope, trail_of)

    def _each(
        self, chain: Any, scope: Any, trail_of: Callable[[int], tuple[bytes, Trail]]
    ) -> tuple[Ints, Ints]:
        found: Ints = self._pairs.of(chain, scope)
        if len(self._pairs.known) > len(self.every):
            numbers, first = np.unique(found, return_index=True)
            for number, row in zip(numbers.tolist(), first.tolist(), strict=True):
                if number >= len(self.every):
                    key = self._pairs.known[number][1]
                    own = self._scopes.setdefault(int(key), self._scopes_known)
                    self._scopes_known += own == self._scopes_known
                    self.every.append(_wrapping(own, *trail_of(row)))
        if len(self._scope_of) < len(self.every):
            new = [wrapping.scope for wrapping in self.every[len(self._scope_of) :]]
            self._scope_of = np.append(self._scope_of, np.array(new, np.int64))
        return found, self._scope_of[found]


def _wrapping(scope: int, frame: bytes, trail: Trail) -> Wrapping:
    """The wrapping of a frame's packet, behind the layers in ``trail``."""
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
    return Wrapping(scope, tuple(layers), tuple(vlans), tuple(outer))


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
