"""Hosts that talk to each other, of which the capture has one direction only."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.flows.observer import Observer
    from rocekit.track.connections import Connection

#: Transports whose responder responds.
_RESPONDS: Final = ("RC", "XRC")


def silent_ways(connections: Iterable[Connection], observer: Observer) -> list[tuple[str, str]]:
    """The ways (source, destination) without a packet, though a connection has some of the opposite way."""
    heard, others = observer.heard, observer.other_ways
    seen: Container[tuple[str, str]] = heard.keys() | others if others else heard
    found: dict[tuple[str, str], None] = {}
    for connection in connections:
        a, b = connection.ips
        if connection.transport not in _RESPONDS or a is None or b is None:
            continue
        there, back = (a, b), (b, a)
        is_there = there in seen
        if is_there != (back in seen):
            found[back if is_there else there] = None
    return list(found)
