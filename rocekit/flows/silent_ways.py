"""Hosts that talk to each other, of which the capture has one direction only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.flows.observer import Observer
    from rocekit.track.connections import Connection

#: Transports whose responder responds.
_RESPONDS: Final = ("RC", "XRC")


def silent_ways(connections: Iterable[Connection], observer: Observer) -> list[tuple[str, str]]:
    """The ways (source, destination) without a packet, though a connection has some of the opposite way."""
    seen = observer.heard.keys() | observer.other_ways
    found: dict[tuple[str, str], None] = {}
    for connection in connections:
        a, b = connection.ips
        if connection.transport not in _RESPONDS or a is None or b is None:
            continue
        there, back = (a, b) in seen, (b, a) in seen
        if there != back:
            found[(b, a) if there else (a, b)] = None
    return list(found)
