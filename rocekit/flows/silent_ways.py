"""Hosts that talk to each other, of which the capture has one direction only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.flows.observer import Observer
    from rocekit.track.connections import Connection

#: Transports whose responder responds.
_RESPONDS: Final = ("RC", "XRC")


def silent_ways(connections: Iterable[Connection], observer: Observer) -> list[tuple[str, str]]:
    """The ways (source, destination) without a packet, though a connection has some of the opposite way."""
    heard, others = observer.heard, observer.other_ways
    seen: Collection[tuple[str, str]] = heard.keys() | others if others else heard
    alone = {way for way in seen if way[::-1] not in seen}
    if not alone:  # of most captures there are both directions everywhere
        return []
    found: dict[tuple[str, str], None] = {}
    for connection in connections:
        a, b = connection.ips
        if connection.transport not in _RESPONDS or a is None or b is None:
            continue
        if (a, b) in alone:
            found[b, a] = None
        elif (b, a) in alone:
            found[a, b] = None
    return list(found)
